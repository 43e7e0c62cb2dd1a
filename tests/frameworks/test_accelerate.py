"""Accelerate: saves are versions, and any of them goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import mvc
from mvc.errors import CannotResume, UnsupportedTensor, WrongUsage
from tests.frameworks.need import need

need("accelerate")

from mvc.frameworks.accelerate.recording import attach  # noqa: E402
from mvc.frameworks.common import ranks  # noqa: E402
from tests.frameworks.accelerate_runs import EPOCH, Run  # noqa: E402
from tests.frameworks.trainings import MODEL, TRAINING  # noqa: E402
from tests.training.runs import tensor_bits  # noqa: E402

ORDERS: dict[str, dict[str, bool]] = {
    "global": {},
    "sampler": {"seedable": True},
    "own": {"own": True},
}


@pytest.mark.parametrize("order", ORDERS)
def test_goes_on_bit_for_bit(tmp_path: Path, repo: mvc.Repository, order: str) -> None:
    """From the middle of an epoch, its last batch, the middle of the next one."""
    saves = {n: tmp_path / f"at{n}" for n in (4, EPOCH, 10)}
    whole = Run(**ORDERS[order])
    with attach(whole.accelerator, repo) as attached:
        whole.train(attached, 18, saves)
        assert [e.commit.message for e in repo.log()] == ["step 3", "step 2", "step 1"]
    for back, at in ((2, 4), (1, EPOCH), (0, 10)):
        again = Run(seed=60 + at, **ORDERS[order])
        with attach(again.accelerator, repo) as attached:
            resumed = attached.load(f"HEAD~{back}")
            assert (resumed.step, resumed.differs) == (3 - back, ())
            assert again.count.value == at
            again.train(attached, 18)
        assert again.bits() == whole.bits()


@pytest.mark.parametrize("order", ORDERS)
def test_between_epochs(tmp_path: Path, repo: mvc.Repository, order: str) -> None:
    """Also with the loader's own iteration, where no epoch is in the middle."""
    run = Run(**ORDERS[order])
    with attach(run.accelerator, repo) as attached:
        run.train(attached, EPOCH)
        for _ in attached.batches(run.loader):
            pass
        run.accelerator.save_state(str(tmp_path / "out"))
        expected = [raw.tolist() for raw, _ in run.loader]
        again = Run(seed=8, **ORDERS[order])
    with attach(again.accelerator, repo) as attached:
        attached.load()
        assert attached.epoch(again.loader) == 2
        again.loader.set_epoch(2)
        assert [raw.tolist() for raw, _ in again.loader] == expected


def test_version_and_folder_have_the_same_content(tmp_path: Path, repo: mvc.Repository) -> None:
    run = Run()
    with attach(
        run.accelerator, repo, deploy="prod", metrics={"fold": 2}, params={"lr": 0.1}
    ) as attached:
        run.train(attached, 5)
        run.accelerator.save_state(str(tmp_path / "out"))
        assert attached.report.durable == 1
        run.train(attached, 6)
    assert repo.live("prod").commit == repo.find("HEAD")
    assert repo.log()[0].commit.metrics == {"fold": 2}
    params = repo.log()[0].commit.params
    assert params["lr"] == "0.1" and params["optimizer.amsgrad"] == "false"
    kept = repo.checkout(path="model.training.safetensors")
    other = Run(seed=9)
    other.accelerator.load_state(str(tmp_path / "out"))
    weights = repo.checkout(target="prod")
    assert all(torch.equal(weights[k], v) for k, v in other.net.state_dict().items())
    assert kept["accelerate"]["step"] == other.accelerator.step
    moments = other.optimizer.optimizer.state
    names = dict(other.net.named_parameters())
    for name, values in kept["optimizer"]["state"].items():
        assert all(torch.equal(moments[names[name]][k], v) for k, v in values.items())
    assert torch.equal(kept["rng"]["torch"], torch.get_rng_state())
    assert kept["accelerate"]["objects"] == [other.count.state_dict()]
    assert kept["scheduler"]["last_epoch"] == other.scheduler.scheduler.last_epoch


def test_folder_as_a_version(tmp_path: Path) -> None:
    """Accelerate's files as they are: back byte for byte, and load_state takes them."""
    run = Run()
    with mvc.Repository.init(tmp_path) as repo:
        attached = attach(run.accelerator, repo)
        run.train(attached, 5)
        attached.close()
        run.accelerator.save_state(str(tmp_path / "state"))
        repo.commit(tmp_path / "state")
        written = {p.name: p.read_bytes() for p in (tmp_path / "state").iterdir()}
        assert {"model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"} < {
            *written
        }
        repo.checkout("HEAD", to=tmp_path / "back")
        back = tmp_path / "back" / "state"
        assert {p.name: p.read_bytes() for p in back.iterdir()} == written
        expected = run.bits()
        other = Run(seed=9)
        other.accelerator.load_state(str(back))
        assert other.bits() == expected


def test_resumes_without_accelerate(tmp_path: Path, repo: mvc.Repository) -> None:
    run = Run()
    with attach(run.accelerator, repo) as attached:
        run.train(attached, 4)
        run.accelerator.save_state(str(tmp_path / "out"))
    expected = {k: v for k, v in run.bits().items() if k != "count"}
    again = Run(seed=9)
    parts = again.net, again.optimizer.optimizer
    with pytest.raises(CannotResume, match="scheduler"):
        mvc.resume(repo, *parts)
    mvc.resume(repo, *parts, scheduler=again.scheduler)
    assert {k: v for k, v in again.bits().items() if k != "count"} == expected


def test_two_models(tmp_path: Path, repo: mvc.Repository) -> None:
    def make(seed: int) -> tuple[Run, list[Any]]:
        run = Run(seed)
        net = torch.nn.Linear(3, 2)
        return run, [*run.accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1, 0.9))]

    def step(net: Any, optimizer: Any) -> None:
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    run, (net, optimizer) = make(1)
    with attach(run.accelerator, repo) as attached:
        step(net, optimizer)
        run.accelerator.save_state(str(tmp_path / "out"))
        step(net, optimizer)
    assert {"0.0.weight", "1.weight"} < {*repo.checkout()}
    run, (other, other_optimizer) = make(2)
    with attach(run.accelerator, repo) as attached:
        attached.load()
        step(other, other_optimizer)
    assert torch.equal(other.weight, net.weight)
    one = Run()
    with attach(one.accelerator, repo) as attached, pytest.raises(CannotResume, match="optimizers"):
        attached.load()


def test_data_that_draw_are_told(tmp_path: Path, repo: mvc.Repository) -> None:
    def noisy(rows: list[Any]) -> Any:
        return torch.stack([r[0] + torch.randn(6) for r in rows]), torch.stack([r[1] for r in rows])

    run = Run()
    run.loader.base_dataloader.collate_fn = noisy
    with attach(run.accelerator, repo) as attached:
        run.train(attached, 4, {3: tmp_path / "out"})
        assert any(text.startswith("data:") for text in attached.load().differs)


def test_another_scheduler_is_refused(tmp_path: Path, repo: mvc.Repository) -> None:
    run = Run()
    with attach(run.accelerator, repo) as attached:
        run.train(attached, 4, {3: tmp_path / "out"})
    other = Run(40, schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2))
    before = other.bits()
    named = r"scheduler was .*\.CosineAnnealingLR, not .*\.StepLR"
    with attach(other.accelerator, repo) as attached, pytest.raises(CannotResume, match=named):
        attached.load()
    assert other.bits() == before
    with pytest.raises(CannotResume, match=named):
        mvc.resume(repo, other.net, other.optimizer.optimizer, scheduler=other.scheduler)


OTHERS = {
    "size": ({"batch": 7}, "batch size: 7, not 4, batches an epoch: 4, not 7"),
    "rows": ({"rows": 27}, "rows: 27, not 28"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_data(tmp_path: Path, repo: mvc.Repository, what: str) -> None:
    """Refused in the middle of an epoch, told between epochs."""
    loading, reason = OTHERS[what]
    run = Run()
    with attach(run.accelerator, repo) as attached:
        run.train(attached, 4, {3: tmp_path / "out"})
        for _ in attached.batches(run.loader):
            pass
        run.accelerator.save_state(str(tmp_path / "end"))
    other = Run(40, **loading)
    before = other.bits()
    with attach(other.accelerator, repo) as attached:
        with pytest.raises(CannotResume, match=f"data have changed: {reason}\n"):
            attached.load("HEAD~1")
        assert other.bits() == before
        assert ", ".join(attached.load().differs) == reason


def test_in_the_background(tmp_path: Path, repo: mvc.Repository) -> None:
    run = Run()
    attached = attach(run.accelerator, repo, wait=False)
    run.train(attached, 3, dict.fromkeys((1, 2, 3), tmp_path / "out"))
    attached.flush()
    assert len(list(repo.log())) == 3
    attached.close()
    run.accelerator.save_state(str(tmp_path / "out"))
    assert len(list(repo.log())) == 3


def test_refusals(tmp_path: Path, repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.accelerator.save_state(str(tmp_path / "out"))  # nobody hears of it
    assert list(repo.refs()) == []
    with attach(run.accelerator, tmp_path / "models") as attached:
        run.accelerator.save_state(str(tmp_path / "out"))
        with pytest.raises(WrongUsage, match="not prepared"):
            next(attached.batches([1, 2]))
    before = Run(hidden=9)
    bits = before.bits()
    with attach(before.accelerator, repo) as attached, pytest.raises(CannotResume, match="weight"):
        attached.load()
    assert before.bits() == bits
    run = Run()
    with attach(run.accelerator, repo):
        run.count.marks.append(object())  # type: ignore[arg-type]
        with pytest.raises(UnsupportedTensor, match="objects"):
            run.accelerator.save_state(str(tmp_path / "out"))

    class Sharded:
        class distributed_type:
            value = "DEEPSPEED"

    monkeypatch.setattr(ranks, "AcceleratorState", Sharded)
    with pytest.raises(WrongUsage, match="sharded"):
        attach(run.accelerator, repo)


def test_the_folder_holds_the_training_weights(tmp_path: Path, repo: mvc.Repository) -> None:
    """The version beside it holds production weights, of a stage that goes by the given loss."""
    run = Run()

    def loss() -> dict[str, float]:
        return {"loss": run.count.marks[-1]}

    options: dict[str, Any] = {"pipeline": "vsol-0.1-fast", "metrics": loss, "keep_training": True}
    with attach(run.accelerator, repo, **options) as attached:
        run.train(attached, 4, {2: tmp_path / "first", 4: tmp_path / "out"})
    trained = tensor_bits(repo.checkout(path=TRAINING)["weights"])
    assert tensor_bits(load_file(tmp_path / "out" / "model.safetensors")) == trained
    assert tensor_bits(repo.checkout(path=MODEL)) != trained
