"""Reads and writes the headers of records (docs/format.md). A pack is a file of records.

A record stores objects, such as tensors. It has a header, and a body with the encoded objects. The
*members* of a record are objects or pieces of objects. The encoded bytes of a member are its
payload. The header has the ids of the members, their codings (how the members are encoded) and
their bases (objects from which the members are deltas). Header and payloads have checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from blake3 import blake3
from msgspec import Struct

from mvc.canonical import Reader, Writer
from mvc.errors import DamagedData
from mvc.ids import DIGEST_SIZE
from mvc.limits import MAX_PIPELINE_TEXT, MAX_RECORD_HEADER, MAX_TENSORS
from mvc.model.hashing import ONE_CALL
from mvc.types import FIRST_RELEASE as FIRST
from mvc.types import Bytes

MAGIC = b"mvR1"
_PREFIX = struct.Struct("<4sIQ")
PREFIX_SIZE = _PREFIX.size
CHECK_SIZE = 16
PAYLOAD_CHECK = 8
_MAX_EXTRA = 1 << 20
BASE_BYTES = 8
"""A header names a base by the first bytes of the base's id. This is the number of these bytes.

If the ids of several objects begin with these bytes, the object that was published first is meant.
"""

BLOB, MANIFEST = 1, 2
_HAS_BASE, _STARTS_LATER, _HAS_INPUTS = 4, 8, 16
_ALL_FLAGS = 31
MOST_INPUTS = 4
"""Maximum number of pieces that, in addition to its base, predict one member."""
_KINDS = (BLOB, MANIFEST)
JOINT = "joint"
OPTIM = "optim:"
TRANSFORMS = {"resize": FIRST, "patch": FIRST, "cast:": FIRST, OPTIM: "optim"}
"""Maps the prefix of a transform (``Coding``) to the format feature that a reader needs."""
_ADDS = frozenset({JOINT, "expq", "uniform"})
"""Prefixes of codings that add floats to a base."""
_MOST_JOINT_DIGITS = 4


class Coding(Struct, frozen=True, dict=True):
    """How payload bytes become an object. ``text`` is ``[transform |] pipeline``.

    A pipeline is a line of stages. A coding with a base is a delta. Deltas without a transform can
    be undone, except lossy deltas (``mvc.lossy.lc``), which add floats to the base. ``joint:M``
    before the pipeline of lossy deltas: the members are M consecutive deltas of the same objects.
    Deltas with a transform cannot be undone:

    - ``resize``: the base is cut or zero-filled first.
    - ``cast:A>B``: the base is converted to another dtype first.
    - ``optim:...``: an optimizer's step is predicted from the base first (``mvc.codecs.optim``).
    - ``patch``: the base is a zstd dictionary. There is no pipeline.
    """

    text: str

    @staticmethod
    @lru_cache(maxsize=4096)  # every step of an optimizer has its own coding
    def of(text: str) -> Coding:
        """The coding with this text. Calls with equal texts return the same object."""
        return Coding(text)

    @cached_property
    def transform(self) -> str:
        head = self.text.split(" | ", 1)[0]
        return head if head in {"resize", "patch"} or head.startswith(("cast:", OPTIM)) else ""

    @cached_property
    def forward_only(self) -> bool:
        """Whether the base cannot be recovered from the object."""
        # ``Pipeline.parse`` is not used, because reading a history must not import codecs.
        first = self.text.partition(" | ")[0].partition(":")[0]
        return bool(self.transform) or first in _ADDS

    @property
    def predicted(self) -> bool:
        """Whether an optimizer's step predicts the object from its base and inputs."""
        return self.text.startswith(OPTIM)

    @cached_property
    def joint(self) -> int:
        """M for a coding with ``joint:M``; otherwise 0."""
        head, colon, count = self.text.split(" | ", 1)[0].partition(":")
        known = head == JOINT and colon and count.isdecimal() and len(count) <= _MOST_JOINT_DIGITS
        return int(count) if known else 0

    @property
    def pipeline(self) -> str:
        prefixed = self.joint or self.transform not in {"", "patch"}
        return self.text.partition(" | ")[2] if prefixed else self.text


class Member(NamedTuple):
    """One object in a record, or one piece of a large object.

    ``start``, ``nbytes``: the range of the object's raw bytes. ``at``, ``stored``: the range of the
    payload in the record's body. ``base``: first bytes of the base's id, empty for a full record.
    ``inputs``: first bytes of the ids of the objects that, with the base, predict the member.
    """

    kind: int
    id: bytes
    start: int
    nbytes: int
    coding: Coding
    base: bytes
    at: int
    stored: int
    check: bytes
    inputs: tuple[bytes, ...] = ()

    @property
    def needs(self) -> tuple[bytes, ...]:
        """First bytes of the ids of the base, if there is one, and of the inputs."""
        return (self.base, *self.inputs) if self.base else self.inputs


class RecordHeader(Struct, frozen=True, dict=True):
    """A parsed header. A *group* record has one payload for all of its members."""

    members: tuple[Member, ...]
    group: bool
    header_size: int
    body_size: int

    @property
    def size(self) -> int:
        return PREFIX_SIZE + self.header_size + CHECK_SIZE + self.body_size

    @property
    def body_at(self) -> int:
        return PREFIX_SIZE + self.header_size + CHECK_SIZE

    @cached_property
    def raw_bytes(self) -> int:
        return sum(member.nbytes for member in self.members)

    def share(self, member: Member) -> int:
        """Stored bytes of a member. A group's payload is divided in proportion to raw bytes."""
        return (
            member.stored * member.nbytes // (self.raw_bytes or 1) if self.group else member.stored
        )

    @cached_property
    def by_id(self) -> dict[bytes, list[int]]:
        table: dict[bytes, list[int]] = {}
        for i, member in enumerate(self.members):
            table.setdefault(member.id, []).append(i)
        return table


def patch_extra(members: Sequence[Member], kind: int) -> bytes:
    """Bytes that a patch (a delta by zstd) of a manifest may refer to, in addition to its base.

    A manifest lists ids of objects. The record of the manifest often stores these objects, too. The
    record's header has their ids, so the patch refers to the header instead of storing the ids.
    """
    if kind != MANIFEST:
        return b""
    return b"".join(m.id for m in members if m.kind == BLOB)[:_MAX_EXTRA]


def payload_check(payload: Sequence[Bytes]) -> bytes:
    """The 8-byte checksum of a payload, which is passed in parts."""
    if sum(map(len, payload)) <= ONE_CALL:
        return blake3(b"".join(payload)).digest(PAYLOAD_CHECK)
    hasher = blake3()
    for part in payload:
        hasher.update(part)
    return hasher.digest(PAYLOAD_CHECK)


def encode_header(members: Sequence[Member], *, group: bool, body_size: int) -> bytes:
    """All bytes of a record before its body."""
    texts = list(dict.fromkeys(m.coding.text for m in members))
    writer = Writer().uint(1 if group else 0).uint(len(texts))
    for text in texts:
        writer.text(text)
    if group:
        writer.raw(members[0].check)
    writer.uint(len(members))
    for member in members:
        flags = member.kind | (_HAS_BASE if member.base else 0)
        flags |= (_STARTS_LATER if member.start else 0) | (_HAS_INPUTS if member.inputs else 0)
        writer.uint(flags).raw(member.id).uint(member.nbytes)
        if member.start:
            writer.uint(member.start)
        writer.uint(texts.index(member.coding.text)).raw(member.base)
        if member.inputs:
            writer.uint(len(member.inputs)).raw(b"".join(member.inputs))
        if not group:
            writer.uint(member.stored).raw(member.check)
    header = writer.done()
    head = _PREFIX.pack(MAGIC, len(header), body_size) + header
    return head + blake3(head).digest(CHECK_SIZE)


def read_prefix(prefix: bytes, room: int, where: str) -> tuple[int, int]:
    """(header size, body size) from a record's first 16 bytes; both fit into ``room``."""
    if len(prefix) < PREFIX_SIZE:
        raise DamagedData(f"a record in {where} is truncated")
    magic, header_size, body_size = _PREFIX.unpack(prefix[:PREFIX_SIZE])
    if magic != MAGIC or header_size > MAX_RECORD_HEADER:
        raise DamagedData(f"a record in {where} has no valid beginning")
    if PREFIX_SIZE + header_size + CHECK_SIZE + body_size > room:
        raise DamagedData(f"a record in {where} is longer than its file")
    return header_size, body_size


def codings_of(head: bytes) -> list[str]:
    """The coding texts in a record's head. The head must be undamaged."""
    reader = Reader(head[PREFIX_SIZE:], "a record header")
    reader.uint(1)
    return [reader.text(MAX_PIPELINE_TEXT) for _ in range(reader.count(256))]


def decode_header(data: bytes, where: str) -> RecordHeader:
    """The header in ``data``, which has prefix, header and checksum. Raises DamagedData."""
    header_size, body_size = read_prefix(data, 1 << 63, where)
    end = PREFIX_SIZE + header_size
    if len(data) != end + CHECK_SIZE or blake3(data[:end]).digest(CHECK_SIZE) != data[end:]:
        raise DamagedData(f"the header of a record in {where} does not match its checksum")
    reader = Reader(data[PREFIX_SIZE:end], f"a record header in {where}")
    group = bool(reader.uint(1))
    codings = [Coding.of(reader.text(MAX_PIPELINE_TEXT)) for _ in range(reader.count(256))]
    group_check = reader.raw(PAYLOAD_CHECK) if group else b""
    members: list[Member] = []
    at = 0
    uint, raw = reader.uint, reader.raw  # faster: a long history has millions of members
    for _ in range(reader.count(MAX_TENSORS)):
        flags, id_, nbytes = reader.raw(1)[0], raw(DIGEST_SIZE), uint(1 << 62)
        if flags > _ALL_FLAGS or flags & 3 not in _KINDS:
            raise reader.fail("an object's kind is unknown")
        if flags & _HAS_INPUTS and not flags & _HAS_BASE:
            raise reader.fail("an object has inputs, but no base")
        start = uint(1 << 62) if flags & _STARTS_LATER else 0
        if not codings:
            raise reader.fail("an object has no coding")
        coding = codings[uint(len(codings) - 1)]
        base = raw(BASE_BYTES if flags & _HAS_BASE else 0)
        inputs = _inputs(reader) if flags & _HAS_INPUTS else ()
        stored = body_size if group else reader.uint(body_size)
        check = group_check if group else raw(PAYLOAD_CHECK)
        kind = flags & 3
        member = Member(
            kind, id_, start, nbytes, coding=coding, base=base, at=at, stored=stored, check=check,
            inputs=inputs,
        )  # fmt: skip
        members.append(member)
        at += 0 if group else stored
    reader.end()
    if not members or (not group and at != body_size):
        raise reader.fail("its payloads do not fill its body")
    return RecordHeader(tuple(members), group, header_size, body_size)


def _inputs(reader: Reader) -> tuple[bytes, ...]:
    count = reader.uint(MOST_INPUTS)
    if not count:
        raise reader.fail("an object claims inputs, but has none")
    return tuple([reader.raw(BASE_BYTES) for _ in range(count)])
