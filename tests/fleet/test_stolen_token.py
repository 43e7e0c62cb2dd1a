"""The token of node 7 in a thief's hands: reads, its own branches and reports, and no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.cli.main import run
from mvc.errors import InvalidName, MvcError, RefConflict, RemoteRefused
from mvc.ids import CommitId, Root
from mvc.model.statement import (
    AnnotationStatement,
    Deployment,
    Retraction,
    Statement,
    Tombstone,
)
from mvc.remote.remotes import Remote
from mvc.remote.slices import Absent, NodeReport, Sent, encode_entries
from mvc.remote.transport import Move, Slice
from mvc.remote.transports.http import HttpTransport
from mvc.remote.transports.opening import open_transport
from mvc.serving.reports import Reports
from mvc.testing import open_quietly
from tests.remote.kit.places import Place, connect, place
from tests.remote.kit.same import answers, known, refs_of, states

SCOPES = ("read", "push:heads/nodes/7/*", "deploy:nodes/7/*")
OWN = "nodes/7/"


def weights(seed: int) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).random(500, np.float32)}


@dataclass
class World:
    """``node``: a clone with the node's token. The remote has what is not the node's business."""

    remote: Place
    node: Repository
    url: str
    main: CommitId
    first: CommitId
    of_eight: CommitId

    def seen(self) -> dict[str, Any]:
        """What the remote says of all that is not the node's."""

        def look(repo: Repository) -> dict[str, Any]:
            # Versions that only the node's branches have are its own.
            refs = {n: v for n, v in refs_of(repo).items() if not n.startswith(f"heads/{OWN}")}
            ids = [id_ for id_ in known(repo) if id_ in self._others]
            said = {k: v for k, v in answers(repo).items() if OWN not in k}
            said["nodes"] = [
                (n.node, n.target, n.commit, n.since_ns) for n in mvc.nodes(repo) if n.node != "7"
            ]
            return {
                "refs": refs, "states": states(repo, ids), "said": said,
                "annotated": [(a.author, a.metrics) for id_ in ids for a in repo.annotations(id_)],
                "head": repo.head().branch,
                "forgotten": [getattr(repo.availability(id_), "time_ns", None) for id_ in ids],
            }  # fmt: skip

        return self.remote.own(look, reads=True)

    @property
    def _others(self) -> set[CommitId]:
        return {self.main, self.first, self.of_eight}

    def transport(self) -> HttpTransport:
        opened = open_transport(Remote(self.url, "origin"))
        assert isinstance(opened, HttpTransport)
        return opened


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("stolen")
    with place("http", folder) as remote, Repository.init(folder / "owner") as owner:
        owner.remotes.add("origin", remote.url)
        first = owner.commit(weights(0), message="first", deploy="prod").id
        main = owner.commit(weights(1), message="second", deploy="prod").id
        owner.annotate(main, metrics={"auc": 0.9})
        owner.tag("v1", first)
        owner.branch("nodes/8/main", main)
        owner.switch("nodes/8/main")
        of_eight = owner.commit(weights(8), message="node 8").id
        owner.push("origin", every=True)
        (folder / "eight").mkdir()
        eight = Reports(folder / "eight", "8")
        eight.served(main, "prod", time.time_ns())
        with closing(
            open_transport(owner.remotes.find("origin"), owner.handle.store, owner.handle.config)
        ) as transport:
            eight.send(transport)
        token = remote.narrow_token(*SCOPES)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MVC_TOKEN_ORIGIN", token)
            node = mvc.clone(remote.url, folder / "node")
            node.branch("nodes/7/main", main)
            node.switch("nodes/7/main")
            node.commit(weights(7), message="trained here")
            node.push("origin", ["nodes/7/main"])
            with node:
                made = World(remote, node, remote.url, main=main, first=first, of_eight=of_eight)
                reports("nodes/7/prod", main)(made)
                yield made


@pytest.fixture
def unharmed(world: World) -> Iterator[None]:
    before = world.seen()
    yield
    assert world.seen() == before


@pytest.mark.usefixtures("unharmed")
class TestWhatANodeDoes:
    def test_reads(self, world: World, tmp_path: Path) -> None:
        world.node.fetch("origin")
        assert world.node.remotes.show("origin").branches
        mvc.clone(world.url, tmp_path / "copy").close()

    def test_pushes_its_own_branches(self, world: World) -> None:
        made = world.node.commit(weights(71), message="trained here, too")
        world.node.annotate(made.id, metrics={"auc": 0.5})
        world.node.push("origin", ["nodes/7/main"])
        there = world.remote.own(lambda repo: (refs_of(repo), repo.annotations(made.id)))
        assert there[0]["heads/nodes/7/main"] == made.id and there[1][0].metrics == {"auc": 0.5}

    def test_reports_what_it_serves(self, world: World) -> None:
        assert not reports("nodes/7/prod", world.main)(world).missing
        at = world.remote.own(lambda repo: repo.live("nodes/7/prod").commit, reads=True)
        assert at == world.main


Verb = Callable[[Repository], object]


def _pushing(*refs: str, **named: Any) -> Verb:
    return lambda node: node.push("origin", list(refs), **named)


def _another(name: str) -> Verb:
    def act(node: Repository) -> None:
        node.branch(name, "nodes/7/main", force=True)
        node.push("origin", [name])

    return act


def _backwards(node: Repository) -> None:
    node.branch("nodes/7/back", "nodes/7/main", force=True)
    node.push("origin", ["nodes/7/back"])
    node.branch("nodes/7/back", "HEAD~1", force=True)
    node.push("origin", ["nodes/7/back"], force=True)


def _tagged(node: Repository) -> None:
    node.tag("v2", "HEAD", force=True)
    node.push("origin", ["v2"])


def _moved_tag(node: Repository) -> None:
    node.tag("v1", "HEAD", force=True)
    node.push("origin", ["v1"], force=True)


REFUSED: dict[str, Verb] = {
    "push main": lambda node: (
        node.branch("main", "nodes/7/main", force=True),
        node.push("origin", ["main"]),
    ),
    "push to node 8": _another("nodes/8/main"),
    "push to node 70": _another("nodes/70/main"),
    "push beside": _another("nodes/7"),
    "push a new branch": _another("mine"),
    "push a tag": _tagged,
    "move a tag": _moved_tag,
    "force its own branch back": _backwards,
    "delete its own branch": _pushing(delete=("nodes/7/main",)),
    "delete main": _pushing(delete=("main",)),
    "delete a tag": _pushing(delete=("v1",)),
    "push all": lambda node: (
        node.branch("mine", "nodes/7/main", force=True),
        node.push("origin", every=True),
    ),
}  # fmt: skip


@pytest.mark.usefixtures("unharmed")
class TestVerbs:
    @pytest.mark.parametrize("name", REFUSED)
    def test_what_is_refused(self, name: str, world: World) -> None:
        try:
            with pytest.raises((RemoteRefused, RefConflict)):
                REFUSED[name](world.node)
        finally:
            for branch in ("mine", "nodes/8/main", "nodes/70/main"):
                with suppress(MvcError):
                    world.node.delete_ref("branch", branch, force=True)
            with suppress(MvcError):
                world.node.delete_ref("tag", "v2")

    def test_what_a_push_leaves_out(self, world: World) -> None:
        """What the node says of others' targets stays with the node."""
        node = world.node
        node.deploy("HEAD", "prod", reason="stolen")
        with pytest.raises(InvalidName, match="reserved for reports"):
            node.deploy("HEAD", "nodes/8/prod")
        node.commit(weights(70))
        node.push("origin", ["nodes/7/main"])

    def test_what_it_says_of_versions_of_others(self, world: World, tmp_path: Path) -> None:
        with mvc.clone(world.url, tmp_path / "copy") as copy:
            copy.annotate(world.main, metrics={"auc": 0.1})
            copy.branch("nodes/7/notes", world.main)
            with pytest.raises(RemoteRefused, match="push:heads/"):
                copy.push("origin", ["nodes/7/notes"])

    def test_what_it_forgets(self, world: World, tmp_path: Path) -> None:
        with mvc.clone(world.url, tmp_path / "copy") as copy:
            copy.storage.forget(world.first)
            copy.branch("nodes/7/gone", world.main)
            done = copy.push("origin", ["nodes/7/gone"])
            assert done.not_forgotten == (world.first,) and done.is_short
        with mvc.clone(world.url, tmp_path / "again") as again:
            assert again.storage.receipts() == []
            again.checkout(world.first)

    def test_maintenance_is_the_owners(self, world: World) -> None:
        for verb in (["gc"], ["forget", "HEAD"], ["fsck", "--repair"]):
            assert run(["-C", str(world.node.root), *verb, "--remote", "origin"]) != 0

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
    def test_there_are_no_other_requests(self, method: str, world: World) -> None:
        headers = {"Authorization": f"Bearer {world.remote.variables['MVC_TOKEN_ORIGIN']}"}
        for name in ("head", "live", "send", "receive", "tokens", "../.mvc/format"):
            with closing(connect(world.remote)) as connection:
                connection.request(method, f"/remote/v1/{name}", headers=headers)
                assert connection.getresponse().status in (404, 405)


# -- slices that no client makes -----------------------------------------------------------


Crafted = Callable[[World], Any]


def give(world: World, said: Sequence[Statement], *moves: Move, **sent: Any) -> Any:
    entry = Sent(statements=tuple(each.encoded for each in said), **sent)
    return world.transport().receive(Slice(encode_entries([entry]), 0, [], moves))


def stamp(at: int = 1) -> dict[str, Any]:
    return {"author": "node 7", "node": b"n" * 16, "recorded_ns": at, "hybrid_ns": at}


def deploys(target: str, commit: CommitId, time_ns: int | None = None) -> list[Statement]:
    at = time.time_ns() if time_ns is None else time_ns
    return [Deployment(subject=commit, target=target, time_ns=at, **stamp(at))]


def reports(target: str, commit: CommitId) -> Crafted:
    now = time.time_ns()
    return lambda world: give(world, (), reports=(NodeReport(target, bytes(commit), now, now),))


def retracts(world: World) -> list[Statement]:
    """Of what is live on prod."""
    (found,) = (d for d in world.node.deployments("prod") if d.commit == world.main)
    return [Retraction(subject=found.id, target="prod", **stamp())]


def _deploying(target: str) -> Crafted:
    return lambda world: give(world, deploys(target, world.first))


def _moving(name: str) -> Crafted:
    return lambda world: give(world, (), Move(name, None, world.main))


SLICES: dict[str, Crafted] = {
    **{
        f"deploys on {target}": _deploying(target)
        for target in ("prod", "nodes/8/prod", "nodes/70/prod", "nodes", "nodes/7", "NODES/7/prod")
    },
    "deploys on its own and on prod": lambda world: give(
        world, [*deploys("nodes/7/prod", world.first), *deploys("prod", world.first)]
    ),
    "reports for another": lambda world: reports("nodes/8/prod", world.first)(world),
    "reports on prod": lambda world: reports("prod", world.first)(world),
    "dates what it reports itself": lambda world: give(
        world, deploys("nodes/7/prod", world.first)
    ),
    "deploys on prod long ago": lambda world: give(world, deploys("prod", world.first, time_ns=1)),
    "climbs out": lambda world: give(world, deploys("nodes/7/../8/prod", world.first)),
    "of a version that is not there": lambda world: give(
        world, deploys("nodes/7/prod", CommitId(b"\7" * 32))
    ),
    "retracts on prod": lambda world: give(world, retracts(world)),
    "forgets by name": lambda world: give(
        world, [Tombstone(subject=world.first, root=Root(bytes(32)), **stamp())]
    ),
    "annotates": lambda world: give(
        world, [AnnotationStatement(subject=world.main, metrics={"auc": 0.1}, **stamp())]
    ),
    "forgets by a gap": lambda world: give(
        world, (), absent=(Absent(bytes(world.first), "rule"),), restored=(bytes(world.first),)
    ),
    **{
        f"moves {name}": _moving(name)
        for name in (
            "heads/main", "heads/nodes/8/x", "heads/nodes/70/x", "heads/nodes/7", "tags/v9", "HEAD",
            "heads/nodes/7/../8/x", "heads/nodes/7/", "origin/main", "",
        )
    },
    "moves main on": lambda world: give(
        world, (), Move("heads/main", world.main, world.of_eight)
    ),
    "moves main by force": lambda world: give(
        world, (), Move("heads/main", world.main, world.first, force=True)
    ),
    "deletes main": lambda world: give(world, (), Move("heads/main", world.main, None)),
    "moves its own and main": lambda world: give(
        world,
        (),
        Move("heads/nodes/7/new", None, world.main),
        Move("heads/main", world.main, world.of_eight),
    ),
}  # fmt: skip


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("name", SLICES)
def test_slices_that_no_client_makes(name: str, world: World) -> None:
    with pytest.raises(MvcError):
        SLICES[name](world)
    assert "heads/nodes/7/new" not in world.transport().head().refs


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("kind", ["report", "with a statement", "recorded elsewhere"])
def test_a_token_that_names_no_node_reports_for_none(
    kind: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``deploy:*`` is for targets of which a deployment replaces the one that its sender saw."""
    wide = world.remote.narrow_token("read", "push:*", "deploy:*", "deploy:nodes/7/*")
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", wide)
    now = time.time_ns()
    report = NodeReport("nodes/8/prod", bytes(world.first), now, now)
    note = AnnotationStatement(subject=world.node.find("HEAD"), note="x", **stamp())
    given: dict[str, Crafted] = {
        "report": reports("nodes/8/prod", world.first),
        "with a statement": lambda world: give(world, [note], reports=(report,)),
        "recorded elsewhere": _deploying("nodes/8/prod"),
    }
    with pytest.raises(RemoteRefused, match=r"deploy:nodes/8/prod|reports of nodes"):
        given[kind](world)


def test_a_token_that_is_taken_away_ends_at_once(world: World) -> None:
    from mvc.io.files import FileSystem
    from mvc.server.tokens import Tokens

    assert world.remote.served is not None
    tokens = Tokens(FileSystem(), world.remote.served)
    (held,) = [each.name for each in tokens.all() if each.scopes == SCOPES]
    tokens.remove(held)
    with pytest.raises(RemoteRefused, match="does not know this token"):
        world.transport().head()


def test_the_owner_sees_who_it_was(world: World) -> None:
    with open_quietly(world.remote.root or Path()) as repo:
        reports = list(repo.deployments("nodes/7/prod"))
    assert reports
    assert {each.commit for each in reports} == {world.main}
    assert {each.author for each in reports} == {"token read-pushheadsnodes7-deploynodes7"}
