"""Real processes: the command, killed workers and coordinators, what is left afterwards."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mvc.api.repository import Repository
from mvc.distributed.runner.launch import Launch, launch
from mvc.errors import CannotDistribute, UnknownPath
from tests.cli.program import ROOT, Mvc, spawn
from tests.distributed.runner import small
from tests.distributed.runner.team import global_models

SCRIPT = small.__file__
FGM = {"rho": 0.3, "rate": 0.05}


class Killing:
    """Trains in processes and kills them, one after the other, while everybody takes part.

    ``victims``: whom; None is the coordinator. A worker is killed somewhere in a round, the
    coordinator as soon as it has reported one.
    """

    def __init__(self, folder: Path, victims: Sequence[int | None] = (), seed: int = 0) -> None:
        Repository.init(folder).close()
        self.folder, self.victims = folder, list(victims)
        self.events: list[dict[str, Any]] = []
        self._draw = random.Random(seed)
        self._pids: dict[int | None, int] = {}
        self._quiet = 0  # rounds since the last kill

    def run(self, *arguments: str, workers: int = 2, **job: Any) -> dict[str, Any]:
        settings = {"repo": str(self.folder), "timeout": 60, **(job.pop("settings", None) or FGM)}
        wanted = Launch(SCRIPT, arguments, workers, {"settings": settings, **job}, 20)
        try:
            return launch(wanted, self._tell)
        finally:
            for pid in self.pids:
                assert not Path(f"/proc/{pid}").exists()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def pids(self) -> list[int]:
        return [event["pid"] for event in self.events if "pid" in event]

    def _tell(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))
        kind = event["event"]
        if "pid" in event:
            self._pids[event.get("worker")] = event["pid"]
        if kind in {"joined", "listening", "begins"}:
            self._quiet = 0
        if kind == "round" and self.victims and self._pids.keys() >= {*self.victims, None}:
            self._quiet += 1
            if self._quiet >= 2:
                self._kill(self.victims.pop(0))

    def _kill(self, victim: int | None) -> None:
        if victim is not None:
            time.sleep(self._draw.uniform(0, 0.3))
        with suppress(ProcessLookupError):
            os.kill(self._pids.pop(victim), signal.SIGKILL)

    def check(self) -> float:
        """Every commit that was told of is there, in order; returns the last one's accuracy."""
        told = [event["commit"] for event in self.of("round")]
        with Repository.open(self.folder) as repo:
            kept = [deployed.commit.hex() for deployed in repo.deployments("global")]
            rounds = [int(repo.version(commit).metrics["round"]) for commit in kept]
            assert repo.storage.fsck(full=True).sound
        assert [commit for commit in kept if commit in told] == told
        assert rounds == list(range(len(kept)))
        return small.accuracy(global_models(self.folder)[-1])


@pytest.mark.long
def test_twenty_kills(tmp_path: Path) -> None:
    """Ten workers in mid-round, ten coordinators between rounds: the accuracy of a quiet run."""
    quiet = Killing(tmp_path / "quiet")
    quiet.run("--pause=0.02", "--count=300")
    wanted = quiet.check()
    for seed in range(2):
        draw = random.Random(seed)
        victims = [draw.randrange(2) if n % 2 else None for n in range(10)]
        killing = Killing(tmp_path / f"kills-{seed}", victims, seed)
        done = killing.run("--pause=0.1", "--count=900")
        assert not killing.victims
        assert len(killing.of("restarted")) == 10
        assert done["steps"] == [900, 900]
        assert done["refused"] == {}
        assert abs(killing.check() - wanted) < 0.01


@pytest.mark.long
def test_a_worker_that_is_done_when_the_coordinator_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    killing = Killing(tmp_path)
    done = killing.run("--short=1", "--decapitate=0:40", "--pause=0.01")
    assert [event["worker"] for event in killing.of("restarted")] == [None]
    assert done["steps"] == [60, 10]
    killing.check()


@pytest.mark.long
def test_real_bytes_of_four_workers(tmp_path: Path) -> None:
    """Headers of TCP and IP included, the wire carries at most 10 % more than the payload."""
    killing = Killing(tmp_path)
    done = killing.run("--width=4000", workers=4, settings={"protocol": "local-sgd", "every": 2})
    payload = done["bytes_up"] + done["bytes_down"]
    assert payload < done["wire_bytes"] < 1.1 * payload
    assert done["bytes_beside"] > 5 * 4000 * 25 * 4  # the first model, and the last one to all
    assert done["wire_bytes"] < 1.02 * (payload + done["bytes_beside"])


@pytest.mark.long
def test_the_example(mvc: Mvc) -> None:
    example = ROOT / "examples" / "train_distributed.py"
    done = spawn("train-distributed", example, "--workers", 4, cwd=mvc.folder)
    found = re.search(r"([\d.]+)% of 397 digits", done.stderr)
    assert found is not None, done.stderr
    assert float(found[1]) > 90
    assert re.search(r"found r = \d.*, T = 0\.\d+, rho = \d", done.stderr)


@pytest.mark.long
def test_torchrun(tmp_path: Path) -> None:
    """Worker 0, which started the coordinator, does not end before that has pushed."""
    with Repository.init(tmp_path) as repo:
        repo.remotes.add("origin", tmp_path / "there")
    Repository.init(tmp_path / "there", bare=True).close()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", SCRIPT, "--settings=rho:0.3,rate:0.05,push:origin"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert small.accuracy(global_models(tmp_path)[-1]) > 0.95
    with Repository.open(tmp_path) as repo, Repository.open(tmp_path / "there") as there:
        assert there.live("global").commit == repo.live("global").commit


def test_the_command_survives_kills_of_a_worker_and_of_the_coordinator(mvc: Mvc) -> None:
    Repository.init(mvc.folder / "there", bare=True).close()
    mvc("remote", "add", "origin", "there")
    options = (
        "--workers",
        2,
        "--option",
        "rho=0.3",
        "--target",
        "site",
        "--branch",
        "b",
        "--option",
        "push=origin",
    )
    script = ("--kill=1:20", "--decapitate=0:40", "--pause=0.01")
    done = mvc("train-distributed", SCRIPT, *options, "--", *script)
    assert "warning: worker 1 was killed by SIGKILL; it starts again" in done.err
    assert "warning: the coordinator was killed by SIGKILL; it starts again" in done.err
    assert "2 workers, fgm, r = 0.4" in done.err
    assert "rho = 0.3\n" in done.err
    assert re.search(
        r"^\d+ rounds, \d+ sub-rounds?; .* up, .* down; \d+ messages since the restart; "
        r"\d+ versions pushed$",
        done.out,
    )
    assert Path("killed-worker").exists()
    assert Path("killed-hub").exists()
    with Repository.open(mvc.folder) as repo:
        deployed = repo.deployments("site")
        versions = [repo.version(each.commit) for each in deployed]
        assert [version.metrics["round"] for version in versions] == list(range(len(versions)))
        assert done.out.startswith(f"{len(versions) - 1} rounds, ")
        assert all(a.id == b.parents[0] for a, b in pairwise(versions))
        assert len({version.params["run"] for version in versions}) == 1
        assert repo.find("b") == versions[-1].id
        with Repository.open(mvc.folder / "there") as there:
            known = there.deployments("site")
        assert [(d.commit, d.time_ns) for d in known] == [(d.commit, d.time_ns) for d in deployed]
    assert small.accuracy(global_models(mvc.folder, "site")[-1]) > 0.95


def test_refusals_of_the_command(mvc: Mvc) -> None:
    command = ("train-distributed", SCRIPT)
    assert mvc(*command, "--workers", 1, code=2).err.count("\n") == 2
    gossip = mvc(*command, "--workers", 2, "--protocol", "gossip", code=2)
    assert "mvc: there is no protocol gossip: it must be one of gm" in gossip.err
    assert mvc("train-distributed", "no.py", "--workers", 2, code=3).err == (
        "mvc: there is no file no.py\n"
    )
    mvc("train-distributed", SCRIPT, "--workers", 2, "-Orho=wide", code=2)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("-Oradius=-1",), 2, "the threshold is -1: it must be a positive number"),
        (("-Oradius=1", "-Orho=1"), 2, "give the threshold as one of"),
        (("-Oradius=1", "-Oup=int9"), 2, "int9"),
        (("-Oup=int9",), 2, "int9"),
        (("-Orho=1", "-Osafe=cube"), 2, "there is no safe function cube"),
        (
            ("-Orho=1", "-Oevery=3"),
            2,
            "no protocol takes every, threshold together",
        ),
        (
            ("-Obarrier=0.1", "-Oouter_rate=0.1", "-Oevery=3"),
            2,
            "no protocol takes barrier, ev",
        ),
        (
            (
                "--protocol",
                "fgm-rebalancing",
                "--option",
                "radius=1",
                "--option",
                "worker_models=true",
            ),
            2,
            "does not know",
        ),
        (("-Oradius=1", "--target", "a b"), 3, "'a b'"),
        (("-Oradius=1", "--branch", "a b"), 3, "'a b'"),
        (
            ("-Oradius=1", "-Olog=/no/such/log"),
            3,
            "there is no folder /no/such for the log",
        ),
        (("-Oseed=-1",), 2, "seed is -1: it must be at least 0"),
        (("-Otimeout=nan",), 2, "timeout is nan: it must be a number of seconds"),
        (("--protocol", "sync", "-Orho=1"), 2, "the protocol sync takes no threshold"),
        (("-Operiod=0",), 2, "the threshold is 0: it must be a positive number"),
        (("-Oradius=1", "--repo", "/nonexist"), 3, "/nonexist"),
        (
            ("-Oradius=1", "--repo", ".", "-Opush=ori"),
            3,
            "mvc: there is no remote ori\nhint: ",
        ),
    ],
)
def test_options_are_refused_before_the_script_runs(
    mvc: Mvc, options: tuple[object, ...], code: int, text: str
) -> None:
    Path("own.py").write_text("open('ran', 'w')")
    assert text in mvc("train-distributed", "own.py", "--workers", 2, *options, code=code).err
    assert not Path("ran").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--other=1",), "worker 1 trains another model than worker 0: its 0.weight is 33x20"),
        (("--unjoined=1",), "worker 1 ended before the training did"),
        (("--nothing",), "worker . failed with exit code 1"),
    ],
)
def test_failing_processes(
    tmp_path: Path, arguments: tuple[str, ...], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    killing = Killing(tmp_path)
    with pytest.raises(CannotDistribute, match=text):
        killing.run(*arguments)
    assert "terminate" not in capfd.readouterr().err


@pytest.mark.long
def test_a_worker_that_fails_is_named_at_the_end(mvc: Mvc) -> None:
    command = (
        "train-distributed",
        SCRIPT,
        "--workers",
        2,
        "--option",
        "rho=0.3",
        "--option",
        "rate=0.05",
    )
    done = mvc(*command, "--json", "--", "--nan=1", code=3)
    assert done.json["kind"] == "cannot-distribute"
    assert done.json["message"].startswith(
        "trained to the end, but without worker 1: worker 1: its model holds numbers that are not"
    )
    done = mvc(*command, "--", "--fail=1", code=3)
    assert done.err.endswith("without worker 1: worker 1 failed: ValueError: no such thing\n")


@pytest.mark.long
def test_a_removed_worker_is_neither_awaited_nor_forgotten_by_the_next_coordinator(
    mvc: Mvc,
) -> None:
    command = (
        "train-distributed",
        SCRIPT,
        "--workers",
        3,
        "--option",
        "rho=0.3",
        "--option",
        "rate=0.05",
    )
    script = ("--nan=1", "--decapitate=0:40", "--pause=0.01")
    done = mvc(*command, "-Otimeout=500", "--", *script, code=3)
    assert "the coordinator was killed by SIGKILL; it starts again" in done.err
    assert "trained to the end, but without worker 1: worker 1: its model holds num" in done.err
    with Repository.open(mvc.folder) as repo:
        rounds = [repo.version(each.commit).metrics["round"] for each in repo.deployments("global")]
        assert rounds == list(range(len(rounds)))


def test_a_script_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownPath, match=r"there is no file .*no\.py"):
        launch(Launch(str(tmp_path / "no.py"), (), 2, {}))


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_command_is_killed(tmp_path: Path, how: int) -> None:
    Repository.init(tmp_path).close()
    program = [sys.executable, "-c", "from mvc.cli.main import main; main()"]
    command = [
        "train-distributed",
        SCRIPT,
        "--workers",
        "2",
        "--option",
        "rho=0.3",
        "--option",
        "rate=0.05",
    ]
    process = subprocess.Popen(
        [*program, *command, "--", "--pause=0.2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "round 0" not in process.stderr.readline():
        assert process.poll() is None
    children = _children(process.pid)
    assert len(children) == 3
    process.send_signal(how)
    process.wait(20)
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < until
        time.sleep(0.1)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


def test_no_file_of_the_working_folder_is_taken_for_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    marker = tmp_path / "ran"
    (folder / "msgspec.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise SystemExit(9)\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert Killing(tmp_path / "models").run()["rounds"]
    assert not marker.exists()
