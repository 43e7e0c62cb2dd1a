# ruff: noqa: E501 - a forged header is best read in one line
"""Headers that claim what is not there, in model files and in what a repository stores."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from mvc.adapters.files.detect import parse_file
from mvc.canonical import Writer, encode_uint
from mvc.codecs.streams import decode_stream
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData, MvcError
from mvc.ids import BlobId
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.store.index.runs import Directory, block_check
from mvc.store.journal.entries import Entry
from mvc.store.packs.records import decode_header
from tests.adapters.helpers import MemorySource
from tests.hostile.bounded import bounded

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def tensors_file(header: object, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changed: object) -> bytes:
    return tensors_file({"w": F32 | changed})


SAFETENSORS = {
    "longer than the file": struct.pack("<Q", 1000) + b"{}",
    "2**63": struct.pack("<Q", 1 << 63) + b"{}",
    "2**64-1": b"\xff" * 8 + b"{}",
    "negative shape": entry(shape=[-2]),
    "negative offsets": entry(data_offsets=[-8, 0]),
    "reversed offsets": entry(data_offsets=[8, 0]),
    "2**63 elements": entry(shape=[1 << 63]),
    "2**40 elements": entry(shape=[1 << 40]),
    "product overflows": entry(shape=[1 << 40, 1 << 40]),
    "product overflows to zero": entry(shape=[1 << 32, 1 << 32, 0, 1 << 62]),
    "many dimensions": entry(shape=[1] * 10_000),
    "huge number": tensors_file(json.dumps({"w": F32}).replace("[2]", "[" + "9" * 5000 + "]").encode()),
    "float shape": entry(shape=[2.0]),
    "boolean shape": entry(shape=[True, 2]),
    "text shape": entry(shape="2"),
    "unknown dtype": entry(dtype="PICKLE"),
    "overlap": tensors_file({"a": F32, "b": F32}),
    "partial overlap": tensors_file({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, bytes(12)),
    "gap": tensors_file({"a": F32, "b": F32 | {"data_offsets": [12, 20]}}, bytes(20)),
    "trailing": tensors_file({"w": F32}, bytes(9)),
    "duplicate names": tensors_file(b'{"w":%s,"w":%s}' % ((json.dumps(F32).encode(),) * 2)),
    "duplicate keys": tensors_file(b'{"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "NaN": tensors_file(b'{"__metadata__":{"a":NaN}}', b""),
    "Infinity": tensors_file(b'{"w":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,8]}}'),
    "1e999": tensors_file(b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}}'),
    "deep": tensors_file(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": tensors_file(b'{"w":' * 100_000 + b"1" + b"}" * 100_000),
    "invalid UTF-8": tensors_file(b'{"\xff\xfe":1}'),
    "lone surrogate": tensors_file({"\ud800": F32}),
    "NUL in a name": tensors_file({"a\0b": F32}),
    "escape in a name": tensors_file({"a\x1b[2J": F32}),
    "long name": tensors_file({"x" * 5000: F32}),
    "empty name": tensors_file({"": F32}),
    "no object": tensors_file([1]),
    "metadata of numbers": tensors_file({"__metadata__": {"a": 1}}, b""),
    "metadata a list": tensors_file({"__metadata__": []}, b""),
    "deep structure": tensors_file({"__metadata__": {"mvc": "[" * 100_000}, "w": F32}),
}  # fmt: skip


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(name: str) -> None:
    """What is no file of tensors is kept as plain bytes, or its structure is not believed."""
    parsed = parse_file(MemorySource(SAFETENSORS[name]), "x.safetensors")
    assert parsed.format == ("safetensors" if name == "deep structure" else "opaque")


def npy(header: str, data: bytes = bytes(8), length: int | None = None) -> bytes:
    text = header.encode("latin-1")
    size = len(text) if length is None else length
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", size) + text + data


def described(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


NPY = {
    "sound": npy(described("(2,)")),
    "header longer than the file": npy(described("(2,)"), length=0xFFFF),
    "2**63": npy(described(f"({1 << 63},)")),
    "2**40": npy(described(f"({1 << 40},)")),
    "product overflows": npy(described("(4294967296, 4294967296, 2)")),
    "negative": npy(described("(-2,)")),
    "an expression": npy(described("(__import__('os').getpid(),)")),
    "a call as dtype": npy(described("(2,)", "__import__('os')")),
    "objects": npy(described("(1,)", "'|O'")),
    "records": npy(described("(1,)", "[('a', '<f4')]")),
    "65 dimensions": npy(described("(" + "1, " * 65 + ")")),
    "30,000 dimensions": npy(described("(" + "1, " * 20_000 + ")")),
    "digits": npy(described("(" + "9" * 5000 + ",)")),
    "unknown version": b"\x93NUMPY\x09\x00" + npy(described("(2,)"))[8:],
}


@pytest.mark.parametrize("name", NPY)
def test_npy_alone_and_in_an_archive(name: str) -> None:
    data = NPY[name]
    assert parse_file(MemorySource(data), "x").format == ("npy" if name == "sound" else "opaque")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.npy", data)
        archive.writestr("b.npy", NPY["sound"])
    parsed = parse_file(MemorySource(out.getvalue()), "x.npz")
    assert len(parsed.tensors) == {"sound": 2, "2**63": 0, "product overflows": 0}.get(name, 1)


# -- archives ----------------------------------------------------------------------------


def archive(*names: str, links: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name in names:
            info = zipfile.ZipInfo(name)
            if links:
                info.external_attr = 0o120777 << 16  # a symbolic link, says Unix
            made.writestr(info, NPY["sound"])
    return out.getvalue()


SLIPS = ["../../etc/passwd.npy", "/etc/passwd.npy", "..\\x.npy", "C:\\x.npy", "a/../../b.npy"]


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("name", SLIPS)
def test_nothing_is_extracted_from_an_archive(tmp_path: Path, name: str, links: bool) -> None:
    """Names of members are names of tensors; a link is a member like any other."""
    from mvc.api.repository import Repository

    root = tmp_path / "a/b/c/repo"
    root.mkdir(parents=True)
    with Repository.init(root) as repo:
        (root / "x.npz").write_bytes(archive(name, links=links))
        id_ = str(repo.commit([root / "x.npz"]).id)
        repo.checkout(id_, to=root / "out.bin")
        state = repo.checkout(id_)
    assert (root / "out.bin").read_bytes() == (root / "x.npz").read_bytes()
    assert list(state) == [name.removesuffix(".npy").replace("\\", "\\")]
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert all(f.startswith("a/b/c/repo/") for f in found)
    assert not any("passwd" in f or f.endswith(".npy") for f in found)


ZIP = archive("a.npy", "b.npy")
END = ZIP.rindex(b"PK\x05\x06")
CENTRAL = ZIP.index(b"PK\x01\x02")


def patched(at: int, form: str, value: int) -> bytes:
    data = bytearray(ZIP)
    struct.pack_into(form, data, at, value)
    return bytes(data)


ZIPS = {
    "count 65535": patched(END + 10, "<H", 0xFFFF),
    "count 0": patched(END + 10, "<H", 0),
    "directory beyond the file": patched(END + 16, "<I", 0xFFFFFFF0),
    "directory of 4 GiB": patched(END + 12, "<I", 0xFFFFFFF0),
    "stored size lies": patched(CENTRAL + 20, "<I", 1),
    "both sizes lie": patched(CENTRAL + 24, "<I", 0xFFFFFFF0),
    "header elsewhere": patched(CENTRAL + 42, "<I", 0x7FFFFFFF),
    "name longer than the directory": patched(CENTRAL + 28, "<H", 0xFFFF),
    "encrypted": patched(CENTRAL + 8, "<H", 1),
    "zip64 count 2**40": ZIP[:END]
    + struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 46, CENTRAL)
    + struct.pack("<4sIQI", b"PK\x06\x07", 0, END, 1) + ZIP[END:],
}  # fmt: skip


@pytest.mark.parametrize("name", ZIPS)
def test_zip_directories_that_lie(name: str) -> None:
    assert parse_file(MemorySource(ZIPS[name]), "x").format == "opaque"


def test_overlapping_members_are_refused() -> None:
    out = bytearray(archive("a.npy", "a.npz"))
    first = out.index(b"PK\x01\x02")
    second = out.index(b"PK\x01\x02", first + 4)
    out[second + 42 : second + 46] = out[first + 42 : first + 46]
    assert parse_file(MemorySource(bytes(out)), "x").format == "opaque"


def many_members(count: int) -> bytes:
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, 6, 0)
    central = struct.Struct("<4sHHHHHHIIIHHHHHII")
    body, table = bytearray(), bytearray()
    for i in range(count):
        name = b"%06x" % i
        table += central.pack(
            b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, len(body)
        )
        table += name
        body += local + name
    end64 = struct.pack(
        "<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(table), len(body)
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(body) + len(table), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return bytes(body + table) + end64 + locator + end


@pytest.mark.parametrize(
    "count", [10_000, pytest.param(1_000_000, marks=pytest.mark.long),
              pytest.param(1_000_001, marks=pytest.mark.long)]
)  # fmt: skip
def test_an_archive_of_very_many_members(tmp_path: Path, count: int) -> None:
    """A million are the limit and take memory in proportion: 92 bytes of file, 1 kB at most."""
    path = tmp_path / "x.npz"
    path.write_bytes(many_members(count))
    outcome = bounded("tests.hostile.test_no_execution:read_file", path)
    outcome.within(1100 if count == 1_000_000 else 512, 30)


# -- what a repository stores ------------------------------------------------------------


def text(value: bytes) -> bytes:
    return encode_uint(len(value)) + value


def one_file(
    path: bytes = b"a", size: int = 8, contents: list[tuple[int, list[int]]] | None = None,
    skeleton: bytes = b"", rest: bytes = b"\0\0",
) -> bytes:  # fmt: skip
    """A manifest's bytes; contents are (gap, shape) of raw bytes."""
    from mvc.model.tensor import DTYPES

    raw = list(DTYPES).index("raw")
    placed = [(0, [8])] if contents is None else contents
    writer = Writer().uint(1).uint(1).blob(path).uint(0).uint(size).uint(len(placed))
    for gap, shape in placed:
        writer.uint(gap).uint(raw).uints(shape)
    for _ in placed:
        writer.raw(bytes(32))
    return writer.blob(skeleton).done() + rest


def test_the_forged_manifest_is_sound_as_it_stands() -> None:
    assert Manifest.decode(one_file()).by_path["a"].size == 8


VIEW = encode_uint(0) + encode_uint(1) + text(b"w") + encode_uint(0) + encode_uint(1)

MANIFESTS: dict[str, bytes] = {
    "nothing": b"",
    "2**40 files": encode_uint(1) + encode_uint(1 << 40),
    "as many files as bytes": encode_uint(1) + encode_uint(999_999) + bytes(1_000_000),
    "2**40 contents": encode_uint(1) + encode_uint(1) + text(b"a") + b"\0\x08" + encode_uint(1 << 40),
    "contents past the end": one_file(size=4),
    "a content of 2**62 bytes": one_file(size=1 << 62, contents=[(0, [1 << 62])], rest=b"\0"),
    "a shape that overflows": one_file(size=1 << 62, contents=[(0, [1 << 62, 1 << 62])]),
    "65 dimensions": one_file(contents=[(0, [1] * 65)]),
    "a skeleton of 2**62 bytes": one_file(size=1 << 62, contents=[], skeleton=bytes(32)),
    "a gap without skeleton": one_file(size=9),
    "a skeleton id of 31 bytes": one_file(size=9, skeleton=bytes(31)),
    "a check outside": one_file(rest=encode_uint(1) + encode_uint(8) + b"\0\0" + b"\0"),
    "a view of everything": one_file(rest=VIEW + b"\0" + encode_uint(1) + encode_uint(1 << 40)
                                     + bytes(32) + b"\0" + encode_uint(1) + b"\0"),
    "redundant bytes": one_file().replace(b"\x08", b"\x88\x00", 1),
    "a number of 11 bytes": b"\x81" + b"\x80" * 10 + b"\x01",
    "trailing": one_file() + b"\0",
    "invalid UTF-8": one_file(path=b"\xff\xfe"),
    "another version": b"\x09" + one_file()[1:],
}  # fmt: skip

NAMES = [
    "..", "../x", "a/../../x", "/etc/passwd", "//x", "a//b", "./a", "a/.", "", "a\0b", "a\\b",
    "C:x", "C:/x", "CON", "con.pt", "a/NUL", "COM1.txt", "com\u00b9", "LPT9", "CONIN$", "a.", "a ",
    "a./b", "a\u0301", "\u212b", ".mvc", ".MVC/x", "a/.mVc", "mvc~1/x", "MVC~12", "x" * 256,
    "y/" * 511 + "x" * 300, "z" * 1025, "a\x1b[31m", "a\nb", "a\tb", "\u202egpj.tp", "a\u200bb",
    "a\u2028b", "\ufeffa", "\x7f", "\x9b0m",
]  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(name: str) -> None:
    with pytest.raises(MvcError):
        Manifest.decode(MANIFESTS[name])


@pytest.mark.parametrize("path", NAMES)
def test_paths_of_a_hostile_manifest(path: str) -> None:
    with pytest.raises(MvcError) as caught:
        Manifest.decode(one_file(path=path.encode("utf-8", "surrogatepass")))
    assert caught.value.message.replace("…", "").isprintable()


def commit(**changed: object) -> bytes:
    fields: dict[str, object] = {"zone": 0, "count": 0, "parents": 0} | changed
    writer = Writer().uint(1).raw(bytes(64)).uint(fields["parents"])  # type: ignore[arg-type]
    writer.text("me").sint(0).sint(fields["zone"]).text("m")  # type: ignore[arg-type]
    return writer.uint(fields["count"]).raw(bytes(7)).done()  # type: ignore[arg-type]


COMMITS: dict[str, bytes] = {
    "a zone of years": commit(zone=10**9),
    "a zone of a day": commit(zone=1440),
    "a zone of a day back": commit(zone=-1440),
    "2**40 metrics": commit(count=1 << 40),
    "65 parents": commit(parents=65),
    "parents that are not there": commit(parents=64),
    "nothing": b"",
    "trailing": commit() + b"x",
    "unsorted metrics": commit()[:-8] + b"\x02" + text(b"b") + bytes(8) + text(b"a") + bytes(15),
    "a metric twice": commit()[:-8] + b"\x02" + text(b"a") + bytes(8) + text(b"a") + bytes(15),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMITS)
def test_commits(name: str) -> None:
    assert Commit.decode(commit()).message == "m"
    with pytest.raises(DamagedData):
        Commit.decode(COMMITS[name])


@pytest.mark.parametrize("start", [0, 1, *range(4, 7), *range(8, 14)])
def test_journal_entries_with_huge_counts(start: int) -> None:
    """Each count in turn is 2**40: nothing is allocated for it."""
    sound = Entry("x", 1).encoded
    for value in (1 << 20, 1 << 40, 1 << 63):
        data = sound[:start] + encode_uint(value) + sound[start + 1 :]
        with pytest.raises(DamagedData):
            Entry.decode(data, "an entry")


def record(header: bytes, body: bytes = b"", *, size: int | None = None) -> bytes:
    from blake3 import blake3

    length = len(header) if size is None else size
    head = struct.pack("<4sIQ", b"mvR1", length, len(body)) + header
    return head + blake3(head).digest(16)


RECORDS: dict[str, bytes] = {
    "a header of 4 GiB": record(b"", size=0xFFFFFFFF),
    "no members": record(b"\0\0\0"),
    "2**40 codings": record(b"\0" + encode_uint(1 << 40)),
    "2**40 members": record(b"\0\0" + encode_uint(1 << 40)),
    "members without codings": record(b"\0\0\x01" + b"\x01" + bytes(32) + b"\0\0" + bytes(9)),
    "an unknown kind": record(b"\0\x01" + text(b"raw") + b"\x01\x03" + bytes(50)),
    "a payload beyond the body": record(
        b"\0\x01" + text(b"raw") + b"\x01\x01" + bytes(32) + b"\x01\0" + encode_uint(9) + bytes(8), b"x"),
    "a body nobody owns": record(
        b"\0\x01" + text(b"raw") + b"\x01\x01" + bytes(32) + b"\x01\0\0" + bytes(8), b"x"),
    "2**62 raw bytes and more": record(
        b"\0\x01" + text(b"raw") + b"\x01\x01" + bytes(32) + encode_uint(1 << 63) + b"\0\0" + bytes(8)),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_record_headers(name: str) -> None:
    with pytest.raises(DamagedData):
        decode_header(RECORDS[name], "a test")


# -- zstd --------------------------------------------------------------------------------


def stream(frame: bytes, count: int) -> Callable[[], object]:
    return lambda: decode_stream(Cursor(b"\x02" + varint(len(frame)) + frame), count)


def frames() -> dict[str, tuple[bytes, int]]:
    plain = zstandard.ZstdCompressor(level=19)
    sized = plain.compress(bytes(1 << 20))
    without = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    large = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    windowed = zstandard.ZstdCompressor(compression_params=large).compressobj()
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(1000))
    return {
        "a bomb": (sized, 1000),
        "too short": (sized, 1 << 21),
        "forged: 1 TiB": (
            b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\1\0\0",
            1 << 20,
        ),
        "forged: as recorded": (
            b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 20) + b"\1\0\0",
            1 << 20,
        ),
        "no size": (without, 1000),
        "a window of 128 MiB": (windowed.compress(bytes(1000)) + windowed.flush(), 1000),
        "trailing bytes": (plain.compress(bytes(1000)) + b"x", 1000),
        "two frames": (plain.compress(bytes(500)) * 2, 1000),
        "many frames": (plain.compress(b"\0") * 1000, 1000),
        "an empty frame first": (plain.compress(b"") + plain.compress(bytes(1000)), 1000),
        "skippable first": (b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + plain.compress(bytes(1000)), 1000),
        "checksum": (checked, 1000),
        "nothing": (b"", 1000),
        "half": (plain.compress(np.random.default_rng(0).bytes(1000))[:500], 1000),
    }


FRAMES = frames()


@pytest.mark.parametrize("name", FRAMES)
def test_zstd_frames_in_a_payload(name: str) -> None:
    frame, count = FRAMES[name]
    with pytest.raises(DamagedData):
        stream(frame, count)()


@pytest.mark.parametrize("name", FRAMES)
def test_zstd_frames_in_the_index(name: str) -> None:
    frame, _ = FRAMES[name]
    with pytest.raises(DamagedData):
        Directory.decode(frame, block_check(frame))


def decode_bombs() -> None:
    """Sizes of a terabyte, said by frame, table and caller alike where each can lie."""
    from mvc.codecs.patch import decode_patch
    from mvc.codecs.payload import Payload
    from mvc.pipelines.pipeline import Pipeline

    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(64 << 20))
    for size in (1 << 20, 32 << 20):
        out = memoryview(bytearray(size))
        for shape in (b"\x03\x02", b"\x04\x02", b"\x03\x03\x02"):
            try:
                data = memoryview(shape + varint(len(bomb)) + bomb)
                Pipeline.parse("planes | zstd:1").decode_chunk(data, out, 4)
            except DamagedData:
                continue
            raise AssertionError("a bomb was taken")
    for action in (
        lambda: Payload(b"\x52" + bytes(100), 1 << 62),
        lambda: decode_patch(varint(len(bomb)) + bomb, memoryview(b""), b"", 1 << 40),
    ):
        try:
            action()
        except DamagedData:
            continue
        raise AssertionError("a bomb was taken")


def test_memory_stays_near_the_raw_size() -> None:
    bounded("tests.hostile.test_headers:decode_bombs").within(32 + 64, 10)


def test_ids_have_their_length() -> None:
    with pytest.raises((ValueError, MvcError)):
        BlobId(b"short")
