"""A source that lies to one who keeps a folder: an error in one line, and the old version stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from mvc.api.repository import Repository
from mvc.errors import IoFailed, MvcError
from mvc.io.files import FileSystem
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.remote.replicas.replica import Replica
from mvc.remote.transport import Slice, Transport, Wanted
from mvc.remote.transports.opening import open_transport
from mvc.repo.lookup import manifests
from mvc.store.packs.records import MANIFEST
from tests.fleet.folders import contents
from tests.remote.kit.forged import Forged, full, taken_apart

HERE = ["b.safetensors", "d/c.safetensors"]


class Liar:
    """A transport that changes what an honest one sends."""

    def __init__(self, honest: Transport, lie: Callable[[Forged], None]) -> None:
        self._honest, self._lie, self.url = honest, lie, honest.url

    def send(self, wanted: Wanted) -> Generator[Slice]:
        for given in self._honest.send(wanted):
            forged = taken_apart(given)
            self._lie(forged)
            yield forged.slice()


def files(*paths: str) -> Callable[[Repository, Forged], None]:
    """The live version has files of these names, and everything else is right."""

    def lie(repo: Repository, forged: Forged) -> None:
        (sent,), (made,) = forged.entries, forged.entries[0].deployments
        old = Commit.decode(sent.commits[0])
        was = repo.manifest(old.id)
        entries = [replace(e, path=path) for e, path in zip(was.entries, paths, strict=True)]
        manifest = Manifest(entries)
        commit = replace(old, manifest=manifest.id, root=manifest.root)
        said = replace(made, subject=bytes(commit.id))
        forged.entries = [replace(sent, commits=(commit.encoded,), statements=(said.encoded,))]
        read = repo.handle.store.recovery
        forged.records[0] = [full(manifest.id, manifest.encoded, MANIFEST)]
        for id_, spec in manifests.objects(was.entries).items():
            data = bytearray(spec.nbytes)
            read.piece(id_, 0, memoryview(data))
            forged.records[0].append(full(id_, bytes(data)))

    return lie


def other_target(repo: Repository, forged: Forged) -> None:
    (sent,), (made,) = forged.entries, forged.entries[0].deployments
    forged.entries = [replace(sent, statements=(replace(made, target="lab").encoded,))]


def other_bytes(repo: Repository, forged: Forged) -> None:
    files(*HERE)(repo, forged)
    blobs = [record.members[0] for record in forged.records[0][1:]]
    forged.records[0][1:] = [full(each.id, bytes(each.nbytes)) for each in blobs]


def other_root(repo: Repository, forged: Forged) -> None:
    (sent,), (made,) = forged.entries, forged.entries[0].deployments
    commit = replace(Commit.decode(sent.commits[0]), root=bytes(32))
    said = replace(made, subject=bytes(commit.id))
    forged.entries = [replace(sent, commits=(commit.encoded,), statements=(said.encoded,))]


def nothing(repo: Repository, forged: Forged) -> None:
    forged.records[0] = []


LIES = {
    "hook": files(".git/hooks/post-commit", "z"), "file and folder": files("a", "a/b"),
    "target": other_target, "bytes": other_bytes, "root": other_root, "nothing": nothing,
}  # fmt: skip


@pytest.fixture
def opened(repo: Repository) -> Iterator[Transport]:
    honest = open_transport(str(repo.root))
    yield honest
    honest.close()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", LIES)
def test_a_lie_leaves_the_old_version(
    name: str, in_place: bool, repo: Repository, opened: Transport, tmp_path: Path
) -> None:
    def commit(value: int) -> None:
        state = {"w": np.full(3000, value), "same": np.arange(9)}
        repo.commit(states={path: dict(state, p=i) for i, path in enumerate(HERE)}, deploy="prod")

    commit(1)
    node = tmp_path / "around" / "node"
    node.parent.mkdir()
    with closing(Replica(FileSystem(), node, folder=True, in_place=in_place)) as replica:
        first = replica.update(opened, "prod")
        before, beside = contents(node), sorted(node.parent.iterdir())
        commit(2)
        liar = Liar(opened, lambda forged: LIES[name](repo, forged))
        with pytest.raises(MvcError) as error:
            replica.update(liar, "prod")
        assert "\n" not in str(error.value)
        assert contents(node) == before and sorted(node.parent.iterdir()) == beside
        now = replica.current()
        assert now is not None and now.id == first.version.id
        second = replica.update(opened, "prod")
        assert second.before is not None and contents(node) != before


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_becomes_a_folder_and_a_file_again(
    in_place: bool, repo: Repository, opened: Transport, tmp_path: Path
) -> None:
    """In place that is refused before anything is written; in an empty place it is written."""
    node = tmp_path / "node"
    with closing(Replica(FileSystem(), node, folder=True, in_place=in_place)) as replica:
        for i, paths in enumerate((["a", "b/c"], ["a/d", "b"], ["a", "b/c/d"], ["e"])):
            gone = repo.manifest("HEAD").by_path.keys() - paths if i else set[str]()
            state = {path: {"w": np.full(300, i + 1)} for path in paths}
            repo.commit(states=state | dict.fromkeys(gone), deploy="prod")
            if in_place and i in (1, 2):
                before = contents(node)
                with pytest.raises(IoFailed, match="folder"):
                    replica.update(opened, "prod")
                assert contents(node) == before
                shutil.rmtree(node)
            replica.update(opened, "prod")
            assert sorted(contents(node)) == paths


@pytest.mark.parametrize("what", ["file", "link"])
def test_something_else_stands_where_a_folder_is_to_be(
    what: str, repo: Repository, opened: Transport, tmp_path: Path
) -> None:
    node, elsewhere = tmp_path / "node", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with closing(Replica(FileSystem(), node, folder=True, in_place=True)) as replica:
        repo.commit(states={"a": {"w": np.zeros(9)}}, deploy="prod")
        replica.update(opened, "prod")
        (node / "d").touch() if what == "file" else (node / "d").symlink_to(elsewhere)
        repo.commit(states={"d/e": {"w": np.ones(9)}}, deploy="prod")
        with pytest.raises(IoFailed, match="where a folder is needed"):
            replica.update(opened, "prod")
        assert not list(elsewhere.iterdir())
        (node / "d").unlink()
        replica.update(opened, "prod")
        assert sorted(contents(node)) == ["a", "d/e"]
