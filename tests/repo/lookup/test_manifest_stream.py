"""Manifests read one after another are those that are read one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.errors import DamagedData
from mvc.ids import ManifestId
from mvc.repo.lookup import manifest_stream, manifests
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.maintenance.inventory import Inventory, inventory
from mvc.repo.repository import Repository
from mvc.store.recovery.recover import Recovery
from tests.store.repositories import History


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "repo", 12)


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


def ids_of(repo: Repository, history: History) -> list[ManifestId]:
    return [repo.manifest(id_).id for id_ in history.ids]


def steps(found: Inventory, id_: bytes) -> list[manifest_stream.Step]:
    return [coding.step for coding in found.codings[id_]]


@pytest.mark.parametrize("kept", [0, 1, 256])
def test_oldest_first_newest_first_and_by_the_index(
    history: History, recovered: list[bytes], monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(manifest_stream, "_KEPT", kept)
    with history.open() as repo:
        ids, found = ids_of(repo, history), inventory(repo.context.store.snapshot)
        wanted = [manifests.load(repo.context, id_).encoded for id_ in ids]
        recovered.clear()
        stream = ManifestStream(repo.context.store)
        assert [stream.load(id_, steps(found, id_)).encoded for id_ in ids] == wanted
        assert (recovered == []) == (kept > 0)
        stream = ManifestStream(repo.context.store)
        assert [stream.load(id_).encoded for id_ in ids] == wanted
        assert (recovered == []) == (kept > 0)
        stream = ManifestStream(repo.context.store)
        assert [stream.load(id_, steps(found, id_)).encoded for id_ in ids[::-1]] == wanted[::-1]
        assert recovered


def test_memory_is_bounded_by_bytes(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    with history.open() as repo:
        ids = ids_of(repo, history)
        largest = max(len(manifests.load(repo.context, id_).encoded) for id_ in ids)
        monkeypatch.setattr(manifest_stream, "_KEPT_BYTES", 3 * largest)
        stream = ManifestStream(repo.context.store)
        for id_ in (*ids, *ids):
            stream.load(id_)
            assert sum(map(len, stream._kept.values())) == stream._size <= 3 * largest


def test_a_wrong_base_is_found_out(history: History, recovered: list[bytes]) -> None:
    with history.open() as repo:
        ids = ids_of(repo, history)
        stream = ManifestStream(repo.context.store)
        for id_ in ids:
            stream.load(id_)
        for name, data in list(stream._kept.items()):
            stream._kept[name] = bytes(len(data))
        recovered.clear()
        assert [stream.load(id_).id for id_ in ids[::-1]] == ids[::-1]
        assert recovered
        with pytest.raises(DamagedData):
            stream.load(ManifestId(bytes(32)))
