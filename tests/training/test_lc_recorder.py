"""The Recorder with approximated checkpoints: asynchronous, resumable, joined meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mvc
from mvc.api import Storage
from mvc.errors import DamagedData, WrongUsage
from mvc.lossy import reducer
from mvc.maintenance.repack.super_steps import SuperStep
from mvc.pipelines.pipeline import Pipeline
from mvc.state import ServedVersion, StateFile
from mvc.testing import fresh_process, open_quietly
from mvc.training import approximator
from mvc.training.state.optimizers import bound_moments
from tests.repo.lc.histories import start
from tests.training.runs import Run, tensor_bits

LC = "lc:x=3"
TRAINING = "model.training.safetensors"


def adam() -> Run:
    return Run(
        lambda model: torch.optim.Adam(model.parameters(), 0.01, amsgrad=True),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3),
    )


def momentum() -> Run:
    return Run(lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))


def record(
    repo: mvc.Repository, run: Run, steps: int, pipeline: str | None = LC, **options: Any
) -> dict[Any, dict[str, bytes]]:
    """Records a training; what each version stored of the model, by commit."""
    served = {}

    def told(version: ServedVersion) -> None:
        served[version.commit] = tensor_bits(version.state)

    with mvc.Recorder(
        repo, run.model, run.optimizer, pipeline=pipeline, on_deploy=told, **run.parts, **options
    ) as recorder:
        for number in range(steps):
            recorder.step(run.train(), batch=number)
    assert recorder.report.durable == steps
    return served


def check(repo: mvc.Repository, served: dict[Any, dict[str, bytes]]) -> None:
    fresh_process()
    with open_quietly(repo.root) as other:
        for commit, expected in served.items():
            state = other.checkout(commit, path="model.safetensors")
            assert tensor_bits(state) == expected


@pytest.mark.parametrize("make", [adam, momentum])
def test_resuming_gives_an_approximate_state_and_exact_counters(tmp_path: Path, make: Any) -> None:
    with start(tmp_path) as repo:
        run = make()
        served = record(repo, run, 12)
        check(repo, served)
        expected = torch.get_rng_state(), np.random.get_state()[1].tobytes()
        other = make()
        resumed = mvc.resume(repo, other.model, other.optimizer, **other.parts)
        assert (resumed.step, resumed.batch) == (12, 11)
        assert "state: approximated by lc:x=3, not exact" in resumed.differs
        assert torch.equal(torch.get_rng_state(), expected[0])
        assert np.random.get_state()[1].tobytes() == expected[1]
        if run.scheduler is not None:
            assert other.scheduler.state_dict() == run.scheduler.state_dict()
        for name, mine in run.model.state_dict().items():
            theirs = other.model.state_dict()[name]
            if name.startswith("norm.running") or not mine.is_floating_point():
                assert torch.equal(mine, theirs)  # buffers are no weights
            else:
                torch.testing.assert_close(theirs, mine, rtol=0.2, atol=0.02)
        slots, others = run.optimizer.state.values(), other.optimizer.state.values()
        for name in next(iter(slots)):
            scale = max(float(values[name].abs().max()) for values in slots)
            for mine, theirs in zip(slots, others, strict=True):
                if name == "step":
                    assert torch.equal(mine[name], theirs[name])
                    continue
                error = float((mine[name] - theirs[name]).abs().max())
                assert error < 0.3 * scale
                assert "sq" not in name or bool((theirs[name] >= 0).all())


def test_the_training_itself_is_not_changed(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        one, other = adam(), adam()
        for _ in range(6):
            other.train()
        torch.manual_seed(0), np.random.seed(0)
        one = adam()
        record(repo, one, 6)
        assert tensor_bits(one.model.state_dict()) == tensor_bits(other.model.state_dict())


def test_training_goes_on_and_is_recorded_again(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        served = record(repo, adam(), 5)
        other = adam()
        resumed = mvc.resume(repo, other.model, other.optimizer, **other.parts)
        served |= record(repo, other, 5, start=resumed)
        check(repo, served)
        messages = [entry.commit.message for entry in repo.log()]
        assert f"step 6 (resumed from {resumed.commit.short})" in messages
        assert repo.storage.fsck(full=True).sound
        served |= record(repo, other, 2, pipeline="lossless")
        served |= record(repo, other, 2)
        check(repo, served)


@pytest.mark.parametrize("pipeline", [LC, "topk:0.25 | xor | sparse | zstd:1"])
def test_what_a_recorder_reads_is_no_query(tmp_path: Path, pipeline: str) -> None:
    with start(tmp_path) as repo:
        for _ in range(2):  # the second one goes on from what the first one stored
            run = adam()
            with mvc.Recorder(repo, run.model, run.optimizer, pipeline=pipeline) as recorder:
                recorder.step(run.train())
        assert repo.storage.queries().asked == {}


def test_only_the_writer_thread_quantises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    quantise = reducer.quantise

    def noted(*args: Any, **options: Any) -> Any:
        threads.add(threading.current_thread().name)
        return quantise(*args, **options)

    monkeypatch.setattr(reducer, "quantise", noted)
    with start(tmp_path) as repo:
        record(repo, momentum(), 3)
    assert threads == {"mvc-recorder"}


def test_steps_are_joined_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximator, "DUE", 8)
    with start(tmp_path) as repo:
        served = record(repo, momentum(), 26, "lc:x=2,huffman")
        check(repo, served)
        assert repo.storage.fsck(full=True).sound
        assert "repack" in {operation.entry.operation for operation in repo.operations()}


def test_a_run_that_would_grow_is_considered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def grown(self: SuperStep, _: object) -> tuple[bytes, list[bytes]]:
        runs.append({record.header.members[i].id for chain in self.chains for record, i in chain})
        return b"", [bytes(1 << 22)]

    monkeypatch.setattr(approximator, "DUE", 8)
    monkeypatch.setattr(SuperStep, "encode", grown)
    with start(tmp_path) as repo:
        record(repo, momentum(), 26)
    assert runs
    assert sum(map(len, runs)) == len(set().union(*runs))


@pytest.mark.parametrize("error", [MemoryError(), DamagedData("a bad record")])
def test_a_failure_to_join_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_: object, since: int) -> int:
        raise error

    monkeypatch.setattr(approximator, "DUE", 2)
    monkeypatch.setattr(Storage, "join_steps", fails)
    with start(tmp_path) as repo:
        with pytest.warns(RuntimeWarning, match="not joined") as told:
            served = record(repo, momentum(), 6)
        (text,) = [str(w.message) for w in told if "not joined" in str(w.message)]
        assert "repo.storage.join_steps() joins the deltas later" in text
        assert "\n" not in text
        check(repo, served)


def test_a_large_first_moment_in_half_precision() -> None:
    """Its square is no float16."""
    slot = {"exp_avg": torch.tensor([300.0, 1.0]).half(), "exp_avg_sq": torch.zeros(2).half()}
    group = {"names": ["w"], "values": {"betas": (0.9, 0.999)}}
    bound_moments({"groups": [group], "state": {"w": slot}})
    assert bool(slot["exp_avg_sq"].isfinite().all())
    assert 1500 < float(slot["exp_avg_sq"][0]) < 1800


def test_the_setting_is_for_recorders_too(tmp_path: Path) -> None:
    with start(tmp_path, {"commit.pipeline": "lc:x=2"}) as repo:
        run = momentum()
        served = record(repo, run, 3, None)
        check(repo, served)
        assert list(served.values())[-1] != tensor_bits(run.model.state_dict())


def test_reset_points(tmp_path: Path) -> None:
    with start(tmp_path, {"store.reset_interval": 4}) as repo:
        served = record(repo, momentum(), 10)
        check(repo, served)
        assert repo.storage.stats().reset_points == 3


def test_the_model_alone_or_the_rest(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        served = record(repo, adam(), 3, include=["model"])
        check(repo, served)
        run = adam()
        with mvc.Recorder(
            repo, run.model, run.optimizer, pipeline=LC, include=["optimizer", "rng"]
        ) as recorder:
            for _ in range(3):
                run.train()
                recorder.step()
        assert repo.checkout(path=TRAINING)["optimizer"]["state"]


@pytest.mark.parametrize("pipeline", [LC, f"every:1/2 | {LC}"])
def test_production_weights_are_something_else(tmp_path: Path, pipeline: str) -> None:
    with start(tmp_path) as repo, pytest.raises(WrongUsage, match="keep_training"):
        mvc.Recorder(repo, adam().model, pipeline=pipeline, keep_training=True)


@pytest.mark.parametrize("runs", [(10,), (2, 3, 5)])
def test_every_third_version_is_an_approximation(tmp_path: Path, runs: tuple[int, ...]) -> None:
    """As if only these steps were recorded at all, also where the Recorder starts anew between."""
    stored, line = [], f"every:1/2 | {LC}"
    for decides in (True, False):
        with start(tmp_path / str(decides)) as repo:
            run = adam()
            for steps in runs:
                with mvc.Recorder(
                    repo, run.model, run.optimizer, pipeline=line if decides else LC,
                    start=run.position, **run.parts,
                ) as recorder:  # fmt: skip
                    for _ in range(steps):
                        run.train()
                        if decides or run.position % 3 == 1:
                            recorder.step(number=run.position)
            stored.append({
                entry.commit.message: (
                    tensor_bits(repo.checkout(entry.id, path="model.safetensors")),
                    StateFile.of(repo.checkout(entry.id, path=TRAINING)["optimizer"]).root,
                )
                for entry in repo.log()
            })  # fmt: skip
            assert repo.storage.fsck(full=True).sound
            if decides:
                assert {e.commit.pipeline for e in repo.log()} == {Pipeline.parse(line).text}
                other = adam()
                resumed = mvc.resume(repo, other.model, other.optimizer, **other.parts)
                assert resumed.step == 10
                assert f"state: approximated by {line}, not exact" in resumed.differs
    assert list(stored[0]) == [f"step {number}" for number in (10, 7, 4, 1)]
    assert stored[0] == stored[1]


def test_no_step_is_divided_by_a_second_moment_that_was_left_out(tmp_path: Path) -> None:
    """The second row is trained for the first time when the moments of the first one are large."""
    weight = torch.nn.Embedding(2, 4)
    optimizer = torch.optim.Adam(weight.parameters(), 1e-3)

    def train(late: float) -> None:
        optimizer.zero_grad()
        (weight.weight * torch.tensor([[1.0], [late]])).sum().backward()
        optimizer.step()

    with start(tmp_path) as repo:
        with mvc.Recorder(repo, weight, optimizer, pipeline="lc:x=1") as recorder:
            for _ in range(50):
                train(0)
            recorder.step()
            train(0.02)
            recorder.step()
        (slot,) = repo.checkout(path=TRAINING)["optimizer"]["state"].values()
        assert bool((slot["exp_avg"][1] > 0).all()) and not bool(slot["exp_avg_sq"][1].any())
        other = torch.nn.Embedding(2, 4)
        again = torch.optim.Adam(other.parameters(), 1e-3)
        mvc.resume(repo, other, again)
    before = other.weight.detach().clone()
    other.weight.grad = torch.zeros_like(other.weight)
    again.step()
    assert float((other.weight.detach() - before).abs().max()) < 0.02


def test_super_steps_of_a_whole_training_take_no_more_bytes(tmp_path: Path) -> None:
    with start(tmp_path, {"store.reset_interval": 16}) as repo:
        record(repo, adam(), 40)
        before = repo.storage.repack(dry_run=True).plan.before.bytes
        repo.storage.join_steps()
        assert repo.storage.repack(dry_run=True).plan.before.bytes <= before
