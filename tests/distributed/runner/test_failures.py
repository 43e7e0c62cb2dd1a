"""Processes that are killed, stopped, deaf; and that nobody else can take part."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from mvc.api import Repository
from mvc.errors import UnknownTarget
from tests.cli.program import ROOT, Mvc, spawn
from tests.counters import count
from tests.distributed.runner import small
from tests.distributed.runner.processes import global_models

TIMEOUT = 6
ALLOWED = TIMEOUT + 30
"""Seconds from the moment at which something happens to the end of all processes."""

LINE = {
    "kill": r"rank {0} was killed by SIGKILL|rank \d: rank {0} \(process \d+ on \S+\) .*",
    "stop": r"rank \d: rank {0} \(process \d+ on \S+\) (did not join|has ended or did not) .*",
    "block": r"rank \d: rank {0} \(process \d+ on \S+\) did not join the exchange within 6 seconds",
    "fail": r"rank {0}: ValueError: no such thing",
}
COMMAND = [sys.executable, "-c", "from mvc.cli.main import main; main()", "train-distributed"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


class Training:
    """Programs that train in a folder with a repository; ``finish`` waits for them all."""

    def __init__(self, folder: Path) -> None:
        Repository.init(folder).close()
        self.folder, self.mark, self.began = folder, uuid4().hex, time.time()
        self.programs: list[subprocess.Popen[str]] = []

    def start(self, *command: object) -> None:
        self.programs.append(
            subprocess.Popen(
                [*map(str, command)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "MVC_TEST_MARK": self.mark},
                stderr=(self.folder / "stderr").open("a"),
                stdout=subprocess.DEVNULL,
                text=True,
            )
        )

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()

    def await_file(self, name: str) -> float:
        while not (self.folder / name).exists():
            assert self.programs[0].poll() is None, self.err
            assert time.time() < self.began + 90, self.err
            time.sleep(0.05)
        return (self.folder / name).stat().st_mtime

    def finish(self, since: float | None = None, allowed: float = ALLOWED) -> list[int]:
        """The exit codes. All processes have ended ``allowed`` seconds after ``since``."""
        try:
            since = self.await_file("acted") if since is None else since
            for program in self.programs:
                program.wait(max(0.1, since + allowed - time.time()))
            while self.processes() and time.time() < since + allowed:
                time.sleep(0.05)
            assert not self.processes(), self.err
            count(
                "killed, stopped and deaf processes",
                tried=1,
                max_seconds=round(time.time() - since),
            )
            return [program.returncode for program in self.programs]
        finally:
            self.kill()

    def kill(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Those of this training that live."""
        mark, found = f"MVC_TEST_MARK={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def ranks(self) -> list[int]:
        """The processes of the script, without torch's agents."""
        found = []
        for pid in self.processes():
            with suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"torch.distributed.run" not in arguments and any(
                    each.startswith(b"--do=") for each in arguments
                ):
                    found.append(pid)
        return found

    def check(self) -> list[int]:
        """The repository is sound; the rounds of the global models that were deployed."""
        with Repository.open(self.folder) as repo:
            assert repo.storage.fsck(full=True).sound
            with suppress(UnknownTarget):  # it never began
                deployed = repo.deployments("global")
                return [int(repo.version(each.commit).metrics["round"]) for each in deployed]
        return []


def hurt(folder: Path, how: str, rank: int, step: int, *options: str, soon: bool = False) -> None:
    """A training by the command that ends, and says why in one line."""
    training = Training(folder)
    script = [f"--do={rank}:{how}:{step}", "--pause=0.02"]
    training.start(*COMMAND, small.__file__, "--workers=3", *options, "-Otimeout=6", "--", *script)
    assert training.finish() == [3]
    (line,) = re.findall(r"^mvc: (.*)$", training.err, re.MULTILINE)
    assert re.fullmatch(LINE[how].format(rank), line), training.err
    rounds = training.check()
    assert rounds == list(range(len(rounds))) and rounds


@pytest.mark.parametrize(
    ("only", "settings", "line"),
    [
        ("01", "speed=3", r"rank \d: there is no setting speed"),
        (
            "0",
            "timeout=2",
            r"rank 0: rank 1 \(process unknown\) did not join the exchange within 2 seconds",
        ),
    ],
)
def test_a_refusal_by_join_is_one_line(tmp_path: Path, only: str, settings: str, line: str) -> None:
    training = Training(tmp_path)
    (tmp_path / "own.py").write_text(
        "import os, torch, mvc.distributed\n"
        f"if os.environ['RANK'] in '{only}':\n"
        f"    mvc.distributed.join(torch.nn.Linear(2, 2), {settings})\n"
    )
    training.start(*COMMAND, "own.py", "--workers=2")
    assert training.finish(time.time(), 120) == [3]
    (said,) = re.findall(r"^mvc: (.*)$", training.err, re.MULTILINE)
    assert re.fullmatch(line, said), training.err


FGM = ("-Orho=0.3", "-Orate=0.05")
OPTIONS = (FGM, ("--protocol=sync",), ("--protocol=gm", *FGM), ("--protocol=fda", *FGM))


@pytest.mark.parametrize(("how", "rank"), [("stop", 1), ("kill", 0)])
def test_a_process_that_is_lost_ends_the_training(tmp_path: Path, how: str, rank: int) -> None:
    hurt(tmp_path, how, rank, 20, *FGM)


@pytest.mark.long
@pytest.mark.parametrize("how", LINE)
@pytest.mark.parametrize("seed", range(5))
def test_processes_that_are_lost_at_any_moment(tmp_path: Path, how: str, seed: int) -> None:
    draw = random.Random(f"{how} {seed}")
    hurt(tmp_path, how, draw.randrange(3), draw.randrange(1, 60), *draw.choice(OPTIONS))


def under_torchrun(folder: Path, do: str, *options: str) -> Training:
    training = Training(folder)
    given = "--settings=rho:0.3,rate:0.05,timeout:6"
    training.start(
        *TORCHRUN, "--standalone", "--nproc-per-node=3", *options, small.__file__, given,
        "--pause=0.02", f"--do={do}",
    )  # fmt: skip
    return training


@pytest.mark.long
@pytest.mark.parametrize("do", ["1:stop:20", "0:stop:30", "2:block:20", "1:fail:10"])
def test_torchrun_ends_and_the_line_names_the_rank(tmp_path: Path, do: str) -> None:
    training = under_torchrun(tmp_path, do)
    assert training.finish() == [1]
    rank = do[0]
    named = rf"rank {rank} \(process \d+ on \S+\) did not join the exchange within 6 seconds"
    assert re.search(f"{named}|ValueError: no such thing", training.err), training.err
    training.check()


@pytest.mark.long
@pytest.mark.parametrize("do", ["1:kill:40", "0:kill:30", "1:stop:35", "0:soon:30", "2:block:30"])
def test_torchrun_starts_all_again_and_the_training_goes_on(tmp_path: Path, do: str) -> None:
    training = under_torchrun(tmp_path, do, "--max-restarts=3")
    assert training.finish(time.time(), 150) == [0], training.err
    rounds = training.check()
    assert rounds == list(range(len(rounds)))
    with Repository.open(tmp_path) as repo:
        own = repo.checkout(target="global", path="model.coordinator.safetensors")
        assert (
            len({repo.version(each.commit).params["run"] for each in repo.deployments("global")})
            == 1
        )
    assert own["steps"].tolist() == [60, 60, 60]
    assert small.accuracy(global_models(tmp_path)[-1]) > 0.95


def test_a_process_without_the_store_of_rank_0_says_so_once(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with_own_store(
        training, sys.executable, small.__file__, "--settings=rho:0.3,rate:0.05,timeout:6",
        "--pause=0.02", "--do=0:kill:30",
    )  # fmt: skip
    assert training.finish() == [-signal.SIGKILL, 1]
    assert training.err.count("CannotDistribute: rank 1 cannot reach") == 1, training.err
    assert "atexit" not in training.err


SLOW = """
import os, sys, time
from tests.distributed.runner import small
sleep = time.sleep
if os.environ["RANK"] == "1":
    time.sleep = lambda seconds: sleep(2 if seconds else 0)
else:
    from mvc.distributed.runner.coordinator import Service
    report = Service.report
    Service.report = lambda service: sleep(0.5) or report(service)
small.main()
"""


def test_rank_0_ends_after_the_others(tmp_path: Path) -> None:
    """The store is its own: one that still asks it has not lost it."""
    training = Training(tmp_path)
    with_own_store(
        training, sys.executable, "-c", SLOW, "--settings=protocol:local-sgd", "--count=16"
    )
    assert training.finish(time.time(), 120) == [0, 0], training.err


def with_own_store(training: Training, *command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for rank in range(2):
        training.start(
            "env", f"RANK={rank}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}",
            *command,
        )  # fmt: skip


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes listen, as the kernel writes them."""
    sockets, found = set(), set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                sockets |= set(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in sockets and (fields[3] == "0A" or table.startswith("udp")):
                found.add(fields[1].split(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux says who listens")
def test_nobody_listens_but_on_the_loopback_interface(tmp_path: Path) -> None:
    training = Training(tmp_path)
    script = ["--do=1:block:30", "--pause=0.02"]
    training.start(*COMMAND, small.__file__, "--workers=2", *FGM, "-Otimeout=6", "--", *script)
    training.await_file("acted")
    assert listening(training.processes()) <= {"0100007F"}
    assert (stored := next(Path("/tmp").glob("mvc-training-*"), None)) is None or (
        stored.stat().st_mode & 0o77 == 0
    )
    assert training.finish() == [3]


@pytest.mark.long
def test_the_example(mvc: Mvc) -> None:
    done = spawn(
        "train-distributed", ROOT / "examples/train_distributed.py", "--workers", 4, cwd=mvc.folder
    )
    assert float(re.findall(r"([\d.]+)% of 397 digits", done.stderr)[0]) > 90
    assert re.search(r"measured r = \d.*, T = 0\.\d+, rho = \d", done.stderr)
    assert re.match(r"\d+ rounds, \d+ sub-rounds?; .* up, .* down; \d+ messages\n", done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_command_is_ended(tmp_path: Path, how: signal.Signals) -> None:
    training = Training(tmp_path)
    script = ["--do=1:stop:20", "--pause=0.02"]
    training.start(
        "env", f"TMPDIR={tmp_path}", *COMMAND, small.__file__, "--workers=2", *FGM, "--", *script
    )
    training.await_file("acted")
    training.programs[0].send_signal(how)
    assert training.finish(time.time(), 40) == [130 if how == signal.SIGINT else -how]
    assert how == signal.SIGKILL or not list(tmp_path.glob("mvc-training-*"))


def may_make_networks() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None


@pytest.fixture
def hosts() -> Iterator[list[tuple[list[str], str, str]]]:
    """Two network namespaces with a cable: how to run there, the interface, the address."""
    mark, found = uuid4().hex[:5], []
    names = [f"mvc-{mark}-{host}" for host in "ab"]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        cable = f"ip link add a{mark} netns {names[0]} type veth peer name b{mark} netns {names[1]}"
        subprocess.run(cable.split(), check=True)
        for number, name in enumerate(names):
            link, address = f"{'ab'[number]}{mark}", f"10.77.0.{number + 1}"
            for line in (
                f"addr add {address}/24 dev {link}",
                f"link set {link} up",
                "link set lo up",
            ):
                subprocess.run(["ip", "-n", name, *line.split()], check=True)
            found.append((["ip", "netns", "exec", name], link, address))
        yield found
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=True)


def on_hosts(training: Training, hosts: list[tuple[list[str], str, str]], *script: str) -> None:
    for number, (enter, link, address) in enumerate(hosts):
        training.start(
            *enter, "env", f"GLOO_SOCKET_IFNAME={link}", *TORCHRUN, "--nnodes=2",
            "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400",
            f"--rdzv-conf=is_host={1 - number},timeout=60", "--rdzv-id=job",
            f"--local-addr={address}",
            small.__file__, "--settings=rho:0.3,rate:0.05,timeout:6", "--pause=0.02", *script,
        )  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(not may_make_networks(), reason="network namespaces need root and iproute2")
def test_two_hosts_train_together(tmp_path: Path, hosts: list[tuple[list[str], str, str]]) -> None:
    training = Training(tmp_path)
    on_hosts(training, hosts)
    assert training.finish(time.time(), 180) == [0, 0], training.err
    rounds = training.check()
    assert rounds == list(range(len(rounds))) and len(rounds) > 1


@pytest.mark.long
@pytest.mark.skipif(not may_make_networks(), reason="network namespaces need root and iproute2")
@pytest.mark.parametrize("seed", range(6))
def test_a_host_whose_packets_are_dropped(
    tmp_path: Path, hosts: list[tuple[list[str], str, str]], seed: int
) -> None:
    """All ranks end in time; the agents, which are torch's, wait for each other for longer."""
    draw = random.Random(seed)
    training = Training(tmp_path)
    try:
        on_hosts(training, hosts, f"--do=0:note:{draw.randrange(1, 60)}", "--count=2000")
        training.await_file("acted")
        time.sleep(draw.random() / 5)
        (enter, link, _) = hosts[1]
        subprocess.run([*enter, "ip", "link", "set", link, "down"], check=True)
        until = time.time() + ALLOWED
        while (alive := training.ranks()) and time.time() < until:
            time.sleep(0.1)
        assert not alive, training.err
        assert re.search(r"rank [23] \(.*did not (join|answer)", training.err), training.err
        assert re.search(r"rank [23] cannot reach", training.err), training.err
        rounds = training.check()
        assert rounds == list(range(len(rounds))) and rounds
    finally:
        training.kill()
