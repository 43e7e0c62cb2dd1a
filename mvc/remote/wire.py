"""What a client and a server say to each other: messages, frames of an answer, errors.

The body of an answer that takes long is a row of *frames*: a kind, a length, and so many bytes.
Data of length 0 says that the server is still at work. Slices travel as ``slices`` writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from mvc.errors import MvcError, RemoteRefused, class_named
from mvc.ids import CommitId
from mvc.limits import MIB
from mvc.names import printable
from mvc.remote import slices
from mvc.remote.transport import Received, RemoteHead, Wanted

CONTENT = "application/x-mvc"
"""The type of every body."""
PART = 32 * MIB
"""Bytes of a slice that one request brings, at most."""
MAX_MESSAGE = 16 * MIB
"""Bytes of a head, of what is wanted, and of what became of a slice."""
MAX_PROBLEM = 64 << 10
MAX_MARK = 256
"""Bytes of a mark of what is live."""
CHECKED = 64 << 10
"""Bytes at the beginning of a slice by which a server knows that an answer goes on as it was."""
WAIT = 60.0
"""Seconds for which a server waits for news, at most."""
ALIVE = 15.0
"""Seconds after which a server that is at work says so."""

DATA, ANSWER, ERROR, END = b"d", b"a", b"e", b"z"
_FRAME = struct.Struct(">cI")
_LONGEST_TEXT = 4000
_M = TypeVar("_M")


class Broken(ConnectionError):
    """A connection that ended before what it was to bring."""


class _Head(RemoteHead, frozen=True, array_like=True):
    """The value of a ref is the id of a version, or the name of another ref."""

    refs: dict[str, tuple[CommitId | None, str | None]]  # type: ignore[assignment]


class _SentError(Struct, array_like=True):
    kind: str
    message: str
    hint: str | None = None


def encode(message: RemoteHead | Wanted | Received) -> bytes:
    """A message as it travels."""
    if isinstance(message, RemoteHead):
        refs = {n: (None, v) if isinstance(v, str) else (v, None) for n, v in message.refs.items()}
        return slices.encode(_Head(**asdict(message) | {"refs": refs}))
    return slices.encode(message)


def decode(kind: type[_M], data: bytes) -> _M:
    """Raises RemoteRefused for what is no message of this kind."""
    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=slices.decode_id)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RemoteRefused(
            "the other end says what this mvc does not understand",
            hint="use the same version of mvc on both sides",
        ) from error


def decode_head(data: bytes) -> RemoteHead:
    """Raises RemoteRefused."""
    said = decode(_Head, data)
    refs = {n: name if id_ is None else id_ for n, (id_, name) in said.refs.items()}
    return RemoteHead(**asdict(said) | {"refs": refs})


def decode_mark(data: bytes) -> str:
    """A mark of what is live. Raises RemoteRefused."""
    if not data or not data.isascii() or not data.decode().isprintable():
        raise RemoteRefused("the other end does not say what is live")
    return data.decode()


def encode_error(error: MvcError) -> bytes:
    """An error as it travels."""
    hint = None if error.hint is None else error.hint[:_LONGEST_TEXT]
    return slices.encode(_SentError(error.kind, error.message[:_LONGEST_TEXT], hint))


def decode_error(data: bytes) -> MvcError:
    """The error that the other end had; RemoteRefused for one of a kind that is not known here."""
    said = decode(_SentError, data)
    kind = class_named(said.kind) or RemoteRefused
    hint = None if said.hint is None else printable(said.hint[:_LONGEST_TEXT])
    return kind(f"remote: {printable(said.message[:_LONGEST_TEXT])}", hint=hint)


def frame(kind: bytes, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """A frame of an answer."""
    return b"".join((_FRAME.pack(kind, len(payload)), payload))


def read_frames(read: Callable[[int], bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Kind and payload of each frame up to the end, data in pieces, none of what says 'at work'.

    ``read(n)`` returns up to n bytes, none at the end. Raises Broken where it ends too early, and
    the error that a frame holds.
    """
    while True:
        kind, left = _FRAME.unpack(slices.exactly(read, _FRAME.size, _broken))
        if kind == END:
            return
        if kind == DATA:
            while left:
                if not (part := read(min(left, MIB))):
                    raise _broken()
                left -= len(part)
                yield kind, part
        elif kind in (ANSWER, ERROR) and left <= MAX_MESSAGE:
            payload = slices.exactly(read, left, _broken)
            if kind == ERROR:
                raise decode_error(payload)
            yield kind, payload
        else:
            raise RemoteRefused("the other end says what is no frame of this protocol")


def _broken() -> Broken:
    return Broken("the connection broke off")
