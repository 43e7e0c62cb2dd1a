"""What every callback promises, whatever the framework: see ``tests.frameworks.trainings``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import mvc
from mvc.errors import CannotResume, NotARepository, StorageFull, WrongUsage
from mvc.state import ServedVersion
from tests.frameworks.trainings import (
    MODEL,
    NAMES,
    PIPELINE,
    TRAINING,
    Trained,
    commit_of,
    digests,
    runs,
)
from tests.training.gate import Gate
from tests.training.runs import Bits, tensor_bits
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("one_thread")
PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=sorted(NAMES))
def framework(request: pytest.FixtureRequest) -> Any:
    return runs(request.param)


def numbers(framework: Any, first: int, last: int) -> list[int]:
    """The steps of which a training makes versions, in order."""
    ends = framework.EPOCH if framework.ENDS else last + 1
    return [n for step in range(first, last + 1) for n in [step] * (1 + (step % ends == 0))]


def steps(repo: mvc.Repository, rev: str = "HEAD") -> list[int]:
    return [int(entry.commit.message.split()[1]) for entry in repo.log(rev)][::-1]


# -- what is recorded ------------------------------------------------------------------------


class Recorded(NamedTuple):
    """A training of nearly two epochs, with a version of every step."""

    repo: mvc.Repository
    steps: int
    trained: Trained
    seen: dict[int, set[str]]
    report: Any


@pytest.fixture(scope="module")
def recorded(framework: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder, count = tmp_path_factory.mktemp("recorded"), 2 * framework.EPOCH - 1
    seen: dict[int, set[str]] = {}

    def see(step: int, tensors: Iterable[torch.Tensor]) -> None:
        seen[step] = digests(tensors)

    torch.set_num_threads(1)
    with mvc.Repository.init(folder / "models") as repo:
        options = {"deploy": "prod", "metrics": {"fold": 3}, "params": {"data": "a"}, "run": "a"}
        recording = framework.recorder(repo, **options)
        trained = framework.train(folder, count, recording, act=see)
        yield Recorded(repo, count, trained, seen, recording.report)


def test_every_step_is_a_version(framework: Any, recorded: Recorded) -> None:
    repo, count, _, seen, report = recorded
    assert steps(repo) == numbers(framework, 1, count)
    log = list(repo.log())[::-1]
    for step, entry in zip(steps(repo), log, strict=True):
        assert digests(repo.checkout(entry.id).values()) == seen[step]
        assert entry.commit.metrics["fold"] == 3
        assert any("loss" in name for name in entry.commit.metrics) == framework.LOGS
        assert entry.commit.params["data"] == entry.commit.run == "a"
        assert framework.HYPER.items() <= entry.commit.params.items()
    assert [d.commit for d in repo.deployments("prod")] == [entry.id for entry in log]
    assert (report.durable, report.failed, report.newest_step) == (len(log), 0, count)
    assert report.newest.id == log[-1].id


def test_recording_changes_nothing(framework: Any, recorded: Recorded, tmp_path: Path) -> None:
    assert framework.train(tmp_path, recorded.steps).bits == recorded.trained.bits


@pytest.mark.parametrize("place", ["middle", "end", "second"])
def test_goes_on_bit_for_bit(
    framework: Any, recorded: Recorded, tmp_path: Path, place: str
) -> None:
    """With other objects and seeds; from the middle and the end of the first epoch, the second."""
    step = framework.EPOCH + {"middle": -3, "end": 0, "second": 2}[place]
    recording = framework.recorder(recorded.repo, every=1000)
    rev = str(commit_of(recorded.repo, step))
    again = framework.train(tmp_path, recorded.steps, recording, resume=rev, seed=8)
    assert (again.resumed.step, again.resumed.differs) == (step, ())
    assert str(again.resumed.commit) == rev
    assert again.bits == recorded.trained.bits


def test_another_model_is_refused(framework: Any, recorded: Recorded, tmp_path: Path) -> None:
    recording = framework.recorder(recorded.repo)
    before = recorded.repo.find("main")
    with pytest.raises(CannotResume, match=r"float32 \(.* in the "):
        framework.train(tmp_path, recorded.steps, recording, resume="HEAD", wide=True)
    assert recorded.repo.find("main") == before


def test_every_third_step(framework: Any, repo: mvc.Repository, tmp_path: Path) -> None:
    if not framework.LOGS:
        pytest.skip("its program says when to save")
    framework.train(tmp_path, framework.EPOCH + 2, framework.recorder(str(repo.root), every=3))
    found = [n for n in numbers(framework, 1, framework.EPOCH + 2) if n % 3 == 0]
    assert steps(repo) == found


def test_stays_on_the_branch_it_began_on(
    framework: Any, repo: mvc.Repository, tmp_path: Path
) -> None:
    def leave(step: int, _: object) -> None:  # as another terminal may
        if repo.head().branch == "main":
            repo.switch("aside", create=True)

    count = framework.EPOCH - 1
    repo.commit({"w": torch.ones(1)}, message="step 0")
    framework.train(tmp_path, count, framework.recorder(repo), act=leave)
    assert repo.head().branch == "aside"
    assert steps(repo, "main") == [0, *range(1, count + 1)]
    recording = framework.recorder(repo, branch="main")
    again = framework.train(tmp_path, count + 2, recording, resume="")
    assert again.resumed.step == count
    assert steps(repo, "main") == [0, *numbers(framework, 1, count + 2)]
    assert repo.head().branch == "aside"


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def test_two_processes_and_one_writer(tmp_path: Path) -> None:
    """Each gets its own generators back. Those of Lightning: ``test_lightning``; Keras has none."""
    runs("accelerate")
    runs("huggingface")
    for name in ("trainer", "accelerate"):
        mvc.Repository.init(tmp_path / name).close()
    port = free_port()
    common = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.frameworks.ranks_runs", str(tmp_path)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ, **common, "ACCELERATE_USE_CPU": "true",
                "RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            },
        )
        for n in (0, 1)
    ]  # fmt: skip
    said = [child.communicate()[0] for child in children]
    for n, text in enumerate(said):
        assert f"trainer {n} True" in text
        assert f"accelerate {n} True" in text
    with mvc.Repository.open(tmp_path / "trainer") as repo:
        assert len(list(repo.log())) == 5
    with mvc.Repository.open(tmp_path / "accelerate") as repo:
        assert len(list(repo.log())) == 1


def test_pushes_behind_the_training(framework: Any, repo: mvc.Repository, tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path / "there", bare=True):
        repo.remotes.add("origin", str(tmp_path / "there"))
    recording = framework.recorder(repo, push="origin", deploy="prod")
    framework.train(tmp_path, 2, recording)
    assert recording.report.push.left == 0
    with mvc.Repository.open(tmp_path / "there") as there:
        assert steps(there, "main") == steps(repo)
        assert there.live("prod").commit == repo.find("main")


# -- what goes wrong -------------------------------------------------------------------------


def test_an_exception_completes_what_was_queued(
    framework: Any, recorded: Recorded, repo: mvc.Repository, tmp_path: Path
) -> None:
    def fail(step: int, _: object) -> None:
        if step == 4:
            raise KeyError("data")

    recording = framework.recorder(repo)
    with pytest.raises(KeyError):
        framework.train(tmp_path, recorded.steps, recording, act=fail)
    assert steps(repo) == [1, 2, 3] and recording.report.durable == 3
    again = framework.train(tmp_path, recorded.steps, recording, resume="HEAD", seed=9)
    assert again.bits == recorded.trained.bits
    assert steps(repo) == numbers(framework, 1, recorded.steps)


@pytest.mark.parametrize("at", [1, 2])
def test_a_failure_behind_stops_the_training(
    framework: Any, repo: mvc.Repository, tmp_path: Path, at: int
) -> None:
    """At the next step; that of the last version at the end. It is raised once."""
    Gate(repo, {at: StorageFull("no space left")}).open()
    recording = framework.recorder(repo)

    def see_it_fail(step: int, _: object) -> None:
        """The commit is behind: it has failed before the next step is taken."""
        if step == at + 1:
            until(lambda: recording.report.failed == 1)

    with pytest.raises(StorageFull, match="no space left"):
        framework.train(tmp_path, 2, recording, act=see_it_fail)
    assert recording.report.failed == 1
    stored = recording.report.durable
    assert stored == at - 1
    framework.train(tmp_path, 2, recording)
    assert len(list(repo.log())) == stored + 2


def test_arguments_are_looked_at_at_once(
    framework: Any, repo: mvc.Repository, tmp_path: Path
) -> None:
    for given, said in (
        ({"when_full": "wait"}, "when_full is 'wait'"),
        ({"deploy": "a b!"}, "deployment target"),
        ({"queue_bytes": -1}, "queue_bytes must be at least 0"),
        ({"pipeline": 3}, "pipeline is of type int"),
    ):
        with pytest.raises(mvc.MvcError, match=said):
            framework.recorder(repo, **given)
    if framework.LOGS:
        for given, said in (
            ({"every": 0}, "must be at least 1, but is 0"),
            ({"every": 1.5}, "is of type float"),
            ({"include": ()}, "include names nothing"),
            ({"include": ["colour"]}, "include names 'colour'"),
        ):
            with pytest.raises(WrongUsage, match=said):
                framework.recorder(repo, **given)
    with pytest.raises(TypeError, match="nexpected keyword argument 'colour'"):
        framework.recorder(repo, colour="red")
    with pytest.raises(WrongUsage, match=r"repo must be .*, not of type Linear"):
        framework.recorder(torch.nn.Linear(1, 1))
    with pytest.raises(NotARepository, match="not a repository"):
        framework.recorder(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("part", ["optimizer", "rng"])
def test_a_part_was_not_recorded(
    framework: Any, repo: mvc.Repository, tmp_path: Path, part: str
) -> None:
    if not framework.LOGS:
        pytest.skip("it records all that save_state saves")
    include = [each for each in ("model", "optimizer", "rng") if each != part]
    framework.train(tmp_path, 1, framework.recorder(repo, include=include))
    kept = repo.checkout(path=TRAINING)
    assert kept[part] is None
    with pytest.raises(CannotResume, match=r"without the .*(optimizer|generators)"):
        framework.train(tmp_path, 2, framework.recorder(repo), resume="HEAD")
    assert steps(repo) == [1]


def test_versions_of_a_plain_recorder_are_others(
    framework: Any, repo: mvc.Repository, tmp_path: Path
) -> None:
    with mvc.Recorder(repo, torch.nn.Linear(2, 2)) as recorder:
        recorder.step()
    with pytest.raises(CannotResume, match=r"not (recorded|saved)|not a state of") as caught:
        framework.train(tmp_path, 2, framework.recorder(repo), resume="HEAD")
    assert "mvc.resume" in (caught.value.hint or "") or framework.LOGS
    assert steps(repo) == [1]


# -- lossy pipelines -------------------------------------------------------------------------

BY_DATA = {
    "vsol-0.1-slow": "dsed:0.01",
    "drift:adwin | xor | zstd:1": "drift:adwin",
    "frontier-1-guarded": "guard:0.01",
}
"""Pipelines with a stage that asks for the batch."""


class Served:
    """What ``on_deploy`` was given: commits and bits, in order."""

    def __init__(self) -> None:
        self.versions: list[tuple[Any, Bits]] = []

    def __call__(self, delivered: ServedVersion) -> None:
        self.versions.append((delivered.commit, tensor_bits(delivered.state)))


def check_versions(
    repo: mvc.Repository, served: Served, count: int, exact: Collection[str]
) -> None:
    """``count`` versions, stored as they were delivered; no tensor of ``exact`` was changed.

    All were recorded with ``keep_training``. Every tensor that is not exact differs from that
    of the training in some version.
    """
    log = list(repo.log())[::-1]
    assert [entry.id for entry in log] == [commit for commit, _ in served.versions]
    assert len(log) == count and {entry.commit.pipeline for entry in log} == {PIPELINE}
    changed = set()
    for commit, bits in served.versions:
        assert tensor_bits(repo.checkout(commit, path=MODEL)) == bits
        trained = tensor_bits(repo.checkout(commit, path=TRAINING)["weights"])
        assert trained.keys() == bits.keys()
        changed |= {name for name, raw in trained.items() if raw != bits[name]}
    assert changed.isdisjoint(exact) and set(exact) <= trained.keys()
    assert changed
    deployments = [d.commit for d in repo.deployments("prod")]
    assert sorted(deployments) == sorted(commit for commit, _ in served.versions)


def test_production_weights_and_going_on(
    framework: Any, recorded: Recorded, repo: mvc.Repository, tmp_path: Path
) -> None:
    served, count = Served(), recorded.steps
    options = {"deploy": "prod", "pipeline": PIPELINE, "on_deploy": served, "keep_training": True}
    recording = framework.recorder(repo, **options)
    lossy = framework.train(tmp_path, count, recording)
    assert lossy.bits == recorded.trained.bits
    check_versions(repo, served, len(numbers(framework, 1, count)), lossy.exact)
    rev = str(commit_of(repo, framework.EPOCH - 2))
    recording = framework.recorder(repo, every=1000)
    again = framework.train(tmp_path, count, recording, resume=rev, seed=8)
    assert (again.resumed.step, again.resumed.differs) == (framework.EPOCH - 2, ())
    assert again.bits == recorded.trained.bits


def test_refused_without_the_training_weights(
    framework: Any, repo: mvc.Repository, tmp_path: Path
) -> None:
    recording = framework.recorder(repo, pipeline=PIPELINE)
    trained = framework.train(tmp_path, 2, recording)
    with pytest.raises(CannotResume, match="production weights") as caught:
        framework.train(tmp_path, 3, framework.recorder(repo), resume="HEAD")
    assert "keep_training" in (caught.value.hint or "")
    live = tensor_bits(repo.checkout(path=MODEL))
    assert set(trained.exact) < live.keys()
    assert steps(repo) == [1, 2]


def test_decisions(framework: Any, repo: mvc.Repository, tmp_path: Path) -> None:
    """Those that count steps; where batches are not shown, none that asks for them."""
    counting = "every:1/2 | xor | lsb:20 | planes | zstd:1"
    if framework.LOGS:
        recording = framework.recorder(repo, pipeline=counting)
        framework.train(tmp_path, 6, recording)
        assert (recording.report.durable, recording.report.skipped) == (2, 4)
    else:
        with pytest.raises(WrongUsage, match=r"every:1/2 may skip .* save_state always saves"):
            framework.recorder(repo, pipeline=counting)
    if framework.ENDS:
        return  # batches are shown
    for pipeline, stage in BY_DATA.items():
        with pytest.raises(WrongUsage, match=rf"stage {stage} (needs the data|may skip)"):
            framework.recorder(repo, pipeline=pipeline)
    with pytest.raises(WrongUsage, match=r"(evaluate|monitor) needs the data"):
        framework.recorder(repo, evaluate=print, monitor=print)


def test_stages_that_go_by_the_loss(framework: Any, repo: mvc.Repository, tmp_path: Path) -> None:
    pipeline = "topk:0.5,min=0.1,loss=linear | xor | zstd:1"
    if not framework.LOGS:
        with pytest.raises(WrongUsage, match=r"topk:0\.5.* needs the loss") as caught:
            framework.recorder(repo, pipeline=pipeline)
        assert "metrics" in (caught.value.hint or "")
    given = {} if framework.LOGS else {"metrics": {"loss": 0.5}}
    recording = framework.recorder(repo, pipeline=pipeline, **given)
    framework.train(tmp_path, 3, recording)
    assert recording.report.durable == 3
