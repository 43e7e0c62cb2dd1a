"""2n steps give the bits of n steps, a resume in a fresh training, and n more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import CannotResume, InvalidName, UnsupportedTensor
from tests.training.runs import Net, Run, bits_of

STEPS = 7  # in the middle of an epoch


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(trained(model), lr=0.1, momentum=0.9, nesterov=True)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(trained(model), lr=0.01, amsgrad=True)


def groups(model: nn.Module) -> torch.optim.Optimizer:
    last = [p for n, p in model.named_parameters() if n.startswith("last")]
    rest = [p for n, p in model.named_parameters() if not n.startswith(("last", "frozen"))]
    return torch.optim.AdamW([{"params": last, "lr": 0.03}, {"params": rest}], lr=0.01)


def rmsprop(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(trained(model), lr=0.003, centered=True, momentum=0.5)


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(trained(model), lr=0.1, max_iter=4)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def steps(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 9, 9], gamma=0.5)


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)


def warm_then_cosine(optimizer: torch.optim.Optimizer) -> Any:
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine(optimizer)], [5])


def scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)


CASES = {
    "sgd": (sgd, None, None),
    "sgd-multistep-scaler": (sgd, steps, scaler),
    "adam-cosine": (adam, cosine, None),
    "adamw-groups-one-cycle": (groups, one_cycle, None),
    "rmsprop-sequential": (rmsprop, warm_then_cosine, None),
}


def record(repo: mvc.Repository, of: Run, count: int = STEPS, **options: Any) -> None:
    with mvc.Recorder(repo, of.model, of.optimizer, **{**of.parts, **options}) as recorder:
        for _ in range(count):
            recorder.step(loss=of.train(), batch=of.position)


@pytest.mark.parametrize("case", CASES)
def test_goes_on_bit_for_bit(tmp_path: Path, case: str) -> None:
    whole = Run(*CASES[case])
    losses = [whole.train() for _ in range(2 * STEPS)]
    first = Run(*CASES[case])
    with mvc.Repository.init(tmp_path) as repo:
        record(repo, first)
        again = Run(*CASES[case], seed=99)
        resumed = mvc.resume(repo, again.model, again.optimizer, **again.parts)
        assert (resumed.step, resumed.batch, resumed.differs) == (STEPS, STEPS, ())
        again.position = resumed.batch
        assert again.bits() == first.bits()
    assert [again.train() for _ in range(STEPS)] == losses[STEPS:]
    assert again.bits() == whole.bits()


def test_from_any_version(tmp_path: Path) -> None:
    """Also from a version in the middle, while the recording of others goes on."""
    whole = Run(adam, cosine)
    seen = []
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, whole.model, whole.optimizer, scheduler=whole.scheduler) as rec:
            for _ in range(STEPS):
                whole.train()
                rec.step(batch={"epoch": 0, "index": whole.position})
                seen.append(whole.bits())
        for back in range(STEPS):
            run = Run(adam, cosine, seed=5)
            resumed = mvc.resume(
                repo, run.model, run.optimizer, scheduler=run.scheduler, rev=f"HEAD~{back}"
            )
            assert run.bits() == seen[STEPS - 1 - back]
            assert resumed.batch == {"epoch": 0, "index": STEPS - back}


def test_nested_optimizer_state(tmp_path: Path) -> None:
    """L-BFGS keeps lists of tensors and takes a closure."""

    def train(run: Run) -> None:
        rows = run.batch()

        def closure() -> torch.Tensor:
            run.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(run.model(torch.ones(8, 6)), rows % 3)
            loss.backward()
            return loss

        run.optimizer.step(closure)
        run.position += 1

    whole, first, again = Run(lbfgs), Run(lbfgs), Run(lbfgs, seed=3)
    torch.manual_seed(1)
    for _ in range(4):
        train(whole)
    torch.manual_seed(1)
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, first.model, first.optimizer) as recorder:
            for _ in range(2):
                train(first)
                recorder.step(batch=first.position)
        again.position = mvc.resume(repo, again.model, again.optimizer).batch
    for _ in range(2):
        train(again)
    assert again.bits() == whole.bits()


@pytest.mark.parametrize("optimizer", [adam, groups])
def test_order_of_parameters_does_not_matter(tmp_path: Path, optimizer: Any) -> None:
    def swapped(model: nn.Module) -> torch.optim.Optimizer:
        made = optimizer(model)
        turned = [{**g, "params": g["params"][::-1]} for g in made.param_groups[::-1]]
        return type(made)(turned)

    whole = Run(optimizer)
    for _ in range(2 * STEPS):
        whole.train()
    first = Run(optimizer)
    with mvc.Repository.init(tmp_path) as repo:
        record(repo, first)
        again = Run(swapped, seed=4)
        again.position = mvc.resume(repo, again.model, again.optimizer).batch
    assert again.bits() == first.bits()
    for _ in range(STEPS):
        again.train()
    assert again.bits() == whole.bits()


class Tied(nn.Module):
    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, optimizer) as recorder:
            recorder.step()
            one_copy = 2 * bits_of(model.embed.weight).__len__()
        assert recorder.report.peak_bytes < 2 * one_copy + 20_000
        again = Tied()
        fresh = torch.optim.Adam(again.parameters())
        mvc.resume(repo, again, fresh)
        assert again.head.weight is again.embed.weight
        assert bits_of(again.head.weight) == bits_of(model.head.weight)
        apart = Tied(tie=False)
        with pytest.raises(CannotResume, match=r"ties no parameters.*head\.weight"):
            mvc.resume(repo, apart, torch.optim.Adam([apart.embed.weight]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_short_floats(tmp_path: Path, dtype: str) -> None:
    """Master weights in the optimizer's state stay float32 beside a short parameter."""

    def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Linear(8, 8)
        for name, parameter in list(model.named_parameters()):
            short = parameter.detach().to(getattr(torch, dtype))
            setattr(model, name, nn.Parameter(short, requires_grad=False))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    model, optimizer = make(0)
    for parameter in model.parameters():
        optimizer.state[parameter]["master"] = torch.randn(parameter.shape)
        optimizer.state[parameter]["momentum_buffer"] = None
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, optimizer) as recorder:
            recorder.step()
        again, fresh = make(1)
        mvc.resume(repo, again, fresh)
    for old, new in zip(model.parameters(), again.parameters(), strict=True):
        assert new.dtype == getattr(torch, dtype)
        assert bits_of(old) == bits_of(new)
        assert fresh.state[new]["master"].dtype == torch.float32
        assert bits_of(fresh.state[new]["master"]) == bits_of(optimizer.state[old]["master"])


def test_strided_parameters(tmp_path: Path) -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model) as recorder:
            recorder.step()
        again = nn.Conv2d(3, 4, 3)
        mvc.resume(repo, again)
    assert bits_of(again.weight) == bits_of(model.weight)


def kept(tmp_path: Path, **options: Any) -> mvc.Repository:
    repo = mvc.Repository.init(tmp_path)
    record(repo, Run(adam, cosine), 2, **options)
    return repo


def refused(repo: mvc.Repository, run: Run, match: str, **options: Any) -> None:
    """Says why, and nothing has changed."""
    before, rng = run.bits(), torch.get_rng_state()
    with pytest.raises(CannotResume, match=match):
        mvc.resume(repo, run.model, run.optimizer, **{**run.parts, **options})
    assert run.bits() == before
    assert torch.equal(torch.get_rng_state(), rng)


def test_refuses_what_lacks_or_does_not_fit(tmp_path: Path) -> None:
    with kept(tmp_path / "a") as repo:
        refused(repo, Run(adam), "has the state of a scheduler, but none was passed")
        refused(repo, Run(adam, cosine, scaler), "recorded without the scaler")
        refused(repo, Run(sgd, cosine), r"is torch\.optim\.adam\.Adam, this one is torch.*SGD")
        refused(repo, Run(adam, cosine), r"has no other\.safetensors", path="other.safetensors")
        run = Run(adam, cosine)
        run.model.last = nn.Linear(16, 4)
        run.optimizer, run.scheduler = adam(run.model), cosine(run.optimizer)
        refused(repo, run, r"last\.weight: float32 \(3, 16\) in the version, float32 \(4, 16\)")
        run = Run(adam, cosine)
        run.model.more = nn.Linear(1, 1)
        run.optimizer = adam(run.model)
        refused(repo, run, r"more\.weight: the version lacks it")
        del run.model.more, run.model.last
        run.optimizer = adam(run.model)
        refused(repo, run, r"last\.weight: the model lacks it")
        run = Run(adam, cosine)
        run.optimizer = torch.optim.Adam(list(run.model.parameters())[:3])
        refused(repo, run, "group 0 of the optimizer has other parameters")
        run = Run(adam, cosine)
        run.optimizer.add_param_group({"params": [run.model.frozen.weight]})
        refused(repo, run, r"frozen\.weight is in no recorded group")
        meta = Net().to("meta")
        with pytest.raises(CannotResume, match="no data"):
            mvc.resume(repo, meta, adam(meta), scheduler=Run(adam, cosine).scheduler)
        repo.commit(Net().state_dict())
        refused(repo, Run(adam, cosine), "belongs to another version of model.safetensors")
        run = Run(adam, cosine)
        repo.commit({"x": 1}, path="else.safetensors")
        mvc.resume(repo, run.model, run.optimizer, scheduler=run.scheduler, rev="HEAD~2")
    with kept(tmp_path / "b", include=["model", "optimizer", "scheduler"]) as repo:
        refused(repo, Run(adam, cosine), "without the state of the random generators")
    with kept(tmp_path / "c", include=["optimizer", "rng"]) as repo:
        refused(repo, Run(adam), r"has no model\.safetensors")
    with mvc.Repository.init(tmp_path / "d") as repo:
        repo.commit(Net().state_dict())
        refused(repo, Run(adam), r"has no model\.training\.safetensors")


def test_a_damaged_rng_is_refused(tmp_path: Path) -> None:
    with kept(tmp_path) as repo:
        state = repo.checkout("HEAD", path="model.training.safetensors")
        for broken in ({}, {**state["rng"], "torch": torch.zeros(3, dtype=torch.uint8)}, [1]):
            changed = {**state, "rng": broken}
            repo.commit(changed, path="model.training.safetensors")
            refused(repo, Run(adam, cosine), "random generators")
        more = {**state, "rng": {**state["rng"], "cuda": [torch.zeros(16, dtype=torch.uint8)]}}
        repo.commit(more, path="model.training.safetensors")
        refused(repo, Run(adam, cosine), "1 CUDA devices, this machine has 0")


def test_says_what_else_the_bits_depend_on(tmp_path: Path) -> None:
    with kept(tmp_path) as repo:
        run = Run(adam, cosine)
        before = torch.get_num_threads()
        torch.set_num_threads(before + 1)
        try:
            resumed = mvc.resume(repo, run.model, run.optimizer, scheduler=run.scheduler)
        finally:
            torch.set_num_threads(before)
        assert resumed.differs == (f"threads: {before + 1}, not {before}",)


def test_a_foreign_parameter_is_refused_by_place(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    stray = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))])
    with mvc.Repository.init(tmp_path) as repo:
        recorder = mvc.Recorder(repo, model, stray)
        with pytest.raises(UnsupportedTensor, match="parameter 2 of the optimizer's group 0"):
            recorder.step()


# -- counting on -----------------------------------------------------------------------------


def messages(repo: mvc.Repository, rev: str = "HEAD") -> list[str]:
    return [entry.commit.message for entry in repo.log(rev)][::-1]


def test_a_recorder_counts_on_from_what_was_resumed(repo: mvc.Repository) -> None:
    """Also that of ``watch`` and of a wrapped model; the count is that of the whole training."""
    first = Run(adam)
    record(repo, first, 3)
    for rounds, given in enumerate([{}, {"start": None}], start=1):
        run = Run(adam, seed=9)
        resumed = mvc.resume(repo, torch.nn.DataParallel(run.model), run.optimizer)
        assert resumed.step == 3 * rounds
        assert str(resumed) == f"{resumed.commit.short}: {resumed.step} steps done"
        record(repo, run, 3, **given)
        assert messages(repo)[-3:] == [
            f"step {resumed.step + 1} (resumed from {resumed.commit.short})",
            f"step {resumed.step + 2}",
            f"step {resumed.step + 3}",
        ]
    training = repo.checkout(path="model.training.safetensors")
    assert (training["step"], training["origin"]) == (9, str(resumed.commit))


def test_a_resume_in_the_middle_sets_the_count_back(repo: mvc.Repository) -> None:
    run = Run(sgd)
    with mvc.Recorder(repo, run.model, run.optimizer, **run.parts) as recorder:
        for _ in range(3):
            recorder.step(loss=run.train(), batch=run.position)
        recorder.flush()
        back = mvc.resume(repo, run.model, run.optimizer, rev="HEAD~2")
        recorder.step()
        recorder.step()
        report = recorder.report
    assert messages(repo)[3:] == [f"step 2 (resumed from {back.commit.short})", "step 3"]
    assert (report.steps, report.taken) == (5, 5)


def test_only_the_model_that_was_resumed_counts_on(repo: mvc.Repository, tmp_path: Path) -> None:
    """Once; not another model, nor in another repository, nor where ``start`` says otherwise."""
    record(repo, Run(sgd), 2)
    run = Run(sgd)
    mvc.resume(repo, run.model, run.optimizer)
    record(repo, Run(sgd), 1)
    assert messages(repo)[-1] == "step 1"
    with mvc.Repository.init(tmp_path / "other") as other:
        record(other, run, 1)
        assert messages(other) == ["step 1"]
    for start in (0, 7):
        mvc.resume(repo, run.model, run.optimizer)
        record(repo, run, 1, start=start)
        assert messages(repo)[-1] == f"step {start + 1}"
        record(repo, run, 1)
        assert messages(repo)[-1] == "step 1"


def test_a_run_goes_on_after_a_resume(repo: mvc.Repository) -> None:
    """Step 63 belongs to a run, that of the version it goes on from if none is named."""
    first, second = Run(sgd), Run(sgd, seed=2)
    record(repo, first, 2, run="a")
    record(repo, second, 1, run="b")
    mvc.resume(repo, second.model, second.optimizer, rev="HEAD~1")
    record(repo, second, 1)
    mvc.resume(repo, second.model, second.optimizer)
    record(repo, second, 1, run="c")
    record(repo, Run(sgd), 1)
    runs = [entry.commit.run for entry in repo.log()][::-1]
    assert runs == ["a", "a", "b", "a", "c", ""]
    for wrong in ("a\nb", " a", "x" * 2000):
        with pytest.raises(InvalidName, match="the run's name"):
            mvc.Recorder(repo, first.model, run=wrong)
