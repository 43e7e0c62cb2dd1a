"""Who joins late: a follower gets one way to the live version, as short as that of a clone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from threading import Event
from typing import NoReturn

import numpy as np
import pytest

import mvc
from mvc.api import Gone
from mvc.api.repository import Repository
from mvc.errors import NoDeployment, RemoteUnreachable
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.remote.remotes import Remote
from mvc.remote.replicas.replica import Replica
from mvc.remote.replicas.versions import Update
from mvc.remote.transport import Wanted
from mvc.remote.transports.opening import open_transport
from mvc.repo.lookup import manifests
from mvc.serving.follower import Follower
from mvc.serving.sinks import ReplicaSink
from mvc.store.packs.records import (
    CHECK_SIZE,
    PREFIX_SIZE,
    RecordHeader,
    decode_header,
    read_prefix,
)
from mvc.testing import open_quietly
from tests.fleet.folders import contents
from tests.fleet.following import follow
from tests.remote.kit.serving import serving, token
from tests.server.moving import served_folder
from tests.waiting import until

KIB = 1 << 10
NODES = 5
_SAME = {"same": np.arange(300)}


def versions() -> Iterator[dict[str, object]]:
    """A folder of two shards. In each step one in a hundred elements is another one, a tensor and a
    file never change.
    """
    random = np.random.default_rng(0)
    rows = random.standard_normal((4, 20_000), np.float32)
    while True:
        rows[:, random.integers(0, 20_000, 200)] += np.float32(1e-3)
        shards = {"still": np.arange(500), "a": rows[0], "b": rows[1]}, {"c": rows[2], "d": rows[3]}
        yield {"1.safetensors": shards[0], "2.safetensors": shards[1], "same.safetensors": _SAME}


def headers(data: bytes) -> Iterator[RecordHeader]:
    """Those of the records in the bytes of a slice."""
    at = 0
    while at < len(data):
        size, _ = read_prefix(data[at : at + PREFIX_SIZE], len(data) - at, "a slice")
        header = decode_header(data[at : at + PREFIX_SIZE + size + CHECK_SIZE], "a slice")
        at += header.size
        yield header


def test_a_joiner_receives_one_way_of_few_deltas(repo: Repository, tmp_path: Path) -> None:
    for each in islice(versions(), 200):
        made = repo.commit(states=each, deploy="prod")
    opened = open_transport(str(repo.root))
    (given,) = opened.send(Wanted(live="prod", folder=True))
    sent = [*headers(b"".join(map(bytes, given.records)))]
    opened.close()
    with mvc.clone(str(repo.root), tmp_path / "clone") as clone:
        graph, manifest = clone.handle.store.graph, clone.version(made.id).manifest
        objects = {manifest, *manifests.objects(clone.manifest(made.id).entries)}
        paths = [graph.path(id_) for id_ in objects]
        steps = {(s.pack, s.offset): s.header.size for path in paths for s in path.steps}
    deepest = max(path.depth for path in paths)
    assert 0 < deepest < 10
    # no object comes twice, and none by more deltas than a checkout of the clone decodes
    members = [member for header in sent for member in header.members]
    assert len({(member.id, member.start) for member in members}) == len(members)
    assert len(members) <= sum(len(path.steps) for path in paths)
    assert given.size <= 1.02 * sum(steps.values()) + 32 * KIB
    node = tmp_path / "node"
    done = follow(str(repo.root), "prod", to=node, once=True)
    assert done is not None and done.received == given.size
    assert contents(node) == checked_out(repo, made.id, tmp_path / "out")


def checked_out(repo: Repository, version: CommitId, to: Path) -> dict[str, bytes]:
    """What a checkout of a version writes."""
    repo.checkout(version, to=to, atomic_dir=True)
    return contents(to)


class Fleet:
    """Nodes that follow ``prod`` of a server, each a thread with a token of its own."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        root = served_folder(folder / "served") / "models"
        self._stack, self._folder = stack, folder
        self._url = f"{stack.enter_context(serving(folder / 'served')).url}/models"
        self._threads = stack.enter_context(ThreadPoolExecutor(NODES))
        self.trainer = stack.enter_context(open_quietly(root))
        self.folders: dict[str, Path] = {}

    def join(self, name: str) -> None:
        """One more node follows."""
        scopes = ("read", f"deploy:nodes/{name}/*")
        secret = self._folder / f"token-{name}"
        secret.touch(0o600)
        secret.write_text(token(self._folder / "served", *scopes, name=name))
        at = self.folders[name] = self._folder / name / "model"
        at.parent.mkdir()
        follower = Follower(
            self._url, "prod", ReplicaSink(at, name=name), stop=Event(),
            remote={"token_file": str(secret)},
        )  # fmt: skip
        self._stack.callback(follower.close)
        self._threads.submit(follower.run)

    def serves(self, version: CommitId) -> bool:
        """Whether all folders are this version."""
        held = [Replica.noted(FileSystem(), each) for each in self.folders.values()]
        return all(len(noted) == 1 and noted[0].id == version for noted in held)

    def reported(self, version: CommitId) -> bool:
        """Whether the server knows it of all nodes."""
        said = {each.node: each.commit for each in mvc.nodes(self.trainer)}
        return said == dict.fromkeys(self.folders, version)


def story(folder: Path) -> dict[str, float]:
    """Four nodes, one that joins late, a new version, a rollback; seconds until all have each."""
    took: dict[str, float] = {}
    line = versions()
    with ExitStack() as stack:
        fleet = Fleet(stack, folder)
        trainer = fleet.trainer

        def within(what: str, version: CommitId) -> None:
            begun = time.monotonic()
            until(lambda: fleet.serves(version))
            took[what] = time.monotonic() - begun
            until(lambda: fleet.reported(version))
            took[f"{what}, reported"] = time.monotonic() - begun

        made = [trainer.commit(states=each, deploy="prod").id for each in islice(line, 20)]
        for name in range(NODES - 1):
            fleet.join(str(name))
        within("four join", made[-1])
        made.append(trainer.commit(states=next(line), deploy="prod").id)
        within("a version", made[-1])
        fleet.join("late")
        within("one joins late", made[-1])
        made.append(trainer.commit(states=next(line), deploy="prod").id)
        within("a version for all", made[-1])
        trainer.rollback("prod")
        within("a rollback", made[-2])
        there = checked_out(trainer, made[-2], folder / "out")
        assert all(contents(each) == there for each in fleet.folders.values())
    return took


def test_four_nodes_one_that_joins_late_and_a_rollback(tmp_path: Path) -> None:
    assert len(story(tmp_path)) == 10


@pytest.mark.parametrize("joins", [1, 3, 6])
def test_deltas_come_from_then_on(joins: int, repo: Repository, tmp_path: Path) -> None:
    """Also along versions before it, which are no deltas of what it has."""
    sizes = list[int]()
    for i, each in enumerate(islice(versions(), 14)):
        repo.commit(states=each, deploy="prod")
        if i >= joins:
            done = follow(str(repo.root), "prod", to=tmp_path / "node", once=True)
            assert done is not None
            sizes.append(done.received)
    assert max(sizes[1:]) < sizes[0] / 10


def test_a_mirror_of_what_is_live_serves_its_followers(repo: Repository, tmp_path: Path) -> None:
    line, node, root = versions(), tmp_path / "node", tmp_path / "mirror"
    made, sizes = [repo.commit(states=next(line), deploy="prod").id], list[int]()

    def served() -> CommitId:
        mirror.fetch()
        done = follow(str(root), "prod", to=node, once=True)
        assert done is not None and contents(node) == checked_out(repo, done.commit, tmp_path / "o")
        sizes.append(done.received)
        return done.commit

    with mvc.clone(str(repo.root), root, states="live", bare=True) as mirror:
        assert served() == made[0]
        for _ in range(3):
            made += [repo.commit(states=next(line), message=each).id for each in ("a", "b")]
            repo.deploy(made[-1], "prod")
            assert served() == made[-1]
        repo.rollback("prod", steps=2)
        assert served() == made[2]
        repo.deploy(made[3], "prod")  # which came to the mirror without its state
        assert served() == made[3]
        gone = [isinstance(mirror.availability(id_), Gone) for id_ in made]
        assert gone == [False, True, False, False, False, True, False]
    assert max(sizes[1:]) < sizes[0] / 2


@pytest.mark.parametrize("kind", ["folder", "http"])
@pytest.mark.parametrize("what", ["rollback", "retract", "deploy", "end"])
def test_what_is_taken_back_while_it_is_prepared_is_not_served(
    what: str, kind: str, repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is live after it, and a remote that is away, keep it from nothing."""
    monkeypatch.setattr("mvc.remote.replicas.replica.SOON", 0.0)
    line, node = versions(), tmp_path / "node"
    first = repo.commit(states=next(line), deploy="prod").id
    with ExitStack() as stack:
        url, options = str(repo.root), {}
        if kind == "http":
            server = stack.enter_context(serving(tmp_path / "served"))
            url = f"{server.url}/models"
            monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(tmp_path / "served", "read"))
            options = {"name": "origin"}
        opened = open_transport(Remote(url, **options))
        replica = stack.enter_context(closing(Replica(FileSystem(), node, folder=True)))
        replica.update(opened, "prod")
        second = repo.commit(states=next(line), deploy="prod").id

        def gone(self: object, wanted: Wanted) -> NoReturn:
            raise RemoteUnreachable("the remote is away")

        def prepare(update: Update) -> None:
            assert update.version.id == second
            if what == "end":
                monkeypatch.setattr(type(opened), "send", gone)
            elif what == "deploy":
                repo.commit(states=next(line), deploy="prod")
            else:
                repo.rollback("prod") if what == "rollback" else repo.retract(None, "prod")

        if what in ("deploy", "end"):
            replica.update(opened, "prod", prepare=prepare)
        else:
            with pytest.raises(NoDeployment, match="was rolled back while it was prepared"):
                replica.update(opened, "prod", prepare=prepare)
            replica.update(opened, "prod")
        served = replica.current()
        assert served is not None
        assert served.id == (second if what in ("deploy", "end") else first)
        opened.close()


def test_a_report_begins_at_the_swap_whatever_was_written_then(
    repo: Repository, tmp_path: Path
) -> None:
    """A node that reports later says since when it serves a version of which no file is new."""
    line, node = versions(), tmp_path / "node"
    paths = ["same.safetensors"]
    repo.commit(states=next(line), deploy="prod")
    follow(str(repo.root), "prod", to=node, once=True, path=paths)
    between = time.time_ns()
    second = repo.commit(states=next(line), deploy="prod").id
    follow(str(repo.root), "prod", to=node, once=True, path=paths)
    follow(str(repo.root), "prod", to=node, once=True, path=paths, name="7")
    (said,) = repo.deployments("nodes/7/prod")
    assert said.commit == second and said.time_ns > between
