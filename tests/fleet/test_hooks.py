"""The commands of a follower: before a swap and after it, in time or ended, and taken back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import CommandFailed
from mvc.ids import CommitId
from mvc.serving.follower import Follower
from mvc.serving.sinks import ReplicaSink
from mvc.serving.sources import Followed, NotFollowing
from tests.cli.program import Mvc
from tests.waiting import until

PATHS = ("one.safetensors", "two.safetensors")
FACTS = ("version", "previous", "file", "folder", "path", "prepared", "target", "url", "time")


class Node:
    """A followed file, or folder, and the remote's repository."""

    def __init__(self, kind: str, repo: Repository, mvc: Mvc) -> None:
        self.repo, self.mvc = repo, mvc
        self.is_folder, self.in_place = kind.startswith("folder"), kind.endswith("in place")
        self.place = mvc.folder / ("net" if self.is_folder else "net.safetensors")
        self.words: list[Any] = ["follow", repo.root, "prod", "--as", "7"]
        self.to = f"{self.place}/" if self.is_folder else str(self.place)
        self.words += ["-o", self.to, *(["--in-place"] if self.in_place else [])]

    def deploy(self, seed: int) -> CommitId:
        state = {"w": np.random.default_rng(seed).random(2_000, np.float32)}
        states = {PATHS[0]: state} | ({PATHS[1]: {"same": np.ones(9)}} if self.is_folder else {})
        return self.repo.commit(states=states, message=str(seed), deploy="prod").id

    def follow(self, *more: object, code: int | None = 0) -> Any:
        return self.mvc(*self.words, "--once", *more, code=code)

    def holds(self, version: CommitId) -> bool:
        compared = self.mvc.folder.parent / "compared"
        self.repo.checkout(version, path=PATHS[0], to=compared / "x.safetensors", force=True)
        file = self.place / PATHS[0] if self.is_folder else self.place
        return file.read_bytes() == (compared / "x.safetensors").read_bytes()

    def reported(self) -> list[CommitId]:
        """The oldest first."""
        made = sorted(self.repo.deployments("nodes/7/prod"), key=lambda each: each.time_ns)
        return [each.commit for each in made]


@pytest.fixture(params=["file", "folder", "file in place", "folder in place"])
def node(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Node]:  # fmt: skip
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path / "node")
    with Repository.init(tmp_path / "remote", bare=True) as repo:
        yield Node(request.param, repo, Mvc(tmp_path / "node", capsys))


def telling(file: Path, more: str = "") -> str:
    """A command that writes what it is told, and what lies at the place, as a line of JSON."""
    variables = " ".join(f'"$DEPLOY_{name.upper()}"' for name in (*FACTS, "rollback"))
    return f"{{ cat; echo; printf '%s\\n' {variables}; }} >> {file}; {more}"


def calls(file: Path) -> list[dict[str, Any]]:
    """What was told, by which the variables are checked; the file is empty afterwards."""
    lines = iter(file.read_text().split("\n")[:-1])
    found = []
    for line in lines:
        facts = json.loads(line)
        assert facts.pop("schema") == "mvc.follow/1"
        assert [next(lines) for _ in FACTS] == [facts[name] or "" for name in FACTS]
        assert next(lines) == str(int(facts["rollback"])) and len(facts) == len(FACTS) + 1
        found.append(facts)
    file.unlink()
    return found


def test_what_both_are_told(node: Node, tmp_path: Path) -> None:
    told, seen = tmp_path / "told", tmp_path / "seen"
    look = f'cat "$DEPLOY_PREPARED"{"/one*" if node.is_folder else ""} > {seen}'
    look = 'test -e "$DEPLOY_PREPARED"' if node.in_place else look
    both = ("--prepare", telling(told, look), "--exec", telling(told))
    first = node.deploy(1)
    node.follow(*both)
    prepared, swapped = calls(told)
    place = str(node.place)
    assert prepared.pop("prepared") and swapped.pop("prepared") is None
    assert prepared == swapped
    assert (swapped["version"], swapped["previous"], swapped["rollback"]) == (
        str(first),
        None,
        False,
    )
    assert (swapped["file"], swapped["folder"]) == (
        (None, place) if node.is_folder else (place, None)
    )
    assert swapped["path"] == ("" if node.is_folder else PATHS[0])
    second = node.deploy(2)
    done = node.follow(*both, "--json")
    for facts in calls(told):
        assert (facts["version"], facts["previous"]) == (str(second), str(first))
        assert facts["rollback"] is done.json["rollback"] is False
    file = node.place / PATHS[0] if node.is_folder else node.place
    assert node.in_place or seen.read_bytes() == file.read_bytes()
    node.repo.rollback("prod")
    assert node.follow(*both, "--json").json["rollback"] is True
    for facts in calls(told):
        assert (facts["version"], facts["rollback"]) == (str(first), True)


@pytest.mark.parametrize(
    ("command", "message"), [("exit 3", "exit status 3"), ("sleep 60 & sleep 60", "took longer")]
)
def test_a_preparation_that_fails(command: str, message: str, node: Node, tmp_path: Path) -> None:
    first = node.deploy(1)
    node.follow()
    second = node.deploy(2)
    beside = sorted(node.mvc.folder.iterdir())
    slow = ("--prepare", command, "--exec-timeout", "0.3", "--exec", f"touch {tmp_path}/ran")
    done = node.follow(*slow, code=3)
    assert message in done.err and f"the prepare command for {second.short}" in done.err
    assert node.holds(first) and node.reported() == [first]
    assert sorted(node.mvc.folder.iterdir()) == beside and not (tmp_path / "ran").exists()
    node.follow("--prepare", "true")
    assert node.holds(second) and node.reported() == [first, second]


@pytest.mark.parametrize("harm", ["rm", "truncate -s 9"])
def test_a_preparation_that_changes_what_is_prepared(harm: str, node: Node) -> None:
    first = node.deploy(1)
    node.follow()
    second = node.deploy(2)
    command = f'find "$DEPLOY_PREPARED" -type f ! -name "two*" -exec {harm} {{}} +'
    node.follow("--prepare", command, code=None)
    assert node.holds(first)
    node.follow("--prepare", "true")
    assert node.holds(second) and node.reported() == [first, second]


def test_a_failed_command_goes_back(node: Node, tmp_path: Path) -> None:
    told = tmp_path / "told"
    required = ("--exec-required", "--exec")
    first = node.deploy(1)
    node.follow(*required, "true")
    second = node.deploy(2)
    failing = f'test "$DEPLOY_VERSION" != {second}'
    for _ in range(2):  # it is tried again like other errors
        done = node.follow(*required, telling(told, failing), code=3)
        (line, _) = done.err.splitlines()
        assert line.startswith(f"mvc: {node.place} is {first.short} again: the command for ")
        assert f"{second.short} failed with exit status 1" in line
        assert node.holds(first)
        there, back = calls(told)
        assert (there["version"], there["previous"]) == (str(second), str(first))
        assert (back["version"], back["previous"]) == (str(first), str(second))
        assert (there["rollback"], back["rollback"]) == (False, True)
    assert node.reported() == [first, second, first, second, first]
    node.follow(*required, "true")
    assert node.holds(second)
    node.repo.rollback("prod")
    node.follow(*required, "true")
    assert node.holds(first) and node.reported()[-3:] == [first, second, first]


def test_a_failed_command_for_both_is_one_sentence(node: Node) -> None:
    first = node.deploy(1)
    node.follow()
    second = node.deploy(2)
    done = node.follow("--exec-required", "--exec", "exit 4", code=3)
    failed = "failed with exit status 4"
    assert done.err.splitlines() == [
        f"mvc: {node.place} is {first.short} again: the command for {second.short} {failed}, and "
        f"then the command for {first.short} {failed}: the engine may serve another version",
        "hint: repair the command, then run mvc follow again",
    ]
    assert node.holds(first)


def test_nothing_to_go_back_to(node: Node) -> None:
    first = node.deploy(1)
    for _ in range(2):
        done = node.follow("--exec-required", "--exec", "exit 4", code=3)
        assert f"the command for {first.short} failed with exit status 4" in done.err
        assert node.holds(first)
    node.follow("--exec-required", "--exec", "true")
    assert node.reported() == [first]


def test_without_exec_required_the_new_version_stays(node: Node) -> None:
    node.deploy(1)
    node.follow()
    second = node.deploy(2)
    done = node.follow("--exec", "exit 4")
    assert f"is now {second.short}, but its command failed with exit status 4" in done.err
    assert node.holds(second)


@pytest.mark.parametrize("ends", ["true", "false"])
def test_a_kill_between_the_swap_and_the_command(ends: str, node: Node, tmp_path: Path) -> None:
    first = node.deploy(1)
    node.follow()
    second = node.deploy(2)
    told = tmp_path / "told"
    words = [*node.words, "--once", "--exec-required", "--exec", "kill -9 $PPID"]
    killed = subprocess.run([sys.executable, "-m", "mvc", *map(str, words)], timeout=60)
    assert killed.returncode == -signal.SIGKILL and node.holds(second)
    code = 0 if ends == "true" else 3
    command = telling(told, f'[ "$DEPLOY_VERSION" = {first} ] || {ends}')
    node.follow("--exec-required", "--exec", command, code=code)
    facts = calls(told)[0]
    assert (facts["version"], facts["previous"]) == (str(second), str(first))
    assert node.holds(first if code else second)
    assert node.reported() == ([first, second, first] if code else [first, second])


def test_a_signal_ends_the_preparation(node: Node, tmp_path: Path) -> None:
    first = node.deploy(1)
    node.follow()
    node.deploy(2)
    started = tmp_path / "started"
    words = [
        *node.words,
        "--prepare",
        f"cat; echo $$ > {started}.new; mv {started}.new {started}; sleep 99",
    ]
    with subprocess.Popen([sys.executable, "-m", "mvc", *map(str, words)]) as running:
        until(started.exists, 30)
        running.terminate()
    assert running.returncode == 0 and node.holds(first)
    assert not _runs(int(started.read_text()))


def test_a_command_is_ended_with_all_that_it_started(node: Node, tmp_path: Path) -> None:
    node.deploy(1)
    started = tmp_path / "started"
    command = f"sleep 120 & echo $! > {started}; sleep 120"
    done = node.follow("--exec", command, "--exec-timeout", "0.5")
    assert "took longer than 0.5 s and was killed" in done.err
    until(lambda: not _runs(int(started.read_text())))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_follower_that_runs_tries_again(node: Node, tmp_path: Path) -> None:
    """After a pause, and at once when something else is live."""
    first = node.deploy(1)
    node.follow()
    second = node.deploy(2)
    changes: list[Followed] = []
    failing = f'test "$DEPLOY_VERSION" != {second}'
    sink = ReplicaSink(node.to, in_place=node.in_place, name="7", command=failing, required=True)
    with (
        pytest.warns(NotFollowing, match=f"is {first.short} again"),
        Follower(node.repo.root, "prod", sink, on_change=changes.append) as follower,
    ):
        running = Thread(target=follower.run, args=(0.1,))
        running.start()
        until(lambda: node.reported() == [first, second, first])
        third = node.deploy(3)
        until(lambda: bool(changes), 30)
        follower.close()
        running.join()
    assert [each.commit for each in changes] == [third] and node.holds(third)


def test_every_byte_is_read_where_that_is_asked_for(node: Node) -> None:
    first = node.deploy(1)
    node.follow()
    file = node.place / PATHS[1] if node.is_folder else node.place
    seen = file.stat()
    with file.open("r+b") as raw:  # a bit that the disk lost: no time tells
        raw.seek(-1, os.SEEK_END)
        byte = raw.read(1)
        raw.seek(-1, os.SEEK_END)
        raw.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    second = node.deploy(2)
    node.follow("--verify", "full")
    assert node.holds(second)
    assert first != second


def test_lines_that_make_no_sense(node: Node) -> None:
    node.deploy(1)
    for more, message in (
        (["--exec-required"], "--exec"),
        (["--exec", "true", "--exec-timeout", "0"], "exec-timeout"),
        (["--verify", "half"], "verify"),
    ):
        assert message in node.follow(*more, code=2).err


def test_the_error_has_a_class(node: Node) -> None:
    node.deploy(1)
    sink = ReplicaSink(node.to, in_place=node.in_place, prepare="exit 1")
    with Follower(node.repo.root, "prod", sink) as follower, pytest.raises(CommandFailed):
        follower.poll()
    assert not node.place.exists()
