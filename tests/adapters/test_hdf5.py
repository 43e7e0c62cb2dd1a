"""HDF5 and Keras files: datasets that lie there as plain numbers are tensors, the rest is bytes.

libhdf5 reads in a process of its own, whatever a file does to it.
"""

from __future__ import annotations

import io
import os
import random
import signal
import time
import zipfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec
import numpy as np
import pytest

import mvc
from mvc.adapters.files import hdf5
from mvc.adapters.files.detect import parse_file, why_opaque
from mvc.adapters.files.hdf5 import DatasetPlace
from mvc.adapters.files.numpy_files import DESCRIPTIONS
from mvc.errors import UnsupportedTensor, WouldOverwrite
from tests.adapters.helpers import MemorySource, by_key, rebuild, round_trip, to_entry
from tests.adapters.test_fuzz import assert_survives, mutate

h5py = pytest.importorskip("h5py")

NUMBERS = np.random.default_rng(0).standard_normal((10, 7)).astype(np.float32)


def made(write: Callable[[h5py.File], object], **options) -> bytes:
    with NamedTemporaryFile() as out:
        with h5py.File(out.name, "w", **options) as file:
            write(file)
        return Path(out.name).read_bytes()


def keras_zip(weights: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        facts = '{"keras_version": "3.15.1", "date_saved": "2026-11-30@02:38:53"}'
        file.writestr("metadata.json", facts)
        file.writestr("config.json", "{}" * 90)
        file.writestr("model.weights.h5", weights)
    return buffer.getvalue()


def several(file) -> None:
    for i, description in enumerate(DESCRIPTIONS):
        file[f"numbers/{i}"] = (np.arange(12).reshape(3, 4) % 2).astype(description)
    file["scalar"] = 1.5
    file["none"] = np.zeros((0, 3), np.float32)
    file["ü/é"] = NUMBERS


TABLE = np.random.default_rng(1).standard_normal((40, 70)).astype(np.float32)
GROWTH = {"fixed": None, "rows grow": (None, 70), "columns grow": (40, None), "both": (None, None)}


def in_chunks(file) -> None:
    for name, most in GROWTH.items():
        file.create_dataset(f"{name}/one", data=TABLE, chunks=TABLE.shape, maxshape=most)
        file.create_dataset(f"{name}/rows", data=TABLE, chunks=(8, 70), maxshape=most)
        file.create_dataset(f"{name}/several", data=TABLE, chunks=(16, 30), maxshape=most)
    file.create_dataset("begun", (90_000,), np.float32, chunks=(1000,))[25_001] = 1
    file["begun"][70_000:72_000] = 2
    file.create_dataset("small", (900,), np.float32, chunks=(10,))[::50] = 1


def all_other(file) -> None:
    """Beside ``plain`` nothing that lies in the file as little-endian numbers, in one piece."""
    file["plain"] = NUMBERS
    file["other name"] = file["plain"]
    file["soft"] = h5py.SoftLink("/plain")
    file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
    file.create_dataset("gzip", data=NUMBERS, chunks=(4, 7), compression="gzip")
    file["big-endian"] = NUMBERS.astype(">f4")
    file["text"], file["bytes"] = "text", np.array([b"ab", b"c"])
    file["rows"] = np.zeros(3, [("a", "<f4"), ("b", "<i8")])
    file["void"] = np.zeros(3, "V2")
    file.create_dataset("lists", (2,), h5py.vlen_dtype(np.float32))[0] = [1, 2]
    file.create_dataset("reference", data=file["plain"].ref, dtype=h5py.ref_dtype)
    file["type"], file["nothing"] = np.dtype("<f4"), h5py.Empty("f4")
    file.create_dataset("never written", (5,), np.float32)
    file.create_dataset("external", (4,), np.float32, external=[("/etc/passwd", 0, 16)])
    parts = h5py.VirtualLayout((4,), np.float32, maxshape=(None,))
    parts[0:4] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    file.create_virtual_dataset("virtual", parts)
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.COMPACT)
    kind, space = h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((3,))
    h5py.h5d.create(file.id, b"compact", kind, space, settings)


FILES = {
    "several": made(several),
    "latest": made(several, libver="latest"),
    "chunks": made(in_chunks),
    "latest chunks": made(in_chunks, libver="latest"),
    "other": made(all_other),
    "paged": made(several, fs_strategy="page", fs_page_size=512),
}
SEEDS = {**FILES, "keras": keras_zip(FILES["several"])}


def arrays(data: bytes) -> dict[str, bytes]:
    """Tensors by key, of a file that comes back byte for byte."""
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(data), "x"))
    assert rebuild(entry, skeleton, blobs) == data
    assert entry.format in {"hdf5", "keras"}
    return {t.key: bytes(blobs[t.content]) for t in entry.tensors}


def seen_by_h5py(data: bytes) -> dict[str, bytes]:
    """What h5py reads of the datasets in one piece that have plain numbers."""
    found = {}

    def visit(key, node) -> None:
        if isinstance(node, h5py.Dataset) and node.chunks is None:
            number = node.dtype.str in DESCRIPTIONS or node.attrs.get("dtype") == "bfloat16"
            if number:
                found[key] = node[...].tobytes()

    with h5py.File(io.BytesIO(data), "r") as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("name", ["several", "latest", "paged"])
def test_the_tensors_are_what_h5py_sees(name: str) -> None:
    assert arrays(FILES[name]) == seen_by_h5py(FILES[name])
    assert arrays(keras_zip(FILES[name])) == seen_by_h5py(FILES[name])
    found = by_key(round_trip(FILES[name]))
    assert [found[f"numbers/{i}"].spec.dtype for i in range(14)] == list(DESCRIPTIONS.values())
    assert found["scalar"].spec.shape == ()


@pytest.mark.parametrize("name", ["chunks", "latest chunks"])
def test_chunks_that_lie_together_are_a_tensor(name: str) -> None:
    found, places = arrays(FILES[name]), by_key(round_trip(FILES[name]))
    for growth in GROWTH:
        assert found.pop(f"{growth}/one") == TABLE.tobytes()
        rows = [key for key in found if key.startswith(f"{growth}/rows")]
        assert b"".join(found.pop(key) for key in rows) == TABLE.tobytes()
        assert rows == [f"{growth}/rows"] or name == "latest chunks"
        parts = {key: found.pop(key) for key in list(found) if key.startswith(f"{growth}/several#")}
        for key in parts:
            assert places[key].spec.shape[1:] == (16, 30)
        assert set(parts) == {f"{growth}/several#{i}" for i in range(len(parts))}
        chunks = np.frombuffer(b"".join(parts.values()), np.float32).reshape(9, 16, 30)
        for row, column in product(range(0, 40, 16), range(0, 70, 30)):
            part = TABLE[row : row + 16, column : column + 30]
            rows, columns = part.shape
            assert any(np.array_equal(chunk[:rows, :columns], part) for chunk in chunks)
    begun = np.frombuffer(b"".join(found.values()), np.float32)
    assert all(key.startswith("begun#") for key in found)
    assert (begun.size, begun.sum()) == (3000, 4001)


def test_what_is_no_plain_number_stays_bytes() -> None:
    (key,) = arrays(FILES["other"])
    assert key in {"plain", "other name"}


def test_a_user_block_is_no_beginning_of_hdf5() -> None:
    assert parse_file(MemorySource(made(several, userblock_size=512)), "x").format == "opaque"


def test_numbers_of_keras_that_numpy_lacks() -> None:
    words = np.arange(6, dtype=np.uint16)

    def write(file) -> None:
        file["w"] = words.view("V2")
        file["w"].attrs["dtype"] = "bfloat16"

    found = by_key(round_trip(made(write)))
    assert found["w"].spec.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("data", "why"),
    {
        "gzip": (
            made(lambda f: f.create_dataset("a", data=NUMBERS, compression="gzip")),
            "uncompressed",
        ),
        "nothing": (made(lambda f: f.create_group("a")), "plain numbers"),
        "name": (made(lambda f: f.create_dataset("a\u202ex", data=NUMBERS)), "name"),
        "deflated": (keras_zip(FILES["several"], zipfile.ZIP_DEFLATED), "compressed"),
        "damaged": (FILES["several"][:8] + bytes(500), "h5py could not read it"),
    }.values(),
)
def test_why_a_file_has_no_tensors(data: bytes, why: str) -> None:
    assert round_trip(data).format == "opaque"
    said, hint = why_opaque(MemorySource(data), "x.h5")
    assert why in said and hint


def test_versions_share_tensors_and_say_which_changed(tmp_path: Path) -> None:
    def write(file, step: int) -> None:
        file["layers/dense/vars/0"], file["layers/dense/vars/1"] = NUMBERS, NUMBERS[0] + step

    with mvc.Repository.init(tmp_path) as repo:
        for step in range(2):
            data = made(lambda file, step=step: write(file, step))
            (tmp_path / "m.weights.h5").write_bytes(data)
            (tmp_path / "m.keras").write_bytes(keras_zip(data))
            done = repo.commit([tmp_path / "m.weights.h5", tmp_path / "m.keras"])
        changed = {file.path: file.changed_tensors for file in repo.diff("HEAD~1", "HEAD").files}
        assert changed == {"m.weights.h5": 1, "m.keras": 1}
        formats = {path: entry.format for path, entry in done.entries.items()}
        assert formats == {"m.weights.h5": "hdf5", "m.keras": "keras"}
        roots = {entry.state.root for entry in done.entries.values()}
        assert len(roots) == 1
        facts = repo.open_file("HEAD", "m.keras").facts
        assert facts.metadata == {"keras_version": "3.15.1", "date_saved": "2026-11-30@02:38:53"}
        state = repo.checkout("HEAD", path="m.keras")
        assert np.array_equal(state["layers/dense/vars/1"], NUMBERS[0] + 1)
    assert "features=hdf5 " in (tmp_path / ".mvc" / "format").read_text()


def test_what_is_as_stored_is_not_read_again(tmp_path: Path, monkeypatch) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for name, data in SEEDS.items():
            (tmp_path / f"{name}.h5").write_bytes(data)
        repo.commit(tmp_path)
        monkeypatch.setattr(hdf5, "query_h5py", lambda *_: pytest.fail("a process was started"))
        assert repo.status().clean


# -- where h5py is not installed -----------------------------------------------------------------


@pytest.fixture
def no_h5py(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    there = {"h5py": None}
    return lambda: monkeypatch.setattr(hdf5, "find_spec", lambda n: there.get(n, find_spec(n)))


@pytest.mark.parametrize("name", ["m.weights.h5", "m.keras"])
def test_without_h5py(tmp_path: Path, no_h5py: Callable[[], None], name: str) -> None:
    first, second = (made(lambda f, i=i: f.create_dataset("w", data=NUMBERS + i)) for i in (0, 1))
    if name == "m.keras":
        first, second = keras_zip(first), keras_zip(second)
    file = tmp_path / name
    with mvc.Repository.init(tmp_path) as repo:
        file.write_bytes(first)
        repo.commit(file)
        file.write_bytes(second)
        repo.commit(file)
        repo.branch("old", "HEAD~1")
        no_h5py()
        assert repo.status().clean
        assert {each.kind for each in repo.diff(None).files} == {"unchanged"}
        repo.switch("old")
        assert file.read_bytes() == first and repo.status().clean
        file.write_bytes(first[:-300] + bytes([first[-300] ^ 1]) + first[-299:])
        assert not repo.status().clean
        with pytest.raises(WouldOverwrite):
            repo.switch("main")
        file.write_bytes(second)
        entry = repo.commit(file).entries[name]
        assert entry.format == "opaque"
    why, hint = why_opaque(MemorySource(second), name)
    assert "h5py" in why and "mvc-weights[hdf5]" in hint


def test_h5py_is_installed_after_a_commit(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "m.weights.h5"
    with mvc.Repository.init(tmp_path) as repo:
        file.write_bytes(made(lambda f: f.create_dataset("w", data=NUMBERS)))
        with monkeypatch.context() as missing:
            missing.setattr(hdf5, "find_spec", lambda _: None)
            assert repo.commit(file).entries[file.name].format == "opaque"
        assert repo.status().clean
        assert {each.kind for each in repo.diff(None).files} == {"unchanged"}
        repo.branch("opaque", "HEAD")
        assert repo.commit(file).entries[file.name].format == "hdf5"
        repo.switch("opaque")
        assert repo.status().clean


def test_a_stored_file_is_not_read_again_to_say_why_it_is_opaque(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = made(lambda f: f.create_dataset("w", data=["texts"]))
    for name, data in {"m.h5": weights, "m.keras": keras_zip(weights)}.items():
        (tmp_path / name).write_bytes(data)
    with mvc.Repository.init(tmp_path) as repo:
        version = repo.commit(tmp_path)
        monkeypatch.setattr(
            hdf5.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started")
        )
        for name in version.entries:
            why, how = repo.open_file(version, name).why_opaque()
            assert "plain numbers" in why and how


# -- files that do something to libhdf5 ----------------------------------------------------------


class _Forked:
    """In place of ``subprocess.Popen``: a fork of this process, which has h5py already."""

    def __init__(self, command, *, pass_fds, **_) -> None:
        from mvc.adapters.files import hdf5_child

        self.pid = os.fork()
        if not self.pid:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                hdf5_child.main(Connection(pass_fds[0]), int(command[-1]))
            finally:
                os._exit(0)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_files(name: str, monkeypatch: pytest.MonkeyPatch, count: int = 20) -> None:
    monkeypatch.setattr(hdf5.subprocess, "Popen", _Forked)
    rng = random.Random(name)
    formats = [assert_survives(mutate(SEEDS[name], rng)) for _ in range(count)]
    assert set(formats) <= {"opaque", "hdf5", "keras", "npz"}
    assert "opaque" in formats
    assert assert_survives(SEEDS[name]) != "opaque"


EDGES = [-1, 0, 1, 8, 100, 2400, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 64]


def forged(rng: random.Random) -> list[DatasetPlace]:
    def number() -> int:
        return rng.choice([rng.randrange(40), rng.randrange(3000), rng.choice(EDGES)])

    dtypes = [*DESCRIPTIONS, "bfloat16", ">f4", "|O", "raw", "", "x" * 99]
    keys = ["a", "b", "c/d", "", "é", "\u202e", "k" * 2000, "\0"]
    return [
        DatasetPlace(
            rng.choice(keys),
            rng.choice(dtypes),
            tuple(number() for _ in range(rng.choice([0, 0, 1, 1, 2, 3, 70]))),
            number(),
        )
        for _ in range(rng.choice([0, 1, 1, 2, 3, 9]))
    ]


def test_forged_answers(monkeypatch: pytest.MonkeyPatch, count: int = 400) -> None:
    rng, seen = random.Random(7), set()
    data = {"hdf5": FILES["several"][:3000], "keras": keras_zip(FILES["several"][:3000])}
    monkeypatch.setattr(hdf5, "query_h5py", lambda *_: forged(rng))
    for each in list(data.values()) * count:
        with suppress(UnsupportedTensor):  # an empty tensor of a shape that numpy refuses
            seen.add(assert_survives(each))
    assert seen == {"opaque", "hdf5", "keras"}


ANSWERS = {
    "nothing": b"",
    "no JSON": b"\xff" * 30,
    "another": b'{"type": "Other"}',
    "no numbers": b'{"type": "DatasetPlaces", "places": [{"key": "a", "dtype": "<f4"}]}',
    "surrogate": rb'{"type": "DatasetPlaces", "places": '
    rb'[{"key": "\ud800", "dtype": "<f4", "shape": [0], "offset": 0}]}',
    "too long": b" " * (33 << 20),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_process_that_answers_nonsense(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _with_child(monkeypatch, lambda pipe, _: pipe.send_bytes(ANSWERS[answer])) == "opaque"


def test_a_process_that_asks_for_bytes_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (-5, 0, 100, 1 << 40, 1 << 64)

    def child(pipe, size: int) -> None:
        for offset, length in ((a, b) for a in numbers for b in numbers):
            pipe.send_bytes(msgspec.json.encode(hdf5.Read(offset, length)))
            begin = min(max(offset, 0), size)
            assert pipe.recv_bytes() == FILES["several"][begin : begin + max(length, 0)]
        pipe.send_bytes(
            msgspec.json.encode(hdf5.DatasetPlaces([DatasetPlace("w", "<f4", (2,), 8)]))
        )

    assert _with_child(monkeypatch, child) == "hdf5"


@pytest.mark.parametrize(
    "child",
    [
        lambda *_: time.sleep(600),
        lambda *_: os.kill(os.getpid(), signal.SIGKILL),
        lambda *_: os._exit(0),
        lambda pipe, _: os.write(pipe.fileno(), b"\0\0\0\x09half") and time.sleep(600),
    ],
)
def test_a_process_that_never_answers(child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "SECONDS", 0.3)
    began = time.monotonic()
    assert _with_child(monkeypatch, child) == "opaque"
    assert time.monotonic() - began < 5


def _with_child(monkeypatch, main) -> str:
    """The format of a file that ``main`` reads in the process."""
    from mvc.adapters.files import hdf5_child

    monkeypatch.setattr(hdf5.subprocess, "Popen", _Forked)
    monkeypatch.setattr(hdf5_child, "main", main)
    return assert_survives(FILES["several"])


def test_the_process_has_little_memory_and_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from mvc.adapters.files import hdf5_child

    class Opened(nullcontext):
        def visititems(self, add) -> None:
            found = add.args[0]
            with pytest.raises(MemoryError):
                bytearray(3 << 30)
            found.append(DatasetPlace("memory", "<f4", (), 8))
            with pytest.raises(OSError, match="Too many open files"):
                os.open("/etc/passwd", os.O_RDONLY)
            found.append(DatasetPlace("files", "<f4", (), 16))

    monkeypatch.setattr(hdf5.subprocess, "Popen", _Forked)
    monkeypatch.setattr(hdf5_child.h5py, "File", lambda *_: Opened(Opened()))
    parsed = parse_file(MemorySource(FILES["several"]), "x")
    assert {tensor.key for tensor in parsed.tensors} == {"memory", "files"}
