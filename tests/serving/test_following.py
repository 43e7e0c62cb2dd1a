"""A Follower beside processes that deploy, roll back, retract and collect, all killed at random.

The record at the end says what was live when, by a reading of its own. So it can be said of each
version that was served, and of each that was seen in the file, whether the record said so.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import mvc
from mvc.ids import CommitId
from tests.counters import count
from tests.seeds import draw
from tests.serving.following import TARGET, number_in, state

PROJECT = Path(__file__).parents[2]
SECOND = 10**9
NEVER = 1 << 64
_SLEEP = 0.002


# -- what the record says ------------------------------------------------------------------------


class Span(NamedTuple):
    """``live`` was live from ``start`` until ``end`` (ns); None for nothing."""

    start: int
    end: int
    live: mvc.Deployed | None


def history(record: Sequence[mvc.Deployed]) -> list[Span]:
    """What was live when, by the rule of docs/commands/deployments.md, from plain fields."""
    moments = {d.recorded_ns for d in record} | {d.retracted_ns for d in record if d.retracted}
    moments |= {d.time_ns for d in record if d.time_ns > d.recorded_ns}
    ordered = sorted(moment for moment in moments if moment is not None)
    spans = [
        Span(start, end, live_at(record, start))
        for start, end in zip(ordered, [*ordered[1:], NEVER], strict=True)
    ]
    found: list[Span] = []
    for span in spans:
        if found and _commit(found[-1]) == _commit(span):
            found[-1] = found[-1]._replace(end=span.end)
        else:
            found.append(span)
    return found


def _commit(span: Span) -> CommitId | None:
    return None if span.live is None else span.live.commit


def live_at(record: Sequence[mvc.Deployed], now: int) -> mvc.Deployed | None:
    known = [d for d in record if d.recorded_ns <= now]
    counts = [d for d in known if d.retracted_ns is None or d.retracted_ns > now]
    newest = max((d for d in counts if not d.dated), key=lambda d: d.sequence, default=None)
    place = (-1, -1) if newest is None else (newest.time_ns, newest.sequence)
    later = [d for d in counts if d.dated and place < (d.time_ns, d.sequence) and d.time_ns <= now]
    return max(later, key=lambda d: (d.time_ns, d.sequence), default=newest)


# -- processes -----------------------------------------------------------------------------------


class Process:
    """A child that is killed and begun again; ``lives`` are what each life of it printed."""

    def __init__(self, folder: Path, kind: str, *arguments: str) -> None:
        self._folder, self._arguments, self._kind = folder, arguments, kind
        self._files: list[Path] = []
        self.begin()

    def begin(self) -> None:
        self._files.append(self._folder / f"{self._kind}-{len(self._files)}")
        arguments = [self._kind, *self._arguments]
        if self._kind != "follow":
            arguments.append(f"{self._kind} {len(self._files)}")
        with self._files[-1].open("wb") as out:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.serving.following", *arguments],
                cwd=PROJECT, stdout=out,
            )  # fmt: skip

    def has_begun(self) -> bool:
        """Whether it has done anything in this life: on a busy machine that takes a while."""
        return self._files[-1].stat().st_size > 0

    def kill(self) -> None:
        assert self._child.poll() is None, f"{self._kind} has ended by itself"
        self.end()

    def end(self) -> None:
        self._child.kill()
        self._child.wait()

    @property
    def lives(self) -> list[list[tuple[int, int]]]:
        """Of a Follower: its swaps, as the number of the version and the moment (ns)."""
        texts = [file.read_text() for file in self._files]
        whole = [text[: text.rfind("\n") + 1].splitlines() for text in texts]
        return [[(int(s), int(t)) for s, t in map(str.split, lines)] for lines in whole]

    @property
    def swaps(self) -> int:
        return sum(map(len, self.lives))


class Watcher(threading.Thread):
    """Reads the file on and on; ``seen`` are the numbers it held, each with when (ns).

    ``held_up``: the most seconds by which a short sleep was longer, on a busy machine.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._ending = file, threading.Event()
        self.seen: list[tuple[int, int]] = []
        self.reads = 0
        self.held_up = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._slept():
                if self._file.exists():
                    number = number_in(self._file.read_bytes())
                    self.reads += 1
                    if not self.seen or self.seen[-1][0] != number:
                        self.seen.append((number, time.time_ns()))
        except BaseException as error:
            self.failure = error

    def _slept(self) -> bool:
        began = time.monotonic()
        ending = self._ending.wait(_SLEEP)
        self.held_up = max(self.held_up, time.monotonic() - began - _SLEEP)
        return ending

    def end(self) -> None:
        self._ending.set()
        self.join()
        if self.failure is not None:
            raise self.failure


def followed(folder: Path, rng: random.Random, swaps: int, limit: float) -> None:
    """So many swaps; ``limit``: seconds after which the newest version must be served.

    On a busy machine a process waits at each of its steps, for a processor or the disk: some of
    that is allowed, and more of it for one swap in a hundred.
    """
    root, file = folder / "models", folder / "served.safetensors"
    with mvc.Repository.init(root) as repo:
        repo.commit(state(1), message="1", deploy=TARGET)
    watcher = Watcher(file)
    publisher, keeper = (Process(folder, kind, str(root)) for kind in ("publish", "keep"))
    follower = Process(folder, "follow", str(root), str(file))
    kills = 0
    watcher.start()
    try:
        while follower.swaps < swaps:
            time.sleep(rng.uniform(0.5, 3.0))
            process = rng.choice((publisher, keeper, follower, follower))
            if process.has_begun():
                process.kill()
                process.begin()
                kills += 1
        publisher.kill()
        keeper.kill()
        settled = _settled(root, file, limit)
    finally:
        for process in (publisher, keeper, follower):
            process.end()
        watcher.end()
    with mvc.Repository.open(root) as repo:
        record = repo.deployments(TARGET)
        numbers = {d.commit: int(repo.version(d.commit).message) for d in record}
        assert repo.storage.fsck().problems == ()
    spans = history(record)

    def number(span: Span) -> int | None:
        return None if span.live is None else numbers[span.live.commit]

    _check_order([swap for life in follower.lives for swap in life], spans, number)
    _check_order(watcher.seen, spans, number)
    late = sorted(_late(follower.lives, spans, number))
    count(
        f"{swaps} swaps of a Follower beside deployments, rollbacks, retractions, gc, kill -9",
        swaps=follower.swaps,
        kills=kills,
        changes=len(spans),
        reads=watcher.reads,
        max_median_late_ms=late[len(late) // 2] // 10**6,
        max_held_up_ms=int(watcher.held_up * 1000),
        max_late_ms=late[-1] // 10**6,
        max_settled_ms=int(settled * 1000),
    )
    assert late[len(late) * 99 // 100] < (limit + watcher.held_up) * SECOND
    assert late[-1] < (limit + 10 * watcher.held_up) * SECOND


def _settled(root: Path, file: Path, limit: float) -> float:
    """Seconds until the file is what stays live."""
    with mvc.Repository.open(root) as repo:
        while time.time_ns() <= max(d.time_ns for d in repo.deployments(TARGET)):
            time.sleep(0.01)
        wanted = int(repo.version(repo.live(TARGET)).message)
    began = time.monotonic()
    while number_in(file.read_bytes()) != wanted:
        assert time.monotonic() - began < max(3 * limit, 20)
        time.sleep(0.002)
    return time.monotonic() - began


def _check_order(
    served: Sequence[tuple[int, int]], spans: Sequence[Span], key: Callable[[Span], int | None]
) -> None:
    """What was served was live by the record before that, in this order; some may be left out."""
    at = 0
    for what, moment in served:
        while key(spans[at]) != what:
            at += 1
            assert at < len(spans), f"{what}, served at {moment}, was not live then"
        assert spans[at].start <= moment, f"{what} was served before it was live"


def _late(
    lives: Sequence[Sequence[tuple[int, int]]],
    spans: Sequence[Span],
    key: Callable[[Span], int | None],
) -> list[int]:
    """For each swap of a Follower that lived on: how long (ns) its version was live no more."""
    found = []
    for life in lives:
        for (number, moment), (_, after) in pairwise(life):
            ends = [s.end for s in spans if key(s) == number and s.start <= moment]
            found.append(max(0, after - ends[-1]))
    return found


def test_some_swaps(tmp_path: Path) -> None:
    followed(tmp_path, draw("following"), swaps=40, limit=20)


@pytest.mark.long
def test_a_thousand_swaps(tmp_path: Path) -> None:
    followed(tmp_path, draw("following"), swaps=1000, limit=1)
