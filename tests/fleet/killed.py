"""A follower that is killed, robbed of its file, and left without its server, at so many points.

``python -m tests.fleet.killed FOLDER SEED KIND POINTS`` prints counters as JSON. KIND: ``folder``
or ``http`` of a file, ``folder/`` or ``http/`` of a sharded model in a folder; with a ``+`` at the
end it is written in place, and nobody reads it before the next start. Before each point
something else goes live: a version, or one from before by one or two rollbacks. Then, in turn: the
follower dies before its n-th change of a file (``call``), or at some time while it follows
(``time``); its file is changed by a byte (``flip``), deleted (``delete``), or what lies beside it
is (``beside``); the remote is away while a version comes and is rolled back twice (``away``); or it
is killed while versions come, are rolled back, forgotten and collected (``busy``). Whoever reads
the file, or the folder through one link, at any time reads a version that was deployed, and no
mixture; in the end it is the one that is live; and the reports name every version that it was,
since when.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from mvc.api.repository import Repository
from mvc.errors import MvcWarning, RemoteUnreachable, UnknownTarget
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.remote.replicas.replica import Replica
from mvc.testing import open_quietly
from tests.crash.forks import Child, Send, fork, run, warm_up
from tests.fleet.folders import commit, contents
from tests.fleet.following import follow
from tests.remote.kit.dying import count_changes, die_at
from tests.remote.kit.serving import serving, token
from tests.server.moving import served_folder

WAYS = ("call", "time", "call", "flip", "call", "delete", "call", "beside", "busy", "away")
PATH = "m.safetensors"
NODE = "nodes/7/prod"


class Remote:
    """The repository that is followed, and its owner."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = served_folder(folder / "served")
        self.root = self.folder / "models"
        self._kind, self._stack = kind.rstrip("/+"), ExitStack()
        self._is_sharded = "/" in kind
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        os.environ["MVC_TOKEN_ORIGIN"] = token(self.folder, "read,deploy:nodes/7/*")
        self._place = self.root
        self._random = np.random.default_rng(0)
        self._weights = {f"t{i}": self._random.random(3000, np.float32) for i in range(3)}
        self.files: dict[str, CommitId] = {}
        """Versions that were deployed, by the hash of what they hold."""
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self._step = 0

    @property
    def url(self) -> str:
        if self._kind == "folder":
            return str(self._place)
        return f"http://127.0.0.1:{self._port}/models"

    def comes(self) -> None:
        if self._kind == "http":
            address = f"127.0.0.1:{self._port}"
            self._stack.enter_context(serving(self.folder, address=address, patience=120))
        elif self.root != self._place:
            self.root.rename(self._place)
            self.root = self._place

    def goes(self) -> None:
        self._stack.close()
        if self._kind == "folder":
            self.root = self.root.rename(self.root.with_name("away"))

    def deploy(self) -> None:
        with open_quietly(self.root) as repo:
            if self._is_sharded:
                made, place = self._commit_shards(repo), self._scratch / "folder"
                repo.checkout(made, to=place, atomic_dir=True)
            else:
                for name in self._weights:
                    self._weights[name] = self._weights[name] * np.float32(1.001)
                made, place = repo.commit(self._weights, path=PATH).id, self._scratch / PATH
                repo.checkout(made, path=PATH, to=place, force=True)
            self.files[digest(place)] = made  # before anybody can see it
            repo.deploy(made, "prod")

    def _commit_shards(self, repo: Repository) -> CommitId:
        self._step += 1
        changed = ((0, 1), (0,), (1,))[self._step % 3]
        return commit(repo, self._scratch / "work", self._step, changed=changed, deploy=None)

    def collect(self) -> None:
        """A version that was never live is forgotten, and its bytes go."""
        with open_quietly(self.root) as repo:
            lost = (
                self._commit_shards(repo)
                if self._is_sharded
                else repo.commit(self._weights, path=PATH).id
            )
            self.deploy()
            repo.storage.forget([lost])
            repo.storage.gc(grace="0")

    def change(self, rng: random.Random) -> None:
        """Something else goes live."""
        steps = rng.choice((0, 0, 0, 1, 2))
        self.deploy()
        with open_quietly(self.root) as repo:
            for _ in range(steps if len(self.files) > 3 else 0):
                repo.rollback("prod")

    @property
    def live(self) -> CommitId:
        with open_quietly(self.root) as repo:
            return repo.live("prod").commit

    def reports(self) -> list[tuple[CommitId, int]]:
        found = list[tuple[int, CommitId]]()
        with open_quietly(self.root) as repo, suppress(UnknownTarget):
            found = [(d.time_ns, d.commit) for d in repo.deployments(NODE)]
        return [(commit, at) for at, commit in sorted(found)]


def digest(place: Path) -> str:
    """A hash of a file, or of all files in a folder."""
    hasher = hashlib.sha256()
    for name, data in sorted(contents(place).items()):
        hasher.update(f"{name} {len(data)} ".encode() + data)
    return hasher.hexdigest()


class World:
    def __init__(self, folder: Path, kind: str, rng: random.Random) -> None:
        self.remote, self.rng = Remote(folder, kind), rng
        self.is_sharded, self.in_place = "/" in kind, kind.endswith("+")
        self.file = folder / "node" / ("live" if self.is_sharded else "served.safetensors")
        self.file.parent.mkdir()
        self.beside = self.file.with_name(f".{self.file.name}.mvc")
        self.allowed: set[str] = set()  # what somebody else wrote, until it is replaced
        self.held: list[CommitId] = []
        """The versions that the file was seen to be, one after the other."""
        self.begun_ns = time.time_ns()
        self.slowest = self.changed = 0.0
        """Seconds from a start to the newest version; when another one was seen."""

    # -- the follower ----------------------------------------------------------------------

    def follow(self, *, once: bool = True) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MvcWarning)
            options = {"name": "7", "in_place": self.in_place}
            follow(self.remote.url, "prod", to=self.file, once=once, **options)

    def in_child(self, act: Callable[[Send], None], meanwhile: float | None = None) -> int:
        """Looks at the file all the time; kills the child after so many seconds."""
        child, begun = fork(act), time.monotonic()
        while not child.ended(0.002):
            self.look(meanwhile=True)
            if meanwhile is not None and time.monotonic() - begun > meanwhile:
                child.kill()
        return self._ended(child)

    def _ended(self, child: Child) -> int:
        _, status = child.end()
        self.look()
        assert status in (0, -signal.SIGKILL), f"the follower ended with {status}"
        return status

    def look(self, *, meanwhile: bool = False) -> CommitId | None:
        """Which version the file is; it is always a whole one, also ``meanwhile`` it is followed.

        What is written in place may be a mixture then, and after a kill, up to the next start.
        """
        if self.in_place:
            if meanwhile:
                return None
            Replica(FileSystem(), self.file, folder=self.is_sharded, in_place=True).close()
        while True:
            led = self.file.resolve()
            try:
                seen = digest(self.file)
                break
            except FileNotFoundError:
                if self.file.resolve() == led:  # else it was swapped twice meanwhile
                    return None
        if seen in self.allowed:
            return None
        version = self.remote.files[seen]  # else it is no version that was deployed
        if not self.held or self.held[-1] != version:
            self.held.append(version)
            self.changed = time.monotonic()
        return version

    # -- points ----------------------------------------------------------------------------

    def call(self, changes: int) -> bool:
        number = self.rng.randrange(1, changes + 1)

        def dying(send: Send) -> None:
            die_at(number)
            self.follow()

        return self.in_child(dying) != 0

    def time(self, changes: int) -> bool:
        del changes
        return self.in_child(lambda send: self.follow(once=False), self.rng.uniform(0, 1)) != 0

    def busy(self, changes: int) -> bool:
        """It is killed while one version after the other comes and goes."""
        del changes
        child = fork(lambda send: self.follow(once=False))
        for act in self.rng.sample([self.remote.collect, self.remote.deploy] * 2, 3):
            act()
            self.remote.change(self.rng)
            self.look(meanwhile=True)
        child.kill()
        return self._ended(child) != 0

    def _some_file(self) -> Path:
        if not self.is_sharded:
            return self.file
        return self.file.resolve() / self.rng.choice(sorted(contents(self.file)))

    def flip(self, changes: int) -> bool:
        file = self._some_file()
        data = bytearray(file.read_bytes())
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        file.write_bytes(data)
        self.allowed = {digest(self.file)}
        return self.rng.random() < 0.5 and self.call(changes)

    def delete(self, changes: int) -> bool:
        if self.is_sharded and self.rng.random() < 0.5:
            self._some_file().unlink()
            self.allowed = {digest(self.file)}
        elif self.is_sharded and self.rng.random() < 0.5:
            shutil.rmtree(self.file.resolve())
        elif self.is_sharded and self.in_place:
            shutil.rmtree(self.file)
        else:
            self.file.unlink()
        return self.rng.random() < 0.5 and self.call(changes)

    def beside_(self, changes: int) -> bool:
        """What it remembers is deleted or damaged; reports that wait there are lost with it."""
        for place in sorted(self.beside.rglob("*")):
            if place.is_file() and place.name != "reports" and self.rng.random() < 0.5:
                if self.rng.random() < 0.5:
                    place.unlink()
                else:
                    data = bytearray(place.read_bytes())
                    place.write_bytes(data[: len(data) // 2] + self.rng.randbytes(9))
        return self.rng.random() < 0.5 and self.call(changes)

    def away(self, changes: int) -> bool:
        self.remote.goes()
        before = self.look()

        def unreachable(send: Send) -> None:
            with suppress(RemoteUnreachable):
                self.follow()
                raise AssertionError("somebody answered")

        try:
            self.in_child(unreachable)
            assert self.look() == before
            self.remote.deploy()
            with open_quietly(self.remote.root) as repo:
                repo.rollback("prod")
                repo.rollback("prod")
            if self.rng.random() < 0.5:
                self.in_child(lambda send: self.follow(once=False), self.rng.uniform(0, 1))
                assert self.look() == before
        finally:
            self.remote.comes()
        return False

    # -- in the end --------------------------------------------------------------------------

    def finish(self) -> None:
        """A follower that starts again serves what is live, and has said all it served."""
        begun = time.monotonic()
        assert self.in_child(lambda send: self.follow()) == 0
        self.slowest = max(self.slowest, self.changed - begun)
        self.allowed = set()
        assert self.look() == self.remote.live
        reports = self.remote.reports()
        said = [commit for commit, _ in reports]
        assert said[-1] == self.held[-1], "the newest report is not what is served"
        missing = [id_.short for id_ in self.held if id_ not in said]
        assert not missing, f"served and never reported: {missing}"
        assert all(self.begun_ns <= at <= time.time_ns() for _, at in reports)


@contextmanager
def _there(remote: Remote) -> Iterator[None]:
    remote.comes()
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            remote.goes()


def main(folder: Path, seed: str, kind: str, points: int) -> None:
    rng = random.Random(seed)
    run(lambda send: warm_up(folder / "warm"))
    warm_up(folder / "warm-parent")
    world, counted = World(folder, kind, rng), Counter[str]()
    with _there(world.remote):
        for _ in range(2):
            world.remote.deploy()

            def dry(send: Send) -> None:
                counting = count_changes()
                world.follow()
                send(counting())

            (changes,) = run(dry)
            world.look()
        for i in range(points):
            world.remote.change(rng)
            way = WAYS[i % len(WAYS)]
            act = world.beside_ if way == "beside" else getattr(world, way)
            died = act(changes)
            counted += Counter({"points": 1, "killed": died, way: 1})
            if rng.random() < 0.5:  # what it was killed on is old before it comes back
                world.remote.deploy()
            world.finish()
    shutil.rmtree(folder / "served")
    print(json.dumps({**counted, "reports": len(world.held), "max_ms": int(world.slowest * 1000)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
