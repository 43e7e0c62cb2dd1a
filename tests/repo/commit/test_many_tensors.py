"""A state of very many tiny tensors: the work for each does not grow with their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc
from mvc.adapters.python.state import from_state
from mvc.codecs import cast
from mvc.ids import BlobId
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.worktree.identify import earlier
from mvc.store.packs import reader, records
from mvc.store.packs.records import RecordHeader
from mvc.store.writing.precision_copies import PrecisionCopies
from tests.linear import assert_linear, lines_run
from tests.store.sizes import shrink

State = dict[str, np.ndarray[Any, Any]]


def tiny(count: int, shift: float = 0.0) -> State:
    """One-element tensors, all of them different."""
    return {f"layer.{i}.scale": np.array([i + shift], np.float32) for i in range(count)}


def test_a_commit_is_linear(tmp_path: Path) -> None:
    def work(count: int) -> int:
        with mvc.Repository.init(tmp_path / str(count)) as repo:
            return lines_run(lambda: repo.commit(tiny(count)))

    assert_linear(work)


def test_reading_is_linear(tmp_path: Path) -> None:
    def repository(count: int) -> mvc.Repository:
        path = tmp_path / str(count)
        if not path.exists():
            with mvc.Repository.init(path) as repo:
                repo.commit(tiny(count))
                repo.commit(tiny(count, 0.5))
        return mvc.Repository.open(path)

    def checkout(count: int) -> int:
        with repository(count) as repo:
            return lines_run(lambda: repo.checkout("HEAD"))

    def fsck(count: int) -> int:
        with repository(count) as repo:
            return lines_run(lambda: repo.storage.fsck(full=True))

    def diff(count: int) -> int:
        with repository(count) as repo:
            return lines_run(lambda: repo.diff("HEAD^", "HEAD"))

    for work in (checkout, fsck, diff):
        assert_linear(work)


def test_every_small_tensor_is_encoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was encoded to find out its size is what is stored."""
    encoded = 0
    encode = Pipeline.encode_parts

    def counting(*arguments: Any) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode(*arguments)

    monkeypatch.setattr(Pipeline, "encode_parts", counting)
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit({f"w{i}": np.arange(300, dtype=np.float32) + i for i in range(20)})
    assert encoded == 20


@pytest.mark.parametrize("pipeline", ["lossless", "vsol", "none", "sub | zigzag | zstd:1"])
def test_a_word_comes_back_from_every_pipeline(tmp_path: Path, pipeline: str) -> None:
    """A chunk of one word has a way of its own through the encoder."""
    kinds = [np.uint8, np.int16, np.float32, np.float64, np.complex128]
    first = {f"{np.dtype(k)}{v}": np.array([v], k) for k in kinds for v in (0, 1, 77)}
    second = {name: value + value.dtype.type(1) for name, value in first.items()}
    with mvc.Repository.init(tmp_path) as repo:
        for state in (first, second):
            repo.commit(state, pipeline=pipeline)
    with mvc.Repository.open(tmp_path) as repo:
        for rev, state in (("HEAD^", first), ("HEAD", second)):
            found = repo.checkout(rev)
            assert all(np.array_equal(found[k], v) for k, v in state.items())
        assert repo.storage.fsck(full=True).sound


def test_a_master_is_found_among_many_by_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every master is rounded once, however many copies are looked for."""
    state = {name: np.repeat(value, 32) for name, value in tiny(100, 0.3).items()}
    parsed = from_state(state)
    masters = PrecisionCopies()
    for i in range(100):
        masters.add(parsed, i, BlobId(i.to_bytes(32, "little")))
    rounded = 0
    real = cast.cast

    def counting(base: memoryview, source: str, to: str) -> bytearray:
        nonlocal rounded
        rounded += 1
        return real(base, source, to)

    monkeypatch.setattr(cast, "cast", counting)
    for i in range(100):
        copy = np.full(32, i + 0.3, np.float32).astype(np.float16)
        found = masters.find(TensorSpec("float16", (32,)), memoryview(copy.tobytes()))
        assert found is not None and found.id == i.to_bytes(32, "little")
    assert rounded == 100
    wide = memoryview(np.full(32, 0.3, np.float32).tobytes())
    assert masters.find(TensorSpec("float32", (32,)), wide) is None  # no copy of its own kind
    masters.forget(parsed)
    assert masters.find(TensorSpec("float16", (1,)), memoryview(bytes(2))) is None


def test_a_record_has_a_bounded_number_of_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what waits in memory is bounded, and finding one object reads one short header."""
    shrink(monkeypatch, RECORD_MEMBERS=64)
    sizes: list[int] = []

    def decode(*arguments: Any) -> RecordHeader:
        header = records.decode_header(*arguments)
        sizes.append(len(header.members))
        return header

    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(tiny(500))
        repo.commit(tiny(500, 0.5))
    with mvc.Repository.open(tmp_path) as repo:
        monkeypatch.setattr(reader, "decode_header", decode)
        assert repo.storage.fsck(full=True).sound
        assert repo.checkout("HEAD")["layer.499.scale"][0] == 499.5
    assert max(sizes) <= 66  # a manifest and a skeleton join the last record


def test_a_file_of_many_tensors(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        save_file(tiny(300), tmp_path / "m.safetensors")
        before = (tmp_path / "m.safetensors").read_bytes()
        repo.commit([tmp_path / "m.safetensors"], files=mvc.FileOptions(cwd=tmp_path))
        repo.checkout("HEAD", to=tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == before


# -- many files --------------------------------------------------------------------------


def small_files(folder: Path, count: int, shift: float = 0.0) -> None:
    """Files of a few bytes without tensors, and as many with tensors whose shapes differ."""
    for i in range(count // 2):
        (folder / f"{i}.txt").write_text(f"file {i}, {shift}")
        np.save(folder / f"{i}.npy", np.full((2, i + 1), i + shift, np.float32))


def test_commits_of_new_and_of_changed_files_are_linear(tmp_path: Path) -> None:
    def work(count: int) -> int:
        folder = tmp_path / str(count)
        with mvc.Repository.init(folder) as repo:
            small_files(folder, count)
            new = lines_run(lambda: repo.commit(folder))
            small_files(folder, count, shift=1.0)
            return new + lines_run(lambda: repo.commit(files=mvc.FileOptions(all=True)))

    assert_linear(work)


def test_the_earlier_version_of_each_file_is_found_in_linear_time(tmp_path: Path) -> None:
    def work(count: int) -> int:
        folder = tmp_path / str(count)
        with mvc.Repository.init(folder) as repo:
            small_files(folder, count)
            first = repo.commit(folder)
            entries = repo.manifest().entries

            def ask() -> None:
                assert {earlier(repo.handle.store, entry) for entry in entries} == {first.id}

            return lines_run(ask)

    assert_linear(work)
