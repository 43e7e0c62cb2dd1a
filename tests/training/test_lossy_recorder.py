"""The Recorder with lossy pipelines: what is stored is what was deployed, and training goes on."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import mvc
from mvc.codecs.stage import Stage
from mvc.errors import CannotResume, InvalidPipeline, StorageFull, UnknownRevision, WrongUsage
from mvc.lossy.guard import GuardStage
from mvc.lossy.topk import TopKOfEach
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS, STAGES
from mvc.state import ServedVersion
from mvc.training.checks import RecorderOptions
from tests.repo.lc.histories import start
from tests.training.gate import Gate
from tests.training.runs import INPUTS, LABELS, Bits, Net, Run, bits_of, tensor_bits

LSB = "xor | lsb:20 | planes | zstd:1"
LOSSY = sorted(name for name in PRESETS if Pipeline.parse(name).lossy)
STEPS = 16


def run() -> Run:
    return Run(lambda model: torch.optim.RMSprop(model.parameters(), 0.01))


class Served:
    """What ``on_deploy`` was given: commits and bits, in order."""

    def __init__(self) -> None:
        self.versions: list[tuple[Any, Bits]] = []
        self.times: list[int] = []

    def __call__(self, delivered: ServedVersion) -> None:
        self.versions.append((delivered.commit, tensor_bits(delivered.state)))
        self.times.append(delivered.time_ns)


class Judge:
    """Accuracy on a batch, by a network of its own."""

    def __init__(self) -> None:
        self.model = Net().eval()
        self.asked = 0

    def __call__(self, state: Any, data: Any) -> float:
        self.asked += 1
        self.model.load_state_dict(state)
        with torch.no_grad():
            return (self.model(data[0]).argmax(1) == data[1]).float().mean().item()


def batch(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    rows = run.batch()
    return INPUTS[rows], LABELS[rows]


@pytest.mark.parametrize("preset", LOSSY)
def test_what_is_stored_is_what_was_deployed(tmp_path: Path, preset: str) -> None:
    """Every version, from either side, with skipped saves; and the training goes its own way."""
    plain = run()
    for _ in range(STEPS):
        plain.train()
    judge, served = Judge(), Served()
    trained = run()
    repo = start(tmp_path, {"store.reset_interval": 5})
    buffers = []
    with mvc.Recorder(
        repo, trained.model, trained.optimizer, deploy="prod", pipeline=preset,
        on_deploy=served, evaluate=judge,
    ) as recorder:  # fmt: skip
        for _ in range(STEPS):
            data = batch(trained)
            loss = trained.train()
            recorder.step(loss=loss, data=data)
            buffers.append(bits_of(trained.model.norm.running_var))
        recorder.flush()
        report = recorder.report
    assert trained.bits() == plain.bits()
    assert report.durable == len(served.versions) and report.durable + report.skipped == STEPS
    skips = [each for each in Pipeline.parse(preset).decisions if not isinstance(each, GuardStage)]
    assert bool(report.skipped) == bool(skips)
    log = list(repo.log())[::-1]
    assert [entry.id for entry in log] == [commit for commit, _ in served.versions]
    assert {entry.commit.pipeline for entry in log} == {preset}
    for entry, (commit, bits) in zip(log, served.versions, strict=True):
        assert tensor_bits(repo.checkout(commit, path="model.safetensors")) == bits
        step = int(entry.commit.message.removeprefix("step "))
        assert bits["norm.running_var"] == buffers[step - 1]
    states = repo.iter_versions(target="prod", path="model.safetensors")
    assert [tensor_bits(state) for _, state in states] == [bits for _, bits in served.versions]
    assert [d.time_ns for d in repo.deployments("prod")] == served.times
    repo.storage.repack(interval=3)
    for commit, bits in served.versions:
        assert tensor_bits(repo.checkout(commit, path="model.safetensors")) == bits
    assert repo.storage.fsck(full=True).sound
    repo.close()


def test_both_directions_are_walked(tmp_path: Path) -> None:
    """What the test above relies on: some versions come from the reset point behind them."""
    trained = run()
    repo = start(tmp_path, {"store.reset_interval": 6})
    with mvc.Recorder(repo, trained.model, pipeline="vsol-0-fast") as recorder:
        for _ in range(14):
            trained.train()
            recorder.step()
    directions = set()
    for entry in repo.log():
        tensor = next(
            t for t in repo.manifest(entry.id).by_path["model.safetensors"].tensors
            if t.key == "first.weight"
        )  # fmt: skip
        path = repo.handle.store.graph.path(tensor.id)
        directions |= {step.reverse for step in path.steps[1:]}
    assert directions == {True, False}
    repo.close()


def test_step_gives_what_is_to_be_live(tmp_path: Path) -> None:
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    with mvc.Repository.init(tmp_path) as repo, mvc.Recorder(
        repo, model, deploy="prod", pipeline=f"every:1/1 | {LSB}"
    ) as recorder:  # fmt: skip
        assert recorder.production is None
        first = recorder.step(wait=True)
        assert first is not None and first.state["weight"][0, 0] == 1
        with torch.no_grad():
            model.weight.fill_(1.3)
        assert recorder.step(wait=True) is first  # skipped: what is live stays
        assert recorder.report.skipped == 1
        third = recorder.step(wait=True)
        assert third is recorder.production and third is not None
        assert third.state["weight"][0, 0] == 1.25
        assert third.commit == repo.find("HEAD") == repo.live("prod").commit
        assert third.time_ns == repo.live("prod").since_ns
        assert recorder.step() is True
        third.state["weight"].zero_()  # belongs to who got it
        with torch.no_grad():
            model.weight.fill_(1.2)
        fifth = recorder.step(wait=True)
        assert fifth is not None and fifth.state["weight"][0, 0] == 1.125
        assert repo.checkout("HEAD~1")["weight"][0, 0] == 1.25
        assert model.weight[0, 0] == torch.tensor(1.2)


def test_lossless_pipelines_deliver_too(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    served = Served()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, on_deploy=served) as recorder:
            for _ in range(4):
                with torch.no_grad():
                    model.weight.add_(1)
                recorder.step()
        assert [tensor_bits(repo.checkout(c)) for c, _ in served.versions] == [
            bits for _, bits in served.versions
        ]
        with mvc.Recorder(repo, model) as recorder:
            recorder.step()
            recorder.flush()
            assert recorder.production is None  # nobody asked for a copy
            made = recorder.step(wait=True)
            assert made is not None and torch.equal(made.state["weight"], model.weight)


def test_delivered_in_order_once_durable(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    seen: list[Any] = []
    with mvc.Repository.init(tmp_path) as repo:

        def serve(delivered: ServedVersion) -> None:
            with mvc.Repository.open(tmp_path) as other:
                assert other.find("HEAD") == delivered.commit
            seen.append((delivered.commit, threading.current_thread().name))

        with mvc.Recorder(repo, model, pipeline=LSB, on_deploy=serve) as recorder:
            for _ in range(5):
                recorder.step()
        log = [entry.id for entry in repo.log()][::-1]
    assert seen == [(id_, "mvc-recorder") for id_ in log]


def test_a_callback_that_fails_is_told_and_loses_nothing(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    calls = 0

    def serve(delivered: ServedVersion) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("no route to the server")

    with mvc.Repository.init(tmp_path) as repo:
        recorder = mvc.Recorder(repo, model, pipeline=LSB, on_deploy=serve)
        recorder.step()
        recorder.step()
        with pytest.raises(RuntimeError, match="no route"):
            recorder.flush()
        recorder.step()
        recorder.flush()
        assert recorder.report.durable == 3 and recorder.report.failed == 0 and calls == 3
        with pytest.raises(RuntimeError, match="no route"):
            recorder.close()


def test_a_version_that_fails_is_no_base_of_the_next(tmp_path: Path) -> None:
    """What could not be committed was never live: the next one builds on what is."""
    model = nn.Linear(1, 4, bias=False)

    def fill(values: list[float]) -> None:
        with torch.no_grad():
            model.weight.copy_(torch.tensor(values)[:, None])

    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo, {2: StorageFull("no space left")})
        gate.open()
        recorder = mvc.Recorder(repo, model, pipeline="topk:0.25 | xor | sparse | zstd:1")
        fill([0, 0, 0, 0])
        recorder.step(wait=True)
        fill([9, 0, 0, 0])
        recorder.step()
        with pytest.raises(StorageFull):
            recorder.flush()
        fill([9, 8, 0, 0])
        made = recorder.step(wait=True)
        assert made is not None and made.state["weight"][:, 0].tolist() == [9, 0, 0, 0]
        assert repo.checkout()["weight"][:, 0].tolist() == [9, 0, 0, 0]
        with pytest.raises(StorageFull):
            recorder.close()


def test_a_new_recorder_goes_on_from_what_is_deployed(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with mvc.Repository.init(tmp_path) as repo:
        for value, expected in [(1.0, 1.0), (1.3, 1.25)]:
            with torch.no_grad():
                model.weight.fill_(value)
            with mvc.Recorder(repo, model, pipeline=LSB) as recorder:
                recorder.step()
            assert repo.checkout(path="model.safetensors")["weight"][0, 0] == expected
        other = nn.Linear(3, 5)  # another model: a first version
        with mvc.Recorder(repo, other, pipeline=LSB) as recorder:
            made = recorder.step(wait=True)
        assert made is not None and torch.equal(made.state["weight"], other.weight)


def test_dsed_asks_once_and_needs_its_data_at_the_step(tmp_path: Path) -> None:
    trained, judge = run(), Judge()
    with mvc.Repository.init(tmp_path) as repo:
        recorder = mvc.Recorder(
            repo, trained.model, pipeline="xor | dsed:1 | planes | zstd:1", evaluate=judge
        )
        recorder.step(wait=True)
        with pytest.raises(WrongUsage, match="needs the data"):
            recorder.step()
        for _ in range(5):
            data = batch(trained)
            trained.train()
            recorder.step(data=data)
        recorder.flush()
        # Old weights on each batch once; under a bound of 1 no answer of new ones counts.
        assert judge.asked == 5
        assert recorder.close().durable == 1


def test_tied_weights_and_all_layers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
    model[1].weight = model[0].weight
    served = Served()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(
            repo, model, pipeline="topk-all:0.3 | xor | sparse | zstd:1", on_deploy=served
        ) as recorder:
            for _ in range(4):
                with torch.no_grad():
                    model[0].weight.add_(1)  # all distances are equal
                recorder.step()
        for _, bits in served.versions:
            assert bits["0.weight"] == bits["1.weight"]


def test_other_dtypes_and_exact_names(tmp_path: Path) -> None:
    model = nn.Linear(4, 4).to(torch.bfloat16)
    model.register_buffer("mean", torch.rand(3))
    model.register_buffer("count", torch.tensor(3))
    with mvc.Repository.init(tmp_path) as repo, mvc.Recorder(
        repo, model, pipeline=LSB, exact=["bias"]
    ) as recorder:  # fmt: skip
        recorder.step(wait=True)
        with torch.no_grad():
            model.weight.mul_(1.3)
            model.bias.mul_(1.3)
            model.mean.mul_(1.3)
        made = recorder.step(wait=True)
        assert made is not None
        state = model.state_dict()
        for name in ("bias", "mean", "count"):
            assert bits_of(made.state[name]) == bits_of(state[name])
        assert made.state["weight"].dtype == torch.bfloat16
        assert bits_of(made.state["weight"]) != bits_of(state["weight"])
        assert tensor_bits(repo.checkout(path="model.safetensors")) == tensor_bits(made.state)


def test_resume_is_bit_equal_or_refused(tmp_path: Path) -> None:
    whole = run()
    for _ in range(8):
        whole.train()
    trained = run()
    with start(tmp_path, {"store.reset_interval": 5}) as repo:
        with mvc.Recorder(
            repo, trained.model, trained.optimizer, pipeline="vsol-0-fast", keep_training=True
        ) as recorder:
            for _ in range(5):
                trained.train()
                recorder.step(batch=trained.position)
        production = repo.checkout(path="model.safetensors")
        assert tensor_bits(production) != tensor_bits(trained.model.state_dict())
        again = run()
        resumed = mvc.resume(repo, again.model, again.optimizer)
        again.position = resumed.batch
        assert tensor_bits(again.model.state_dict()) == tensor_bits(trained.model.state_dict())
        for _ in range(3):
            again.train()
        assert again.bits() == whole.bits()
        with mvc.Recorder(
            repo, trained.model, trained.optimizer, pipeline="vsol-0-fast"
        ) as recorder:
            recorder.step()
        before = run()
        bits = before.bits()
        with pytest.raises(CannotResume, match="vsol-0-fast") as caught:
            mvc.resume(repo, before.model, before.optimizer)
        assert "keep_training" in (caught.value.hint or "")
        assert before.bits() == bits
        before.model.load_state_dict(repo.checkout(path="model.safetensors"))


def test_optimizer_state_is_exact(tmp_path: Path) -> None:
    trained = run()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(
            repo, trained.model, trained.optimizer, pipeline="vsol-1-fast"
        ) as recorder:
            for _ in range(3):
                loss = trained.train()
                recorder.step(loss=loss)
        kept = repo.checkout(path="model.training.safetensors")
    for name, parameter in trained.model.named_parameters():
        if parameter in trained.optimizer.state:
            live = trained.optimizer.state[parameter]["square_avg"]
            assert bits_of(kept["optimizer"]["state"][name]["square_avg"]) == bits_of(live)
    assert kept["weights"] is None and kept["pipeline"] == "vsol-1-fast"


def test_what_is_refused_at_once(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with mvc.Repository.init(tmp_path) as repo:
        with pytest.raises(WrongUsage, match="dsed:0 compares accuracies"):
            mvc.Recorder(repo, model, pipeline="vsol-0-slow")
        with pytest.raises(InvalidPipeline):
            mvc.Recorder(repo, model, pipeline="lsb:20 | xor")
        with pytest.raises(WrongUsage, match="the model is not recorded"):
            mvc.Recorder(repo, model, pipeline=LSB, include=["rng"])
        with pytest.raises(WrongUsage, match="keep_training is only for lossy"):
            mvc.Recorder(repo, model, keep_training=True)

        class States:
            weights = True

            def model_state(self) -> dict[str, Any]:
                return {"w": torch.ones(3)}

            def training_state(self, step: int, batch: Any) -> dict[str, Any]:
                return {}

        with pytest.raises(WrongUsage, match="are buffers"):
            mvc.Recorder.of(repo, States(), RecorderOptions(pipeline=LSB))
        with mvc.Recorder.of(repo, States(), RecorderOptions(pipeline=LSB, exact=[])) as recorder:
            assert recorder.step(wait=True) is not None
        with mvc.Recorder(repo, model, pipeline="vsol-0.1-fast") as recorder:
            with pytest.raises(WrongUsage, match="loss"):
                recorder.step()
            assert recorder.report.taken == 0


def test_drift_watches_the_batches(tmp_path: Path) -> None:
    pytest.importorskip("river")
    model = nn.Linear(2, 2)
    random = np.random.default_rng(1)
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, pipeline=f"drift:adwin | {LSB}") as recorder:
            for i in range(30):
                data = random.normal(3.0 * (i >= 20), 0.1, (40, 2)), np.zeros(40)
                recorder.step(data=data)
        steps = [int(e.commit.message.split()[1]) for e in repo.log()][::-1]
    assert steps[0] == 1 and 21 <= steps[1] <= 24


@pytest.mark.parametrize("resumed", [False, True])
def test_a_drift_after_a_restart_is_saved(tmp_path: Path, resumed: bool) -> None:
    """The detector needs the data of before: by itself, the data after shows no change."""
    pytest.importorskip("river")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    random = np.random.default_rng(1)
    options: dict[str, Any] = {"pipeline": f"drift:adwin | {LSB}", "keep_training": True}

    def train(recorder: mvc.Recorder, mean: float, steps: int) -> None:
        for _ in range(steps):
            recorder.step(data=(random.normal(mean, 0.1, (40, 2)), np.zeros(40)))

    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, optimizer, **options) as recorder:
            train(recorder, 0.0, 20)
        assert recorder.report.durable == 1 and recorder.report.skipped == 19
        with mvc.Recorder(repo, model, optimizer, **options) as recorder:
            train(recorder, 3.0, 10)
        assert recorder.report.durable == 1
        if resumed:  # as of the drift: the record of what came later does not count
            start = mvc.resume(repo, model, optimizer)
            with mvc.Recorder(repo, model, optimizer, start=start, **options) as recorder:
                train(recorder, 3.0, 10)
            assert recorder.report.durable == 0
            with mvc.Recorder(repo, model, optimizer, **options) as recorder:
                train(recorder, 0.0, 10)
            assert recorder.report.durable == 1
        assert not repo.storage.fsck(full=True).problems


def test_other_decisions_survive_a_restart(tmp_path: Path) -> None:
    """Of ``every`` the phase, of ``dsed`` the batches since the save."""
    pipeline = "every:2/3 | topk:0.5,loss=linear | xor | dsed:0 | sparse | zstd:1"
    found = []
    for name, restarts in (("a", (12,)), ("b", (1, 3, 2, 1, 5))):
        torch.manual_seed(0)
        trained, judge = run(), Judge()
        with mvc.Repository.init(tmp_path / name) as repo:
            for steps in restarts:
                with mvc.Recorder(
                    repo, trained.model, pipeline=pipeline, evaluate=judge
                ) as recorder:
                    for _ in range(steps):
                        data = batch(trained)
                        recorder.step(loss=trained.train() / 10, data=data)
            states = [tensor_bits(repo.checkout(entry.id, path="model.safetensors"))
                      for entry in repo.log()]  # fmt: skip
            found.append((states, judge.asked))
    assert found[0] == found[1]
    assert 1 < len(found[0][0]) < 12


class Same:
    """Every sample is right if the first layer is that of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.weight = model.get_parameter("first.weight")
        self.asked = 0

    def __call__(self, state: Any, data: Any) -> torch.Tensor:
        self.asked += 1
        return torch.full((len(data[1]),), bool((state["first.weight"] == self.weight).all()))


def test_the_guard_knows_its_level_after_a_restart(tmp_path: Path) -> None:
    trained = run()
    judge = Same(trained.model)
    pipeline = "grid:8 | steps | guard:0.01 | gaps | zstd:huff"
    with mvc.Repository.init(tmp_path) as repo:
        for most_asked in (20, 2):
            judge.asked = 0
            with mvc.Recorder(repo, trained.model, pipeline=pipeline, evaluate=judge) as recorder:
                data = tuple(part.repeat_interleave(4, 0) for part in batch(trained))
                trained.train()
                recorder.step(data=data, wait=True)
                live = tensor_bits(recorder.production.state)
            assert live == tensor_bits(trained.model.state_dict())
            assert 2 <= judge.asked <= most_asked
        with pytest.raises(WrongUsage, match=r"guard:0.01 compares accuracies"):
            mvc.Recorder(repo, trained.model, pipeline=pipeline)
        assert repo.storage.fsck(full=True).sound


@pytest.mark.parametrize("how", ["a terabyte", "garbage"])
def test_a_forged_file_of_decisions_is_passed_over(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    trained = run()
    with mvc.Repository.init(tmp_path) as repo:
        for again in (False, True):
            with mvc.Recorder(repo, trained.model, pipeline="every:1/2 | xor | sparse") as recorder:
                for _ in range(2):
                    trained.train()
                    recorder.step()
            (file,) = (tmp_path / ".mvc/decisions").iterdir()
            assert 0 < file.stat().st_size < 1 << 20, "written anew"
            if not again:
                file.write_bytes(b"x" * 99)
                os.truncate(file, 1 << 40 if how == "a terabyte" else 99)
        assert repo.storage.fsck(full=True).sound


class _Carrying(TopKOfEach, frozen=True):
    """As a program wrote it that knew one option more."""

    usage = TopKOfEach.usage

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        known = TopKOfEach.read(name, parameter.removesuffix(",carry"))
        return replace(known, text=f"{known.text},carry")


def test_a_version_of_a_pipeline_that_is_not_known_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is told as it is; its bits, and the training that it kept, need none of it."""
    text = "every:2/1 | topk:0.5,loss=linear,carry | xor | sparse | zstd:1"
    trained, served = run(), Served()
    with mvc.Repository.init(tmp_path) as repo:
        monkeypatch.setitem(STAGES, "topk", _Carrying)
        with mvc.Recorder(
            repo, trained.model, trained.optimizer, pipeline=text, keep_training=True,
            on_deploy=served,
        ) as recorder:  # fmt: skip
            for _ in range(5):
                recorder.step(loss=trained.train())
        monkeypatch.undo()
        Pipeline.parse.cache_clear()
        with pytest.raises(InvalidPipeline, match="has no option 'carry'"):
            Pipeline.parse(text)
        assert {entry.commit.pipeline for entry in repo.log()} == {text}
        for commit, bits in served.versions:
            assert tensor_bits(repo.checkout(commit, path="model.safetensors")) == bits
        again = run()
        mvc.resume(repo, again.model, again.optimizer)
        assert tensor_bits(again.model.state_dict()) == tensor_bits(trained.model.state_dict())
        known = text.replace(",carry", "")
        with mvc.Recorder(repo, again.model, again.optimizer, pipeline=known) as recorder:
            recorder.step(loss=again.train())
        assert recorder.report.durable == 1
        repo.storage.repack(interval=2)
        assert repo.storage.fsck(full=True).sound


@pytest.mark.parametrize("pipeline", [None, LSB, "every:1/1 | lc:x=3"])
def test_served_before_it_is_stored(tmp_path: Path, pipeline: str | None) -> None:
    """Under the id that it gets, and with the time of its deployment; ``production`` is later."""
    model, served, seen = nn.Linear(8, 8), Served(), []
    with mvc.Repository.init(tmp_path) as repo:

        def serve(delivered: ServedVersion) -> None:
            with mvc.Repository.open(tmp_path) as other:
                with pytest.raises(UnknownRevision):
                    other.find(str(delivered.commit))
                assert delivered.time_ns <= other.time()
            seen.append(recorder.production)
            served(delivered)

        with mvc.Recorder(
            repo, model, deploy="prod", pipeline=pipeline, on_deploy=serve, deploy_first=True
        ) as recorder:
            began = repo.time()
            for _ in range(5):
                with torch.no_grad():
                    model.weight.add_(torch.randn(8, 8))
                recorder.step(wait=True)
                made = recorder.production
                assert made is not None and made.commit == repo.live("prod").commit
        log = [entry.id for entry in repo.log()][::-1]
        assert log == [commit for commit, _ in served.versions]
        assert [None if each is None else each.commit for each in seen] == [None, *log[:-1]]
        for commit, bits in served.versions:
            assert tensor_bits(repo.checkout(commit, path="model.safetensors")) == bits
        assert [d.time_ns for d in repo.deployments("prod")] == served.times
        assert began < served.times[0]
        for before, after, moment in zip(log, log[1:], served.times[1:], strict=False):
            assert repo.live("prod", at=moment - 1).commit == before
            assert repo.live("prod", at=moment).commit == after


def test_served_first_and_not_stored(tmp_path: Path) -> None:
    """A commit that fails: the version is not live in the store, nor the base of the next one."""
    model, served = nn.Linear(1, 4, bias=False), Served()
    with mvc.Repository.init(tmp_path) as repo:
        Gate(repo, {2: StorageFull("no space left")}).open()
        recorder = mvc.Recorder(
            repo, model, deploy="prod", pipeline="topk:0.25 | xor | sparse | zstd:1",
            on_deploy=served, deploy_first=True,
        )  # fmt: skip
        for values in ([0.0, 0, 0, 0], [9.0, 0, 0, 0], [9.0, 8, 0, 0]):
            with torch.no_grad():
                model.weight.copy_(torch.tensor(values)[:, None])
            recorder.step()
            if values[1] == 0 and values[0] == 9:
                with pytest.raises(StorageFull):
                    recorder.flush()
                assert recorder.report.failed == 1
                assert recorder.production.commit == served.versions[0][0]
        recorder.flush()
        (first, _), (lost, bits), (third, again) = served.versions
        assert [entry.id for entry in repo.log()] == [third, first] and bits == again
        with pytest.raises(UnknownRevision):
            repo.find(str(lost))
        assert repo.live("prod", at=served.times[1]).commit == first
        assert [d.time_ns for d in repo.deployments("prod")] == [served.times[0], served.times[2]]
        with pytest.raises(StorageFull):
            recorder.close()


def test_what_cannot_be_served_is_not_stored(tmp_path: Path) -> None:
    def refuse(delivered: ServedVersion) -> None:
        if len(asked) < 3:
            asked.append(delivered.commit)
            raise RuntimeError("no route to the server")

    asked: list[Any] = []
    with mvc.Repository.init(tmp_path) as repo:
        recorder = mvc.Recorder(
            repo, nn.Linear(2, 2), pipeline=LSB, deploy="prod", on_deploy=refuse, deploy_first=True
        )
        for _ in range(3):
            recorder.step()
            with pytest.raises(RuntimeError, match="no route"):
                recorder.flush()
        recorder.step(wait=True)
        assert (recorder.report.failed, recorder.report.durable) == (3, 1)
        assert len(list(repo.log())) == len(list(repo.deployments("prod"))) == 1
        with pytest.raises(RuntimeError, match="no route"):
            recorder.close()
        with pytest.raises(WrongUsage, match="deploy_first needs on_deploy"):
            mvc.Recorder(repo, nn.Linear(2, 2), deploy_first=True)


@pytest.mark.parametrize("target", ["prod", None])
def test_served_first_and_overtaken(tmp_path: Path, target: str | None) -> None:
    """Somebody commits between: the version gets another id, and is served again under that one."""
    served = Served()
    with mvc.Repository.init(tmp_path) as repo:

        def serve(delivered: ServedVersion) -> None:
            if not served.versions:
                with mvc.Repository.open(tmp_path) as other:
                    other.commit({"w": torch.zeros(2)}, path="other.safetensors")
            served(delivered)

        with mvc.Recorder(
            repo, nn.Linear(2, 2), pipeline=LSB, deploy=target, on_deploy=serve, deploy_first=True
        ) as recorder:
            made = recorder.step(wait=True)
        (foreseen, bits), (stored, again) = served.versions
        assert made is not None and made.commit == stored == repo.head("main").commit != foreseen
        assert bits == again == tensor_bits(repo.checkout(stored, path="model.safetensors"))
        assert served.times[0] == served.times[1] == made.time_ns
        if target is not None:
            live = repo.live(target)
            assert (live.commit, live.since_ns) == (stored, made.time_ns)
