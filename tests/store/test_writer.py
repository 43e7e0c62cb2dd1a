"""What is written comes back: every kind of base, pieces of large blobs, groups."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event, active_count
from typing import Any

import numpy as np
import pytest
from msgspec import Struct

from mvc.api.repository import Repository
from mvc.errors import EncodingFailed, SourceChanged
from mvc.ids import BlobId
from mvc.io.handles import ReadFile
from mvc.limits import CHUNK
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import Link
from mvc.store.writing.bases import StoredBase
from mvc.store.writing.full_or_delta import Policy
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.pack_writer import PackWriter
from mvc.store.writing.pieces import Piece
from mvc.testing import fresh_process
from tests.store.sizes import shrink

RNG = np.random.default_rng(0)
NOISE = RNG.standard_normal(60_000).astype(np.float32)
SPARSE = np.where(RNG.random(60_000) < 0.02, NOISE, 0).astype(np.float32)
LENGTHS = (30_000, 20_000, 20_001, 20_000, 45_000, 1, 0, 45_000, 12_288, 45_000)


@pytest.fixture(params=["whole", "pieces"])
def repo(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Repository.init(tmp_path / "repo") as repo:
        if request.param == "pieces":
            shrink(monkeypatch, PIECE=16_384, CHUNK=4096)
        yield repo


def recovered(repo: Repository, rev: object) -> dict[str, np.ndarray]:
    fresh_process()
    with Repository.open(repo.root) as again:
        return again.checkout(rev)


@pytest.mark.parametrize("values", [NOISE, SPARSE], ids=["noise", "sparse"])
def test_a_tensor_that_grows_and_shrinks(repo: Repository, values: np.ndarray) -> None:
    commits = []
    for i, length in enumerate(LENGTHS):
        state = {"w": values[:length] + np.float32(i % 2) * (values[:length] != 0)}
        commits.append((repo.commit(state).id, state["w"].tobytes()))
        repo.handle.recent.caches.clear()  # the base comes from disk
    for id_, data in commits:
        assert recovered(repo, id_)["w"].tobytes() == data


@pytest.mark.parametrize("values", [NOISE, SPARSE], ids=["noise", "sparse"])
def test_a_file_that_grows_and_shrinks(repo: Repository, values: np.ndarray) -> None:
    path = repo.root / "data.bin"
    commits = []
    for i, length in enumerate(LENGTHS):
        data = values[:length].tobytes()
        data = data[:700] + bytes([i]) * 5 + data[700:] + bytes([i])
        path.write_bytes(data)
        commits.append((repo.commit(path).id, data))
    for id_, data in commits:
        fresh_process()
        out = repo.root / "out.bin"
        repo.checkout(id_, to=out, force=True)
        assert out.read_bytes() == data


def test_a_row_is_added_to_a_matrix(repo: Repository) -> None:
    states = [{"w": NOISE[: rows * 100].reshape(rows, 100)} for rows in (50, 51, 200, 199)]
    commits = [repo.commit(state).id for state in states]
    for id_, state in zip(commits, states, strict=True):
        assert recovered(repo, id_)["w"].tobytes() == state["w"].tobytes()


def test_precision_changes_back_and_forth(repo: Repository) -> None:
    states = [{"w": NOISE[:3000].astype(t)} for t in ("f4", "f2", "f4", "f8", "f4", "i4", "f4")]
    states = [{"w": s["w"] + s["w"].dtype.type(i)} for i, s in enumerate(states)]
    commits = []
    for state in states:
        commits.append(repo.commit(state).id)
        repo.handle.recent.caches.clear()
    for id_, state in zip(commits, states, strict=True):
        found = recovered(repo, id_)["w"]
        assert found.dtype == state["w"].dtype
        assert found.tobytes() == state["w"].tobytes()


@pytest.mark.parametrize("pipeline", ["xor | planes | zstd:1", "raw", "planes | zstd:1"])
def test_other_pipelines(repo: Repository, pipeline: str) -> None:
    states = [{"w": NOISE[:30_000] + np.float32(1e-3 * i), "n": np.arange(i)} for i in range(5)]
    commits = [repo.commit(state, pipeline=pipeline).id for state in states]
    for id_, state in zip(commits, states, strict=True):
        found = recovered(repo, id_)
        assert all(found[k].tobytes() == v.tobytes() for k, v in state.items())


def test_bits_that_floats_do_not_compare(repo: Repository) -> None:
    bits = np.array([0x80000000, 0x7FC00001, 0xFFC12345, 0x7F800001, 1, 0x807FFFFF], np.uint32)
    first = {"w": np.tile(bits, 3000).view(np.float32)}
    second = {"w": np.tile(bits[::-1], 3000).view(np.float32)}
    commits = [repo.commit(first).id, repo.commit(second).id]
    assert recovered(repo, commits[0])["w"].tobytes() == first["w"].tobytes()
    assert recovered(repo, commits[1])["w"].tobytes() == second["w"].tobytes()


def test_an_equal_tensor_is_stored_once(repo: Repository) -> None:
    state = {"a": NOISE[:10_000], "b": NOISE[:10_000].copy()}
    both = repo.commit(state).stored_bytes
    assert both < 1.2 * NOISE[:10_000].nbytes
    assert repo.commit({"c": NOISE[:10_000]}, path="again.safetensors").stored_bytes < 1000


def test_a_tensor_that_changes_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was hashed and what was encoded must be one thing."""
    with Repository.init(tmp_path / "repo") as repo:
        state = {"w": NOISE[:5000].copy()}
        before = repo.commit(state).id
        put = ObjectWriter.put

        def meddled(self: ObjectWriter, *args: object, **options: object) -> None:
            state["w"][7] += 1
            put(self, *args, **options)

        state["w"][:] += 1
        monkeypatch.setattr(ObjectWriter, "put", meddled)
        with pytest.raises(SourceChanged, match="'w' changed"):
            repo.commit(state)
        monkeypatch.undo()
        assert repo.find("HEAD") == before
        repo.commit(state)
        assert recovered(repo, "HEAD")["w"].tobytes() == state["w"].tobytes()


def test_what_follows_is_read_while_a_record_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, PIECE=16_384, CHUNK=4096, RECORD=4096)
    later, append, read, seen = Event(), PackWriter.append, ReadFile.read_into, set[int]()
    path = tmp_path / "repo/model.bin"

    def appended(self: PackWriter, *args: Any) -> tuple[int, int]:
        assert later.wait(60)
        return append(self, *args)

    def noted(self: ReadFile, offset: int, buffer: memoryview) -> int:
        if offset in seen:  # for the second time
            later.set()
        if self.path == path and offset >= 32_768:
            seen.add(offset)
        return read(self, offset, buffer)

    with Repository.init(tmp_path / "repo") as repo:
        path.write_bytes(NOISE[:30_000].tobytes())
        monkeypatch.setattr(PackWriter, "append", appended)
        monkeypatch.setattr(ReadFile, "read_into", noted)
        repo.commit(path)
        monkeypatch.undo()
        shrink(monkeypatch, PIECE=16_384, CHUNK=4096)
        repo.checkout("HEAD", to=repo.root / "out.bin")
        assert (repo.root / "out.bin").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("at", [0, 3, 7])
def test_an_error_of_the_thread_that_codes_is_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    shrink(monkeypatch, PIECE=16_384, CHUNK=4096, RECORD=4096)
    path = tmp_path / "repo/model.bin"
    with Repository.init(tmp_path / "repo") as repo:
        path.write_bytes(NOISE[:30_000].tobytes())
        before, threads = repo.commit(path).id, active_count()
        path.write_bytes((NOISE[:30_000] + np.float32(1)).tobytes())
        piece, calls = StoredBase.piece, count()

        def failing(self: StoredBase, start: int) -> memoryview:
            if next(calls) == at:
                raise EncodingFailed("the base is wrong")
            return piece(self, start)

        monkeypatch.setattr(StoredBase, "piece", failing)
        with pytest.raises(EncodingFailed, match="the base is wrong"):
            repo.commit(path)
        assert active_count() == threads
        assert repo.find("HEAD") == before
        repo.commit(path)
        repo.checkout("HEAD", to=repo.root / "out.bin")
        assert (repo.root / "out.bin").read_bytes() == path.read_bytes()


def test_what_failed_once_is_never_flushed(tmp_path: Path) -> None:
    spec = TensorSpec("uint8", (CHUNK,))
    with Repository.init(tmp_path / "repo") as repo:
        store, base = repo.handle.store, _NoBase(BlobId(bytes(32)), spec)
        policy = Policy(Pipeline.parse("lossless"))
        with store.pack_writer() as packs, closing(store.object_writer(packs, policy)) as objects:
            data = memoryview(bytes(CHUNK))
            objects.put(Piece(blob_id(spec, data), spec, 0, data), base)
            for method in (objects.drain, objects.flush, objects.sync, objects.flush):
                with pytest.raises(EncodingFailed, match="no base"):
                    method()


class _NoBase(Struct):
    id: BlobId
    spec: TensorSpec

    def chain(self, start: int) -> tuple[Link, ...]:
        return ()

    def piece(self, start: int) -> memoryview:
        raise EncodingFailed(f"no base at {start}")


@pytest.mark.parametrize("shorter", [False, True])
def test_a_large_content_that_changes_between_its_readings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shorter: bool
) -> None:
    shrink(monkeypatch, PIECE=16_384, CHUNK=4096)
    put, path = ObjectWriter.put, tmp_path / "repo/model.bin"

    def meddled(self: ObjectWriter, piece: Piece, *args: Any, **options: Any) -> None:
        if piece.start == 32_768:
            with path.open("r+b") as file:
                file.truncate(70_000) if shorter else (file.seek(100_000), file.write(b"new"))
        put(self, piece, *args, **options)

    with Repository.init(tmp_path / "repo") as repo:
        path.write_bytes(NOISE[:30_000].tobytes())
        before = repo.commit(path).id
        path.write_bytes((NOISE[:30_000] + np.float32(1)).tobytes())
        monkeypatch.setattr(ObjectWriter, "put", meddled)
        with pytest.raises(SourceChanged, match=r"model\.bin"):
            repo.commit(path)
        assert repo.find("HEAD") == before


class _Stalled(Executor):
    """Has begun all that was submitted, and goes on when it is told."""

    def __init__(self) -> None:
        self.began, self.goes_on = Event(), list[Callable[[], object]]()

    def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
        begun = Future[Any]()
        begun.set_running_or_notify_cancel()
        self.goes_on.append(lambda: fn(*args, **options))
        self.began.set()
        return begun


def test_memory_in_which_an_abandoned_chunk_ends_is_not_lent_again(tmp_path: Path) -> None:
    data = memoryview(np.resize(NOISE, CHUNK // 2).tobytes())
    spec, stalled, policy = (
        TensorSpec("raw", (len(data),)),
        _Stalled(),
        Policy(Pipeline.parse("lossless")),
    )
    with Repository.init(tmp_path / "repo") as repo, repo.handle.store.pack_writer() as packs:
        store = repo.handle.store
        arenas = store.arenas
        objects = ObjectWriter(
            packs, policy, graph=store.graph, recovery=store.recovery, pool=stalled, arenas=arenas
        )
        with closing(objects):
            id_ = blob_id(spec, data)
            objects.begin(id_)
            objects.put(Piece(id_, spec, 0, data))
            assert stalled.began.wait(20)
        lent = [arenas.lend() for _ in range(4)]
        for go_on in stalled.goes_on:
            go_on()
        assert not any(arena.used for arena in lent)
