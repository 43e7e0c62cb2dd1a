"""The encoding of messages and errors between a client and the server of a remote.

If an answer may take long, its body is a sequence of *frames*. A frame has a kind, the length of
its payload, and the payload. An empty data frame means that the server is still working. The module
`slices` encodes the versions that a push or fetch transfers.
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
"""Content type of every body."""
PART = 32 * MIB
"""Limit of bytes of a slice in one request."""
MAX_MESSAGE = 16 * MIB
"""Limit of bytes of a head, a request, and the answer to a slice."""
MAX_PROBLEM = 64 << 10
MAX_MARK = 256
"""Limit of bytes of a mark, a text that changes if another version is live on a target."""
CHECKED = 64 << 10
"""Number of bytes at the start of an answer. If a client requests the rest of an interrupted
answer, the server checks that these bytes have not changed.
"""
WAIT = 60.0
"""Limit of seconds for which a server waits for a change of the live version."""
ALIVE = 15.0
"""Seconds after which a busy server sends an empty data frame."""

DATA, ANSWER, ERROR, END = b"d", b"a", b"e", b"z"
_FRAME = struct.Struct(">cI")
_LONGEST_TEXT = 4000
_M = TypeVar("_M")


class Broken(ConnectionError):
    """A connection that ended too early."""


class _Head(RemoteHead, frozen=True, array_like=True):
    """A RemoteHead as it is sent.

    Each value of ``refs`` is (id of a version, None) or (None, name of another ref).
    """

    refs: dict[str, tuple[CommitId | None, str | None]]  # type: ignore[assignment]


class _SentError(Struct, array_like=True):
    kind: str
    message: str
    hint: str | None = None


def encode(message: RemoteHead | Wanted | Received) -> bytes:
    """The bytes of a message."""
    if isinstance(message, RemoteHead):
        refs = {n: (None, v) if isinstance(v, str) else (v, None) for n, v in message.refs.items()}
        return slices.encode(_Head(**asdict(message) | {"refs": refs}))
    return slices.encode(message)


def decode(kind: type[_M], data: bytes) -> _M:
    """Decodes a message of type ``kind``. Raises RemoteRefused if ``data`` is invalid."""
    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=slices.decode_id)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RemoteRefused(
            "the other side sent a message that this mvc cannot decode",
            hint="use the same version of mvc on both sides",
        ) from error


def decode_head(data: bytes) -> RemoteHead:
    """Decodes a head. Raises RemoteRefused."""
    head = decode(_Head, data)
    refs = {n: name if id_ is None else id_ for n, (id_, name) in head.refs.items()}
    return RemoteHead(**asdict(head) | {"refs": refs})


def decode_mark(data: bytes) -> str:
    """Decodes a mark (``MAX_MARK``). Raises RemoteRefused."""
    if not data or not data.isascii() or not data.decode().isprintable():
        raise RemoteRefused("the other side sent an invalid mark of the live version")
    return data.decode()


def encode_error(error: MvcError) -> bytes:
    """The bytes of an error."""
    hint = None if error.hint is None else error.hint[:_LONGEST_TEXT]
    return slices.encode(_SentError(error.kind, error.message[:_LONGEST_TEXT], hint))


def decode_error(data: bytes) -> MvcError:
    """Decodes an error. Returns a RemoteRefused if the class of the error is unknown."""
    sent = decode(_SentError, data)
    kind = class_named(sent.kind) or RemoteRefused
    hint = None if sent.hint is None else printable(sent.hint[:_LONGEST_TEXT])
    return kind(f"remote: {printable(sent.message[:_LONGEST_TEXT])}", hint=hint)


def frame(kind: bytes, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """The bytes of a frame."""
    return b"".join((_FRAME.pack(kind, len(payload)), payload))


def read_frames(read: Callable[[int], bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the kind and the payload of each frame up to the end frame.

    A data frame is yielded in parts. An empty data frame yields nothing. ``read(n)`` returns at
    most n bytes, and ``b""`` at the end of the stream. Raises Broken if the stream ends too early.
    If a frame contains an error, raises this error.
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
            raise RemoteRefused("the other side sent an invalid frame")


def _broken() -> Broken:
    return Broken("the connection ended too early")
