"""Clones, fetches and pushes that are interrupted at a point, and then done again.

``python -m tests.remote.interrupted FOLDER SEED KIND HOW POINTS`` prints counters as JSON. HOW:
``kill``: the client's process dies before its n-th change of a file (behind a folder, that is both
sides); ``server``: the other end's process dies so; ``up``, ``down``: the connection is cut after n
bytes; ``lost``: the n-th answer is lost. After each: what either side has is whole, refs moved all
or none, and the same command then brings everything, without an unlocking; of what was received
at most one slice is sent again.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mvc
from mvc.api.repository import Repository
from mvc.errors import RemoteUnreachable, WouldOverwrite
from mvc.ids import CommitId
from mvc.testing import fresh_process, open_quietly
from tests.crash.forks import Send, fork, run, warm_up
from tests.remote.kit.dying import count_changes, die_at
from tests.remote.kit.mixed import model, moved
from tests.remote.kit.places import Place, place
from tests.remote.kit.same import assert_clean, assert_same, known, refs_of, states

VERBS = ("push", "fetch", "clone")
VERSIONS = 6
SLICE = 3_000
"""Bytes of a slice, so that the few versions go in several."""
CHANGES = 60
"""Of files, that a push of them makes at the other end, about."""
LARGEST, ROUND = 12_000, 8_000
"""Bytes of a version that is a slice of its own; of what frames a second try."""


@dataclass
class World:
    """``a`` has all versions, the remote two (``push``) or all; ``b`` is a clone with two."""

    folder: Path
    remote: Place
    expected: dict[CommitId, Any] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.folder / "work"


def _grow(repo: Repository, first: int, last: int) -> None:
    for i in range(first, last):
        repo.commit(moved(model(), i), message=str(i), deploy="prod" if i % 2 else None)
    repo.tag(f"v{last}", "HEAD")


def build(world: World) -> dict[CommitId, Any]:
    """The world before each push; kept aside, as is the one before fetch and clone. Its states."""
    with Repository.init(world.work / "a") as repo:
        _grow(repo, 0, 2)
        repo.remotes.add("origin", world.remote.url)
        repo.push("origin", every=True)
        mvc.clone(world.remote.url, world.work / "b").close()
        _grow(repo, 2, VERSIONS)
        keep(world, "before-push")
        repo.push("origin", every=True)
        keep(world, "before-fetch")
        return states(repo, known(repo))


def keep(world: World, name: str) -> None:
    shutil.copytree(world.work, world.folder / name / "work")
    world.remote.save(world.folder / name / "remote")


def lay(world: World, verb: str) -> None:
    """The world as it is before the verb."""
    aside = world.folder / ("before-push" if verb == "push" else "before-fetch")
    shutil.rmtree(world.work)
    shutil.copytree(aside / "work", world.work)
    world.remote.restore(aside / "remote")


def act(world: World, verb: str) -> None:
    fresh_process()
    if verb == "clone":
        mvc.clone(world.remote.url, world.work / "c").close()
        return
    with open_quietly(world.work / ("a" if verb == "push" else "b")) as repo:
        if verb == "push":
            repo.push("origin", every=True)
        else:
            repo.fetch("origin")


def look(world: World, verb: str) -> None:
    """Nothing lost, nothing wrong: every repository is clean, refs are all old or all new."""
    fresh_process()
    places = [
        world.work / "a",
        world.work / "b",
        *([world.remote.root] if world.remote.root else []),
    ]
    for root in places:
        with open_quietly(root) as repo:
            assert_clean(repo)
            for id_, found in states(repo, known(repo)).items():
                assert found == world.expected[id_], root
            if root == world.remote.root:
                there = refs_of(repo)
                assert len(there) in ({2, 3} if verb == "push" else {3}), there
                assert ("tags/v6" in there) == (len(known(repo)) == VERSIONS)


def act_again(world: World, verb: str) -> None:
    """The same command works. A clone that was not known to be whole when it was cut may be."""
    try:
        act(world, verb)
    except WouldOverwrite:
        assert verb == "clone" and (world.work / "c/.mvc").exists()


def finish(world: World, verb: str) -> None:
    """All is there; gc then finds nothing in its way."""
    fresh_process()
    receiver = {"push": world.remote.root, "fetch": world.work / "b", "clone": world.work / "c"}[
        verb
    ]
    if receiver is None:
        mvc.clone(world.remote.url, receiver := world.work / "d").close()
    with open_quietly(world.work / "a") as source, open_quietly(receiver) as repo:
        assert_same(source, repo) if verb != "fetch" else _fetched(source, repo)
        repo.storage.gc(grace="0")
        assert_clean(repo)
    left = [path for path in world.work.iterdir() if path.name not in set("abcd")]
    assert not left, left


def _fetched(source: Repository, repo: Repository) -> None:
    assert repo.find("origin/main") == source.find("main")
    assert repo.find("v6") == source.find("v6")
    assert_clean(repo)


def settle(world: World, verb: str) -> None:
    for step in (look, act_again, finish):
        run(lambda send, step=step: step(world, verb))


def in_child(work: Callable[[Send], None]) -> tuple[list[Any], int]:
    return fork(work).end()


# -- ways to interrupt ---------------------------------------------------------------------


def kill(world: World, verb: str, point: float) -> Counter[str]:
    """The client dies; a dry run says of how many changes."""
    lay(world, verb)

    def dry(send: Send) -> None:
        changes = count_changes()
        act(world, verb)
        send(changes())

    (total,) = run(dry)
    lay(world, verb)

    def dying(send: Send) -> None:
        die_at(1 + int(point * total))
        act(world, verb)

    _, status = in_child(dying)
    assert status in (0, -signal.SIGKILL), f"{verb} ended with {status}"
    settle(world, verb)
    return Counter(points=1, interrupted=status != 0)


def cut(world: World, verb: str, how: str, point: float) -> Counter[str]:
    """The connection is cut at a share of the bytes, or at one of the answers."""
    lay(world, verb)
    with world.remote.counted() as wire:
        run(lambda send: act(world, verb))
        sums = {"up": wire.up, "down": wire.down, "lost": wire.trips}
        whole = wire.up + wire.down
    lay(world, verb)
    with world.remote.counted() as wire:
        wire.fail(**{how: 1 + int(point * sums[how])})
        values, status = in_child(lambda send: _unreachable(world, verb, send))
        assert status == 0, f"{verb} ended with {status}"
        failed = values == ["unreachable"]
        sent = wire.up + wire.down
        wire.again()
        run(lambda send: look(world, verb))
        wire.again()
        run(lambda send: act_again(world, verb))
        again = sent + wire.up + wire.down - whole
        run(lambda send: finish(world, verb))
        assert again <= SLICE + LARGEST + ROUND, (verb, again)
    return Counter(points=1, interrupted=failed, sent_again=again)


def kill_server(world: World, verb: str, rng: random.Random) -> Counter[str]:
    """The process at the other end of ssh dies; if it makes fewer changes it does not."""
    lay(world, verb)
    world.remote.kill_next(rng.randrange(1, CHANGES if verb == "push" else 4))
    values, status = in_child(lambda send: _unreachable(world, verb, send))
    assert status == 0, f"{verb} ended with {status}"
    settle(world, verb)
    return Counter(points=1, interrupted=values == ["unreachable"])


def _unreachable(world: World, verb: str, send: Send) -> None:
    """A client may settle it by itself; else it says so by name."""
    try:
        act(world, verb)
    except RemoteUnreachable:
        send("unreachable")


def main(folder: Path, seed: str, kind: str, how: str, points: int) -> None:
    rng = random.Random(seed)
    run(lambda send: warm_up(folder / "warm"))
    warm_up(folder / "warm-parent")
    with place(kind, folder / "place", slice_bytes=SLICE) as remote:
        world = World(folder, remote)
        (world.expected,) = run(lambda send: send(build(world)))  # has started threads
        counted, most = Counter[str](), 0
        for i in range(points):
            verb = VERBS[i % len(VERBS)]
            point = (i // len(VERBS) + rng.random()) / -(-points // len(VERBS))
            if how == "server":
                found = kill_server(world, verb, rng)
            else:
                found = kill(world, verb, point) if how == "kill" else cut(world, verb, how, point)
            most = max(most, found.pop("sent_again", 0))
            counted += found
    print(json.dumps({**counted, "max_sent_again": most}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5]))  # type: ignore[call-arg]
