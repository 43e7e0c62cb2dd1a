"""What is committed is the state at the call; queues, failures, memory, ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import InvalidConfig, InvalidPipeline, StorageFull, UnsupportedTensor, WrongUsage
from mvc.model.hashing import BlobHasher
from mvc.training.checks import RecorderOptions
from mvc.training.staging import Slot
from tests.training.gate import Gate
from tests.training.runs import Bits, tensor_bits

PROJECT = Path(__file__).parents[2]


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape))


def versions(repo: mvc.Repository) -> list[Bits]:
    """The model's bits from oldest to newest."""
    found = [tensor_bits(repo.checkout(entry.id, path="model.safetensors")) for entry in repo.log()]
    return found[::-1]


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_every_version_is_the_state_at_its_call(tmp_path: Path) -> None:
    model = small()
    expected = []
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, deploy="prod", metrics={"seed": 1}) as recorder:
            for i in range(6):
                change(model)
                expected.append(tensor_bits(model.state_dict()))
                assert recorder.step(loss=torch.tensor(i / 4), metrics={"acc": i})
            recorder.flush()
            assert recorder.report.durable == 6
            assert recorder.report.newest is not None
            assert recorder.report.newest.id == repo.find("HEAD")
            assert recorder.report.newest.state is None  # its buffers are used again
            assert recorder.report.newest_step == 6
        assert versions(repo) == expected
        log = list(repo.log())[::-1]
        assert [e.commit.message for e in log] == [f"step {i}" for i in range(1, 7)]
        assert [e.commit.metrics for e in log] == [
            {"seed": 1, "acc": i, "loss": i / 4} for i in range(6)
        ]
        assert repo.live("prod").commit == log[-1].id
        assert tensor_bits(repo.checkout(target="prod")) == expected[-1]  # weights by themselves


def test_a_state_is_hashed_once_and_what_was_encoded_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, hashed = BlobHasher.update, []

    def counted(hasher: BlobHasher, data: Any) -> None:
        hashed.append(memoryview(data).nbytes)
        update(hasher, data)

    monkeypatch.setattr(BlobHasher, "update", counted)
    model = nn.Linear(1000, 1000, bias=False)
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, include=["model"]) as recorder:
            for _ in range(2):
                change(model)
                recorder.step()
        assert sum(n for n in hashed if n > 1_000_000) == 2 * 2 * 4_000_000
        assert tensor_bits(repo.checkout()) == tensor_bits(model.state_dict())


def test_weights_that_change_while_they_are_written(tmp_path: Path) -> None:
    """A thread never stops changing all weights together; each version is of one moment."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(2000)) for _ in range(30)])
    lock = threading.Lock()
    done = threading.Event()

    def train() -> None:
        while not done.is_set():
            with lock, torch.no_grad():  # one step of the optimizer
                for parameter in model:
                    parameter.add_(1)

    taken = []
    with mvc.Repository.init(tmp_path) as repo:
        trainer = in_thread(train)
        try:
            with mvc.Recorder(repo, model, when_full="block") as recorder:
                for _ in range(8):
                    with lock:  # where the training calls step
                        taken.append(model[0][0].item())
                        recorder.step()
        finally:
            done.set()
            trainer.join()
        seen = [repo.checkout(e.id, path="model.safetensors") for e in repo.log()][::-1]
    assert [{float(v) for t in state.values() for v in t} for state in seen] == [
        {value} for value in taken
    ]


def test_numbers_are_those_of_the_call(tmp_path: Path) -> None:
    """Learning rate, scheduler, generators and the position move on while the version waits."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    position = {"epoch": 0, "seen": [1, 2]}
    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo)
        with mvc.Recorder(repo, model, optimizer, scheduler=scheduler) as recorder:
            rng = torch.get_rng_state()
            recorder.step(batch=position)
            optimizer.step()
            scheduler.step()
            torch.randn(3)
            position["seen"].append(3)
            gate.open()
        kept = repo.checkout(path="model.training.safetensors")
    assert kept["step"] == 1
    assert kept["batch"] == {"epoch": 0, "seen": [1, 2]}
    assert kept["optimizer"]["groups"][0]["values"]["lr"] == 1.0
    assert kept["scheduler"]["last_epoch"] == 0
    assert kept["scheduler"]["_last_lr"] == [1.0]
    assert torch.equal(kept["rng"]["torch"], rng)


def test_deployed_as_of_the_call(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        clock = repo.handle.store.clock
        gate = Gate(repo)
        around = []
        with mvc.Recorder(repo, model, deploy="prod") as recorder:
            for _ in range(2):
                change(model)
                before = clock.now_ns()
                recorder.step()
                around.append((before, clock.now_ns(), tensor_bits(model.state_dict())))
            written_after = clock.now_ns()
            gate.open()
        found = repo.deployments("prod")
        for deployed, (before, after, bits) in zip(found, around, strict=True):
            assert before <= deployed.time_ns <= after < written_after <= deployed.recorded_ns
            assert tensor_bits(repo.checkout(at=after, target="prod")) == bits
        assert [e.commit.time_ns for e in repo.log()][::-1] == [d.time_ns for d in found]
        assert repo.live("prod").commit == repo.find("HEAD")


def test_block_waits_for_room_and_then_takes_the_state_as_it_is(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo)
        with mvc.Recorder(repo, model) as recorder:
            recorder.step()
            gate.begun.acquire()
            change(model)
            recorder.step()
            change(model)
            third = in_thread(recorder.step)
            third.join(0.2)
            assert third.is_alive()
            assert recorder.report.taken == 2
            change(model)
            expected = tensor_bits(model.state_dict())
            gate.let()
            third.join()
            gate.open()
        assert recorder.report.durable == 3
        assert versions(repo)[2] == expected


def test_coalesce_keeps_the_newest(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo)
        expected = []
        with mvc.Recorder(repo, model, when_full="coalesce") as recorder:
            for i in range(6):
                change(model)
                expected.append(tensor_bits(model.state_dict()))
                assert recorder.step()
                if i == 0:
                    gate.begun.acquire()
            gate.open()
        report = recorder.report
        assert (report.taken, report.durable, report.coalesced, report.dropped) == (6, 2, 4, 0)
        assert versions(repo) == [expected[0], expected[5]]
        assert [e.commit.message for e in repo.log()] == ["step 6", "step 1"]


def test_drop_leaves_out_and_counts(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo)
        with mvc.Recorder(repo, model, when_full="drop", deploy="prod") as recorder:
            taken = []
            for i in range(5):
                taken.append(recorder.step())
                if i == 0:
                    gate.begun.acquire()
            gate.open()
            recorder.flush()
            taken.append(recorder.step())
        report = recorder.close()
        assert taken == [True, True, False, False, False, True]
        assert (report.steps, report.durable, report.dropped, report.coalesced) == (6, 3, 3, 0)
        assert [e.commit.message for e in repo.log()] == ["step 6", "step 2", "step 1"]


def test_more_room_holds_more_states(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo)
        with mvc.Recorder(repo, model, when_full="drop", queue_bytes=100_000) as recorder:
            while recorder.step():
                assert recorder.report.waiting_bytes <= 100_000
            assert recorder.report.taken > 3
            gate.open()
        assert recorder.report.peak_bytes <= 100_000
        assert recorder.report.waiting_bytes == 0


@pytest.mark.parametrize("mode", ["block", "coalesce", "drop"])
def test_at_most_two_states_are_staged(tmp_path: Path, mode: str) -> None:
    """2.4 MB of weights in the process: buffers made, and bytes held at the peak."""
    model = nn.ParameterList([nn.Parameter(torch.randn(100_000)) for _ in range(6)])
    size = sum(p.numel() * 4 for p in model)
    others = slots()  # of recorders that tests before this one have left open
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, when_full=mode, include=["model"]) as recorder:
            for _ in range(8):
                recorder.step()
                assert sum(staged(others)) <= 2 * size
            recorder.flush()
            assert 1 <= len(staged(others)) <= 2
            assert sum(staged(others)) <= 2 * size
            assert recorder.report.peak_bytes <= 2 * size
        assert staged(others) == []  # nothing is kept after the end


def staged(besides: Sequence[Slot] = ()) -> list[int]:
    """Bytes of each state for which this process has buffers."""
    return [each.nbytes for each in slots() if all(each is not other for other in besides)]


def slots() -> list[Slot]:
    return [each for each in gc.get_objects() if type(each) is Slot and each.nbytes]


def test_requirements_in_place_of_a_pipeline(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, pipeline=mvc.Requirements(60, lossy=True)) as recorder:
            recorder.step()
        assert repo.version().pipeline == "frontier-0"
        recorder = mvc.Recorder(repo, model, pipeline=mvc.Requirements(1e-7))
        change(model)
        recorder.step()
        with pytest.raises(InvalidConfig, match="max_recovery is 1e-07 s"):
            recorder.close()
        with pytest.raises(WrongUsage, match="pipeline is of type list"):
            mvc.Recorder(repo, model, pipeline=["xor"])  # type: ignore[arg-type]
    options = RecorderOptions.of({"pipeline": mvc.Requirements(2, lossy=True), "deploy": "prod"})
    assert (options.pipeline, options.max_recovery, options.deploy) == ("frontier-0", 2, "prod")


def test_every_third_step(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, every=3, start=10) as recorder:
            assert [recorder.step() for _ in range(7)] == [False, False, True] * 2 + [False]
        assert [e.commit.message for e in repo.log()] == ["step 16", "step 13"]
        assert recorder.report.steps == 7


def test_include_says_what_is_kept(tmp_path: Path) -> None:
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, optimizer, include=["model"], name="a.safetensors") as rec:
            rec.step()
        kept = repo.checkout(path="a.training.safetensors")
        assert (kept["optimizer"], kept["rng"]) == (None, None)
        for wrong in (["modle"], ["scaler"], ["optimizer", "scheduler"]):
            with pytest.raises(WrongUsage, match="include names"):
                mvc.Recorder(repo, model, optimizer, include=wrong)


def test_refuses_wrong_settings_before_anything_runs(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        before = threading.active_count()
        for options, error in (
            ({"when_full": "wait"}, WrongUsage),
            ({"every": 0}, WrongUsage),
            ({"queue_bytes": -1}, WrongUsage),
            ({"pipeline": "zap"}, InvalidPipeline),
            ({"deploy": "no good"}, mvc.MvcError),
            ({"name": "../x"}, mvc.MvcError),
        ):
            with pytest.raises(error):
                mvc.Recorder(repo, small(), **options)
        assert threading.active_count() == before


def test_what_cannot_be_kept_is_refused_by_the_step(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        recorder = mvc.Recorder(repo, nn.Linear(2, 2, device="meta"))
        with pytest.raises(UnsupportedTensor, match=r"model\.weight is .*device meta"):
            recorder.step()
        assert recorder.close().taken == 0
        with mvc.Recorder(repo, small()) as recorder:
            with pytest.raises(UnsupportedTensor, match=r"training\.batch is of type"):
                recorder.step(batch=object())
            with pytest.raises(WrongUsage, match="metric 'loss' is not a number"):
                recorder.step(loss="low")
            recorder.step()
        assert recorder.report.durable == 1


def test_a_failure_surfaces_at_the_next_step_and_at_close(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo, {2: StorageFull("no space left")})
        gate.open()
        recorder = mvc.Recorder(repo, model)
        recorder.step()
        recorder.step()
        while recorder.report.durable + recorder.report.failed < 2:
            time.sleep(0.01)
        with pytest.raises(StorageFull, match="no space left"):
            recorder.step()
        change(model)
        recorder.step()  # told once; the training may go on
        with pytest.raises(StorageFull):
            recorder.close()
        report = recorder.close()
        assert (report.taken, report.durable, report.failed) == (3, 2, 1)
        assert versions(repo)[-1] == tensor_bits(model.state_dict())


def test_a_failure_surfaces_at_flush_and_while_a_step_waits(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo, {1: MemoryError("no memory"), 2: StorageFull("no space")})
        recorder = mvc.Recorder(repo, small())
        recorder.step()
        recorder.step()
        threading.Timer(0.1, gate.let).start()
        with pytest.raises(MemoryError):
            recorder.step()  # waits for room, which the failure makes
        gate.open()
        with pytest.raises(StorageFull):
            recorder.flush()
        recorder.step()
        with pytest.raises(MemoryError):
            recorder.close()
        assert recorder.report.durable == 1


def test_an_exception_in_the_loop_completes_what_is_queued(tmp_path: Path) -> None:
    model = small()
    with mvc.Repository.init(tmp_path) as repo:
        gate = Gate(repo, {1: StorageFull("no space left")})
        with pytest.raises(KeyboardInterrupt) as raised:
            with mvc.Recorder(repo, model):
                pass
            with mvc.Recorder(repo, model) as recorder:
                recorder.step()
                recorder.step()
                gate.open()
                raise KeyboardInterrupt
        assert recorder.report.durable == 1
        assert raised.value.__notes__ == [
            "mvc: a version could not be recorded either: no space left"
        ]
        assert len(versions(repo)) == 1


def test_closing_the_repository_closes_the_recorder_first(tmp_path: Path) -> None:
    model = small()
    repo = mvc.Repository.init(tmp_path)
    recorder = mvc.Recorder(repo, model)
    for _ in range(5):
        recorder.step()
    repo.close()
    assert recorder.report.durable == 5
    with pytest.raises(WrongUsage, match="closed"):
        recorder.step()
    with pytest.raises(WrongUsage, match="closed"):
        recorder.flush()


def test_watch_records_every_step_of_the_optimizer(tmp_path: Path) -> None:
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    expected = []

    def batch() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()

    with mvc.Repository.init(tmp_path) as repo:
        recorder = mvc.watch(repo, model, optimizer, deploy="prod")
        for _ in range(4):
            batch()
            expected.append(tensor_bits(model.state_dict()))
        recorder.close()
        batch()  # the hook is gone
        assert versions(repo) == expected
        again = small()
        assert mvc.resume(repo, again, torch.optim.Adam(again.parameters())).step == 4
        assert tensor_bits(again.state_dict()) == expected[-1]
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        with pytest.raises(WrongUsage, match="cannot record a scheduler"):
            mvc.watch(repo, model, optimizer, scheduler=scheduler)


SCRIPT = """
import sys, torch, mvc
repo = mvc.Repository.init(sys.argv[1])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mvc.watch(repo, model, optimizer)
for _ in range(5):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
import os
if os.fork() == 0:
    try:
        optimizer.step()
    except mvc.MvcError as error:
        os.write(1, error.message.encode())
    sys.exit(0)
os.wait()
"""


def test_a_script_that_just_ends_has_recorded_everything(tmp_path: Path) -> None:
    """Nobody calls close; a forked child, to which the recorder does not belong, ends too."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=PROJECT, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "belongs to the process that created it" in ran.stdout
    with mvc.Repository.open(tmp_path) as repo:
        assert repo.log()[0].commit.message == "step 5"
        assert len(versions(repo)) == 5


def test_import_mvc_loads_no_torch() -> None:
    code = "import sys, mvc; mvc.Repository.commit; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
