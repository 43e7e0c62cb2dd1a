"""Stored values as mvc and the second reader see them, so that mutated bytes can be compared.

A *form* is one kind of stored bytes with three readers: mvc's ordinary one, mvc's fast one (the
shape of the manifest before, or the compiled loops), and the second one. Each gives a plain value
or refuses: mvc with ``DamagedData`` and nothing else, the second reader with any error.
"""

from __future__ import annotations

import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from blake3 import blake3

from mvc.codecs import words
from mvc.errors import DamagedData, UnsupportedFormat
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest, Shape
from mvc.model.statement import AnnotationStatement, Statement
from mvc.pipelines.group import decode_group, encode_group
from mvc.pipelines.pipeline import Pipeline
from mvc.store.journal.entries import STATE_CHANGES, Entry
from mvc.store.packs.records import decode_header, payload_check, read_prefix
from tests.codecs.samples import GROUP_PIPELINES, TENSOR_PIPELINES, WIDTHS, pair
from tests.oracle import reader, steps

__all__ = ["FORMS", "REFUSED", "Form", "agree"]

REFUSED = "refused"
FROZEN = Path(__file__).parents[1] / "frozen"
_SOUND = ("annotated", "codings", "files", "history", "lossy", "maintained", "params", "recipes",
          "relinked", "trained")  # fmt: skip
_DAY, _FAR = 24 * 60, 1 << 62

Seeds = list[bytes]
Read = Callable[[bytes], Any]


@dataclass(frozen=True)
class Form:
    """``fast`` is given a sound value as well, which mvc reads before. ``exact``: the second
    reader refuses all that mvc refuses, not only the other way round.
    """

    seeds: Callable[[], Seeds]
    ordinary: Read
    fast: Callable[[bytes, bytes], Any]
    second: Read
    exact: bool


def agree(form: Form, data: bytes, before: bytes) -> bool:
    """Whether ``data`` was read, or refused by all; AssertionError if two readers differ."""
    with _alone():
        ordinary = _mvc(form.ordinary, data)
    fast = _mvc(lambda given: form.fast(given, before), data)
    assert fast == ordinary, f"fast and ordinary differ: {data.hex()} after {before.hex()}"
    with _strict():
        second = _second(form.second, data)
    if ordinary != REFUSED or form.exact:
        assert second == ordinary, f"the second reader differs: {data.hex()}"
    return bool(ordinary != REFUSED)


def _mvc(read: Read, data: bytes) -> Any:
    try:
        return read(data)
    except (DamagedData, UnsupportedFormat):
        return REFUSED


def _second(read: Read, data: bytes) -> Any:
    try:
        return read(data)
    except Exception:  # a short reader refuses by whatever fails first
        return REFUSED


@contextmanager
def _alone() -> Iterator[None]:
    """mvc without the compiled loops."""
    kernels = words.kernels
    words.kernels = None  # type: ignore[assignment]
    try:
        yield
    finally:
        words.kernels = kernels


class _Strict(reader.Cursor):
    """Keeps all cursors, so that bytes that follow the last field are seen; groups stay coded."""

    every: list[_Strict] = []

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.every.append(self)

    def group(self, *_: object) -> None:
        self.at = len(self.data)

    def get(self, kind: str, outer: Any = None) -> Any:
        begin, value = self.at, super().get(kind, outer)
        reader.need(kind[:2] != "?*" or value or self.at == begin + 1, "a field of no rows")
        return value


@contextmanager
def _strict() -> Iterator[None]:
    """The second reader with the document's rules that each number has one encoding, and that
    names ascend.
    """
    kinds, kept = dict(reader.KINDS), (reader.Cursor, steps.read)
    reader.Cursor = _Strict
    steps.read = lambda c, *_: c.group()
    reader.KINDS |= {
        "uint": _uint,
        "own": _own,
        "metrics": lambda c, r: _table(c.get("*text,float")),
        "params": lambda c, r: _table(c.get("*text,text")),
    }
    _Strict.every = []
    try:
        yield
    finally:
        reader.KINDS |= kinds
        reader.Cursor, steps.read = kept


def _table(rows: list[tuple[str, Any]]) -> dict[str, Any]:
    _ascending([name.encode("utf-8", "surrogateescape") for name, _ in rows])
    return dict(rows)


def _uint(cursor: Any, _: Any) -> int:
    value = shift = 0
    while True:
        byte = cursor.take(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            reader.need((byte or not shift) and value < 1 << 64, "a number's encoding")
            return value
        shift += 7


def _own(_: Any, outer: Any) -> Any:
    """A value that the entry's own commit says: its id, or its first parent."""
    tag, entry = outer
    if not tag:
        return None
    reader.need(len(entry.commits) == 1, "it names a commit that is not there")
    (commit,) = entry.commits
    return [commit.id, *commit.parents][tag - 3]


# -- entries and commits -------------------------------------------------------------------


def _commit(commit: Commit) -> Any:
    return (
        commit.manifest, commit.root, list(commit.parents), commit.author,
        commit.time_ns, commit.zone_minutes, commit.message, _floats(commit.metrics.items()),
        commit.pipeline, commit.code, list(commit.params.items()), list(commit.needs),
        list(commit.attached), commit.run, int(commit.dirty),
    )  # fmt: skip


def _floats(items: Any) -> list[tuple[str, bytes]]:
    """Bits, because a metric may be NaN."""
    return [(name, struct.pack("<d", value)) for name, value in items]


def _commit_by_second(data: bytes) -> Any:
    c = reader.Cursor(data)
    made = c.get("made", reader.Record(id=b""))
    reader.need(c.at == len(data), "bytes follow")
    return _second_commit(made)


def _second_commit(m: Any) -> Any:
    needs, attached = list(m.needs), list(m.attached)
    parameters = list(m.params.items())
    _ascending([name.encode("utf-8", "surrogateescape") for name in attached])
    _ascending(needs)
    reader.need(m.dirty < 2 and -_DAY < m.zone < _DAY, "its form")
    _within(1024, m.run)
    reader.need(
        len(m.parents) <= 500 and len(m.pipeline.encode("utf-8", "replace")) <= 400, "limits"
    )
    return (
        m.manifest, m.root, list(m.parents), m.author, m.time, m.zone, m.message,
        _floats(m.metrics.items()), m.pipeline, m.code, parameters, needs, attached,
        m.run, m.dirty,
    )  # fmt: skip


def _within(most: int, *texts: str) -> None:
    """The limits of names, which the document leaves to docs/limits.md."""
    sizes = [len(text.encode("utf-8", "surrogateescape")) for text in texts]
    reader.need(max(sizes, default=0) <= most, "a limit")


def _ascending(values: list[bytes]) -> None:
    reader.need(all(a < b for a, b in pairwise(values)), "their order")


def _entry(e: Entry) -> Any:
    return (
        e.operation, e.time_ns, e.note, e.author, e.reason, _next(e.undoes),
        [(r.pack, r.start, r.length) for r in e.regions],
        [_commit(commit) for commit in e.commits],
        [(r.name, r.old, r.new) for r in e.refs],
        list(e.marks),
        [(*_statement(s), _next(before)) for s, before in zip(
            e.statements, e.previous, strict=True)],
        [(s.commit, s.path, STATE_CHANGES.index(s.change)) for s in e.states],
    )  # fmt: skip


def _statement(s: Statement) -> tuple[Any, ...]:
    body: dict[str, Any] = {name: getattr(s, name) for name in s.__struct_fields__[6:]}
    if isinstance(s, AnnotationStatement):
        metrics, params = _floats(s.metrics.items()), list(s.params.items())
        body = {"metrics": metrics, "params": params, "note": s.note}
    return (
        s.code, s.subject, s.author, s.reason, s.node, s.recorded_ns, s.hybrid_ns,
        [b"" if value is None and name != "ahead_ms" else value for name, value in body.items()],
    )  # fmt: skip


def _next(number: int | None) -> int:
    return 0 if number is None else number + 1


_BODIES = (
    "target time replaces returned ahead", "target replaces", "metrics params note", "root",
    "path base took environment", "whose signed blob before",
)  # fmt: skip
"""By kind, in the order of mvc's fields."""


def _second_statement(s: Any) -> tuple[Any, ...]:
    body = {name: getattr(s, name) for name in _BODIES[s.kind].split()}
    _within(1024, s.author, *(body[name] for name in ("path", "environment") if name in body))
    _within(1 << 16, s.reason)
    _within(1 << 20, body.get("note", ""))
    _within(200, body.get("target", ""))
    reader.need(s.hybrid <= 1 << 63 and body.get("took", 0) <= _FAR, "a number")
    reader.need(s.kind or s.target, "a deployment without a target")
    for name in ("replaces", "returned", "before"):
        reader.need(len(body.get(name, b"")) in (0, 32), "an id")
    if s.kind == 2:
        for table in (s.metrics, s.params):
            _ascending([name.encode("utf-8", "surrogateescape") for name, _ in table])
            _within(1024, *(name for name, _ in table))
        _within(1024, *(value for _, value in s.params))
        body["metrics"] = _floats(s.metrics)
    if s.kind == 5:
        reader.need(s.whose < 2 and s.signed < 1 << 63 and len(s.blob) <= 1 << 14, "a signature")
        body["whose"] = bool(s.whose)
    return (
        s.kind, s.subject, s.author, s.reason, s.node, s.recorded, s.hybrid, [*body.values()],
    )  # fmt: skip


def _entry_by_second(data: bytes) -> Any:
    c = reader.Cursor(data)
    e = c.get("entry", reader.Record(sequence=0))
    _within(1024, e.author, *(path for _, path, _ in e.states))
    _within(1 << 16, e.reason)
    reader.need(c.at == len(data), "its form")
    reader.need(all(p <= 1 << 32 and max(s, n) <= _FAR for p, s, n in e.regions), "a region")
    reader.need(all(change < len(STATE_CHANGES) for _, _, change in e.states), "a state")
    names = [e.operation, *(r[0] for r in e.refs),
             *(v for r in e.refs for v in r[1:] if isinstance(v, str))]  # fmt: skip
    _within(200, *names)
    statements = [(*_second_statement(s), s.previous) for s in e.statements]
    for made in _Strict.every:
        reader.need(made.at == len(made.data), "bytes follow a commit")
    return (
        e.operation, e.recorded, e.note, e.author, e.reason, e.undoes, e.regions,
        [_second_commit(commit) for commit in e.commits],
        e.refs, [struct.pack("<d", mark) for mark in e.marks], statements, e.states,
    )  # fmt: skip


# -- records -------------------------------------------------------------------------------


def _sealed(data: bytes) -> bytes:
    """A record whose header, which has the length that it says, matches its checksum."""
    header = int.from_bytes(data[4:8], "little")
    end = 16 + min(header, len(data))
    return data[:end] + blake3(data[:end]).digest(16) + data[end + 16 :]


def _record(data: bytes) -> Any:
    data = _sealed(data)
    header_size, _ = read_prefix(data[:16], 1 << 63, "a test")
    end = 32 + header_size
    header = decode_header(data[:end], "a test")
    if len(data) != end + header.body_size:
        raise DamagedData("a record is cut off")
    members = []
    for m in header.members:
        if payload_check([data[end + m.at : end + m.at + m.stored]]) != m.check:
            raise DamagedData("a payload does not match its checksum")
        needs = m.base, list(m.inputs)
        members.append((m.kind, m.id, m.start, m.nbytes, m.coding.text, m.stored, needs))
    return header.group, members


def _record_by_second(data: bytes) -> Any:
    data = _sealed(data)
    outer = reader.Cursor(data)
    r = outer.record()
    cursors = [c for c in _Strict.every if c is not outer]
    reader.need(outer.at == len(data), "bytes follow the record")
    # An empty payload of a group is read by nothing; its header ends where its members do.
    reader.need(all(c.at == len(c.data) for c in cursors), "its header or its body")
    reader.need(r.group < 2 and r.members and len(r.codings) <= 256, "its form")
    for m in r.members:
        reader.need(m.flags < 32 and m.kind in (1, 2) and max(m.start, m.nbytes) <= _FAR, "flags")
        some = 1 <= len(m.inputs) <= 4 and m.flags & 4
        reader.need(some if m.flags & 16 else not m.inputs, "inputs")
    reader.need(all(len(text) <= 400 for text in r.codings), "a coding")
    members = [(m.kind, m.id, m.start, m.nbytes, m.coding, len(m.payload), (m.base, m.inputs))
               for m in r.members]  # fmt: skip
    return bool(r.group), members


# -- manifests -----------------------------------------------------------------------------


def _manifest(data: bytes) -> Any:
    return [_file(e) for e in Manifest.decode(data).all_entries]


def _file(e: Any) -> Any:
    contents, end = [], 0
    for c in e.contents:
        contents.append((c.offset - end, (c.spec.dtype, c.spec.shape), c.id))
        end = c.offset + c.spec.nbytes
    tensors = [(t.key, (t.spec.dtype, t.spec.shape), t.id,
                t.view and (t.view.offset, list(t.view.strides))) for t in e.tensors]  # fmt: skip
    checks = [(c.position, c.start, c.length) for c in e.checks]
    return e.path, e.size, contents, e.skeleton or b"", checks, tensors


def _manifest_like(data: bytes, before: bytes) -> Any:
    """The ids that the shape of another one finds must be those of the ordinary reader."""
    ids = Shape(before).ids(data)
    value = _manifest(data)
    if ids is not None:
        named = [id_ for _, _, contents, skeleton, _, _ in value
                 for id_ in (*(c[2] for c in contents), skeleton)]  # fmt: skip
        assert ids == b"".join(named), "the shape of another manifest finds other ids"
    return value


def _manifest_by_second(data: bytes) -> Any:
    c = reader.Cursor(data)
    _, files = c.get("uint,*file")
    reader.need(c.at == len(data), "bytes follow")
    found = []
    for e in files:
        tensors = [(t.key, t.spec, t.id, (t.offset, t.strides) if hasattr(t, "strides") else None)
                   for t in e.tensors]  # fmt: skip
        contents = [(c.gap, c.spec, c.id) for c in e.contents]
        found.append((e.path, e.size, contents, e.skeleton, e.checks, tensors))
    return found


# -- columns -------------------------------------------------------------------------------

_SIZE = 1200  # bytes of a chunk or of a member, of which the last ones fill no word


def _columns() -> Seeds:
    """A byte that names the pipeline, one that names the width; then a chunk with a base."""
    found = []
    for number, text in enumerate(TENSOR_PIPELINES):
        pipeline = Pipeline.parse(text)
        for code, width in enumerate(WIDTHS):
            for share in (0.03, 0.5):
                new, base = (memoryview(part) for part in _pair(width, share))
                chunk = pipeline.encode_chunk(new, base, width)
                found.append(bytes([number, code]) + bytes(chunk))
    return found


def _pair(width: int, share: float) -> tuple[bytes, bytes]:
    """The base is the same for every share."""
    return pair(_SIZE + 3, width, share, width)


def _chunk_of(data: bytes) -> tuple[Pipeline, int, bytes, bytes]:
    if len(data) < 2:
        raise DamagedData("nothing is left")
    width = WIDTHS[data[1] % len(WIDTHS)]
    pipeline = Pipeline.parse(TENSOR_PIPELINES[data[0] % len(TENSOR_PIPELINES)])
    return pipeline, width, _pair(width, 0.5)[1], data[2:]


def _column(data: bytes) -> bytes:
    pipeline, width, base, chunk = _chunk_of(data)
    out = bytearray(base)
    pipeline.apply_chunk(memoryview(chunk), memoryview(out), width, reverse=False)
    return bytes(out)


def _column_by_second(data: bytes) -> bytes:
    pipeline, width, base, chunk = _chunk_of(data)
    c = reader.Cursor(chunk)
    delta = c.chunk(len(base), width, pipeline.text, base, False)
    reader.need(c.at == len(chunk), "bytes follow")
    return bytes(reader.combine(base, delta, width, pipeline.text, False))


def _groups() -> Seeds:
    """A byte that names the pipeline, then the payload of four members."""
    found = []
    for number, text in enumerate(GROUP_PIPELINES):
        for share in (0.03, 0.5):
            pairs = [(*pair(size, width, share, width), width) for size, width in _MEMBERS]
            members = [(memoryview(new), memoryview(base), width) for new, base, width in pairs]
            payload = encode_group(Pipeline.parse(text), members)
            found.append(bytes([number]) + b"".join(map(bytes, payload)))
    return found


_MEMBERS = ((400, 4), (33, 2), (0, 1), (64, 8))
_SIZES = [size for size, _ in _MEMBERS]


def _group_of(data: bytes) -> tuple[Pipeline, bytes]:
    if not data:
        raise DamagedData("nothing is left")
    return Pipeline.parse(GROUP_PIPELINES[data[0] % len(GROUP_PIPELINES)]), data[1:]


def _group(data: bytes) -> Any:
    pipeline, payload = _group_of(data)
    members = decode_group(pipeline, memoryview(payload), _SIZES)
    return [(width, bytes(member)) for member, width in members]


def _group_by_second(data: bytes) -> Any:
    pipeline, payload = _group_of(data)
    c = _PLAIN(payload)
    members = _PLAIN.group(c, _SIZES, pipeline.text)
    reader.need(c.at == len(payload), "bytes follow")
    return [(width, bytes(member)) for width, member in members]


_PLAIN = reader.Cursor


# -- seeds ---------------------------------------------------------------------------------


def _frozen(name: str) -> Iterator[bytes]:
    """Of every sound repository that is kept, the bytes of this file, or of files below it."""
    for stem in _SOUND:
        with zipfile.ZipFile(FROZEN / f"{stem}.zip") as archive:
            for path in sorted(archive.namelist()):
                if path.startswith(f".mvc/{name}"):
                    yield archive.read(path)


def _entries() -> Seeds:
    found = []
    for journal in _frozen("journal"):
        at = 0
        while at < len(journal):
            length = int.from_bytes(journal[at + 4 : at + 8], "little")
            found.append(journal[at + 32 : at + 32 + length])
            at += 2 * (48 + length)
    return found


def _commits() -> Seeds:
    return [c.encoded for data in _entries() for c in Entry.decode(data, "a seed").commits]


_LONGEST = 6000  # bytes of a record, or of a manifest, that serves as a seed


def _records() -> Seeds:
    return [record for pack in _frozen("packs/") for record in _in_pack(pack)
            if len(record) <= _LONGEST]  # fmt: skip


def _in_pack(pack: bytes) -> Iterator[bytes]:
    at = pack.find(b"mvR1")
    while at >= 0:
        header, body = struct.unpack("<IQ", pack[at + 4 : at + 16])
        yield pack[at : at + 32 + header + body]
        at = pack.find(b"mvR1", at + 32 + header + body)


def _manifests() -> Seeds:
    """Of every commit; by the second reader, because most are stored as patches."""
    found = []
    for stem in _SOUND:
        found += _manifests_of(FROZEN / f"{stem}.zip")
    return [data for data in found if len(data) <= _LONGEST]


def _manifests_of(path: Path) -> Seeds:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        oracle = reader.Repository(Path(folder) / ".mvc")
        ids = [m.manifest for m in oracle.commits.values()]
        stored = {piece[0] for piece in oracle.pieces}
        return [bytes(oracle.object(id_)) for id_ in ids if id_ in stored]


FORMS = {
    "entries": Form(
        _entries, lambda data: _entry(Entry.decode(data, "a test")),
        lambda data, _: _entry(Entry.decode(data, "a test")),
        _entry_by_second, True,
    ),
    "commits": Form(
        _commits, lambda data: _commit(Commit.decode(data)),
        lambda data, _: _commit(Commit.decode(data)),
        _commit_by_second, True,
    ),
    "record headers": Form(
        _records, _record, lambda data, _: _record(data), _record_by_second, True,
    ),
    "manifests": Form(_manifests, _manifest, _manifest_like, _manifest_by_second, False),
    "columns": Form(_columns, _column, lambda data, _: _column(data), _column_by_second, False),
    "groups": Form(_groups, _group, lambda data, _: _group(data), _group_by_second, False),
}  # fmt: skip
