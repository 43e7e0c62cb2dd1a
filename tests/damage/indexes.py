"""Damaging the LMDB file of the index: what answers then, and whether the process lives.

LMDB does not notice flipped bits and may be led out of its map by them, so each case has
a process of its own, forked from this one. It opens the repository in one of three ways:
to read where the folder can be written (a damaged index is remade), to read where it
cannot (nothing is remade), or to commit and extend the index. All questions that the
index answers are then asked: refs, log, deployments, what was live when, removals,
versions by content, every key of the index against those of the sound one, and two
checkouts. Where a process died, deleting the index must cure it: all answers are right again.

Run as a process: ``python -m tests.damage.indexes ROOT SEED COUNT`` prints counters; what
was wrong, died or hung is on stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from mvc.errors import MvcError
from mvc.io.files import FileSystem
from mvc.maintenance.fsck.fsck import forget_index
from mvc.store.index import keys
from mvc.testing import FixedClock
from tests.crash.story import state_of
from tests.index_files import index_file
from tests.lent_index import open_index

__all__ = ["KINDS", "MODES", "case", "outcome_of", "prepare"]

PAGE = 4096
MODES = ("read", "read_only", "read", "read_only", "commit")
KINDS = ("bit", "bit_of_meta", "bit_of_page_header", "truncated")
_RIGHT, _REMADE, _REFUSED, _WRONG, _FOREIGN = range(5)
_LONGEST = 60  # seconds after which a process counts as one that hangs
_START, _SECOND = 1_750_000_000_000_000_000, 1_000_000_000


class _ReadOnly(FileSystem):
    def is_writable_dir(self, path: Path) -> bool:
        return False


def _state(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full(50, step, np.float32), "step": np.array(step)}


def build(root: Path) -> None:
    """Operations of all kinds, in several runs of the index; some are not indexed."""
    with Repository.init(root, clock=FixedClock(_START, _SECOND)) as repo:
        for step in range(40):
            repo.commit(_state(step), deploy=("prod", "edge")[step % 2] if step % 3 else None)
            if step % 5 == 0:
                repo.tag(f"v{step}")
                repo.branch(f"b{step}")
            if step % 7 == 3:
                repo.retract(None, "prod")
            if step in (8, 16, 20, 24, 28, 35):
                repo.handle.store.snapshot.index_tail(force=True)


def _answers(repo: Repository) -> list[Any]:
    """Everything that look-ups say."""
    view = repo.handle.store.fresh()
    refs = [(r.name, r.commit) for r in (*repo.refs(), *repo.refs("tag"))]
    log = [entry.commit.id for entry in repo.log("main")]
    live: list[Any] = []
    for target in ("prod", "edge"):
        for at in range(_START, _START + 120 * _SECOND, 7 * _SECOND):
            try:
                live.append(repo.live(target, at=at).commit)
            except MvcError as error:
                live.append(error.kind)
    graph = repo.handle.store.graph
    homes = [
        graph.entries_holding(graph.resolve_prefix(key[1:9]) or b"")
        for key in view.under(keys.BLOB)
    ]
    every = [k for k in view.scan(b"", b"\xff" * 40) if k[:1] != keys.EDGE]
    found = [repo.find(id_.hex()[:12]) for id_ in log]
    return [state_of(repo.handle), refs, log, live, homes, every, found]


def _check(root: Path, mode: str, expected: list[Any]) -> int:
    """What became of one case, in a process that may die here."""
    fs = _ReadOnly() if mode == "read_only" else None
    try:
        with Repository.open(root, discover=False, fs=fs) as repo:
            before = _answers(repo)
            remade = repo.handle.store.snapshot.rebuilt or open_index(repo) is None
            heads = [repo.checkout(rev, path="model.safetensors") for rev in ("main", "main~20")]
            if before != expected or [int(h["step"]) for h in heads] != [39, 19]:
                return _WRONG
            if mode == "commit":
                made = repo.commit(_state(77), deploy="prod", message="behind the damage")
                repo.handle.store.snapshot.index_tail(force=True)
        if mode == "commit":
            with Repository.open(root, discover=False) as repo:
                log = [entry.commit.id for entry in repo.log("main")]
                if log != [made.id, *expected[2]] or repo.live("prod").commit != made.id:
                    return _WRONG
                if int(repo.checkout("main", path="model.safetensors")["step"]) != 77:
                    return _WRONG
    except MvcError:
        return _REFUSED
    except BaseException:
        import traceback

        traceback.print_exc()
        return _FOREIGN
    return _REMADE if remade else _RIGHT


def _cure(root: Path, expected: list[Any]) -> int:
    """0 if all is right once the index is deleted; a commit may have happened before."""
    forget_index(FileSystem(), root / ".mvc")
    with Repository.open(root, discover=False) as repo:
        log = [entry.commit.id for entry in repo.log("main")]
        found = len(log) > len(expected[2]) or _answers(repo) == expected
        same = log[-len(expected[2]) :] == expected[2] and len(log) <= len(expected[2]) + 1
        return 0 if found and same and repo.storage.fsck(full=True).sound else 1


def case(data: bytes, kind: str, rng: random.Random) -> bytes:
    """The index file with one damage."""
    if kind == "truncated":
        return data[
            : rng.choice((rng.randrange(len(data)), PAGE * rng.randrange(len(data) // PAGE)))
        ]
    bit = rng.randrange(8 * len(data))
    if kind == "bit_of_meta":  # magic, version, map size, roots of the trees, last page
        bit = 8 * PAGE * rng.randrange(2) + rng.randrange(8 * 160)
    elif kind == "bit_of_page_header":  # page number, flags, free space, pointers to nodes
        bit = 8 * PAGE * rng.randrange(len(data) // PAGE) + rng.randrange(8 * 48)
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def _in_a_child(work: Any, *arguments: Any) -> int:
    """The exit code of ``work`` in a forked process; negative for a signal."""
    child = os.fork()
    if not child:
        try:
            faulthandler.disable()
            signal.alarm(_LONGEST)
            os._exit(work(*arguments) or 0)
        finally:
            os._exit(_FOREIGN)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def prepare(sound: Path) -> tuple[list[Any], bytes]:
    """Makes the repository; its answers and its index file."""
    assert _in_a_child(build, sound) == 0  # it needs threads, which a fork would not copy
    with Repository.open(sound, discover=False) as repo:
        expected = _answers(repo)
    return expected, index_file(sound).read_bytes()


def outcome_of(sound: Path, work: Path, damaged: bytes, mode: str, expected: list[Any]) -> str:
    """What comes of the index ``damaged`` in a copy ``work`` of the repository."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(sound, work)
    index_file(work).write_bytes(damaged)
    code = _in_a_child(_check, work, mode, expected)
    if code < 0:
        return "hangs" if code == -signal.SIGALRM else "deaths"
    return ("right", "remade", "refused", "wrong", "foreign")[code]


def main(root: Path, seed: int, number: int) -> Counter[str]:
    rng = random.Random(seed)
    sound, work = root / "sound", root / "work"
    root.mkdir()
    expected, index = prepare(sound)
    counted: Counter[str] = Counter(
        tried=0, right=0, remade=0, refused=0, wrong=0, foreign=0, deaths=0, hangs=0, cured=0
    )
    for i in range(number):
        kind, mode = KINDS[i % len(KINDS)], MODES[i // len(KINDS) % len(MODES)]
        damaged = case(index, kind, rng)
        outcome = outcome_of(sound, work, damaged, mode, expected)
        counted["tried"] += 1
        counted[outcome] += 1
        if outcome == "deaths":
            counted["cured"] += _in_a_child(_cure, work, expected) == 0
        if outcome in {"wrong", "foreign", "hangs", "deaths"}:
            pairs = enumerate(zip(index, damaged, strict=False))
            at = [(n, a ^ b) for n, (a, b) in pairs if a != b]
            what = f"{kind}, {mode}, flipped {at}, {len(damaged)} bytes"
            print(f"case {i}, {what}: {outcome}", file=sys.stderr)
    return counted


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
