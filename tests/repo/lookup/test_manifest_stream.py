"""Manifests read one after another are those that are read one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.codecs.patch import decode_patch
from mvc.errors import DamagedData
from mvc.ids import ManifestId
from mvc.io.files import FileSystem
from mvc.maintenance.graph import StorageGraph, read_records
from mvc.repo.config import set_value
from mvc.repo.lookup import manifest_stream, manifests
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.recovery.recover import Recovery
from tests.store.repositories import CheckedHistory


@pytest.fixture
def history(tmp_path: Path) -> CheckedHistory:
    return CheckedHistory(tmp_path / "repo", 12)


@pytest.fixture
def recovered(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Manifests that were recovered by a path of their own."""
    asked: list[bytes] = []
    inner = Recovery.manifest

    def manifest(self: Recovery, id_: bytes) -> bytes:
        asked.append(id_)
        return inner(self, id_)

    monkeypatch.setattr(Recovery, "manifest", manifest)
    return asked


def ids_of(repo: Repository, history: CheckedHistory) -> list[ManifestId]:
    return [repo.manifest(id_).id for id_ in history.ids]


def steps(found: StorageGraph, id_: bytes) -> list[manifest_stream.Step]:
    return [coding.step for coding in found.codings(id_)]


@pytest.mark.parametrize(
    ("layout", "kept", "enough"),
    [("chain", 0, False), ("chain", 1, True), ("chain", 256, True),
     ("skip:4", 0, False), ("skip:4", 3, False), ("skip:4", 4, True), ("skip:4", 256, True)],
)  # fmt: skip
def test_oldest_first_newest_first_and_by_the_index(
    tmp_path: Path, recovered: list[bytes], layout: str, kept: int, enough: bool
) -> None:
    history = CheckedHistory(tmp_path / "repo", 0)
    set_value(FileSystem(), history.root / ".mvc/config.yaml", "store.layout", layout)
    with history.open() as repo:
        for _ in range(12):
            history.add(repo)
    with history.open() as repo:
        ids, found = ids_of(repo, history), read_records(repo.handle.store.snapshot)
        wanted = [manifests.load(repo.handle.store, id_).encoded for id_ in ids]
        recovered.clear()
        stream = ManifestStream(repo.handle.store, cached=kept)
        assert [stream.load(id_, steps(found, id_)).encoded for id_ in ids] == wanted
        assert (recovered == []) == enough
        stream = ManifestStream(repo.handle.store, cached=kept)
        assert [stream.load(id_).encoded for id_ in ids] == wanted
        assert (recovered == []) == enough
        stream = ManifestStream(repo.handle.store, cached=kept)
        assert [stream.load(id_, steps(found, id_)).encoded for id_ in ids[::-1]] == wanted[::-1]
        assert recovered


@pytest.mark.parametrize("room", [1, 2, 3, 6])
def test_memory_is_bounded_by_bytes(tmp_path: Path, room: int) -> None:
    """The last ones whose bytes fit are kept: what was made from an earlier one is not near."""
    history = CheckedHistory(tmp_path / "repo", 0)
    set_value(FileSystem(), history.root / ".mvc/config.yaml", "store.layout", "chain")
    with history.open() as repo:
        for _ in range(12):
            history.add(repo)
    with history.open() as repo:
        ids, found = ids_of(repo, history), read_records(repo.handle.store.snapshot)
        sizes = [len(manifests.load(repo.handle.store, id_).encoded) for id_ in ids]
        for place in range(1, len(ids)):
            stream = ManifestStream(repo.handle.store, cached_bytes=sum(sizes[-room:]))
            for id_ in (*ids, *ids):
                stream.load(id_)
            near = stream.near(ids[place], steps(found, ids[place]))
            assert (near is not None) == (place - 1 in range(len(ids) - room, len(ids)))


def test_a_wrong_base_is_found_out(
    history: CheckedHistory, recovered: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base is known by the beginning of its id alone."""

    def other_base(data: memoryview, base: memoryview, extra: bytes, nbytes: int) -> bytes:
        return decode_patch(data, memoryview(bytes(len(base))), extra, nbytes)

    with history.open() as repo:
        ids = ids_of(repo, history)
        stream = ManifestStream(repo.handle.store)
        for id_ in ids:
            stream.load(id_)
        monkeypatch.setattr(manifest_stream, "decode_patch", other_base)
        recovered.clear()
        assert [stream.load(id_).id for id_ in ids[::-1]] == ids[::-1]
        assert recovered
        with pytest.raises(DamagedData):
            stream.load(ManifestId(bytes(32)))
