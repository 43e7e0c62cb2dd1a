from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial

import pytest
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields

from mvc.errors import MvcError, RemoteRefused, UnknownRevision
from mvc.ids import CommitId, StatementId
from mvc.remote import wire
from mvc.remote.transport import Place, Received, RefusedDeployment, RemoteHead, Wanted
from mvc.remote.wire import Broken

ID = CommitId(bytes(range(32)))


PLACE = Place(3, b"c" * 16, 9)
MESSAGES = {
    RemoteHead: {
        "identity": b"i" * 16, "place": PLACE,
        "refs": {"heads/main": ID, "HEAD": "heads/main", "heads/new": None}, "time_ns": 7,
        "bare": True, "scopes": ("read",), "unnamed": (ID,), "protected": ("prod*",),
    },
    Wanted: {
        "after": PLACE, "versions": (ID,), "have": frozenset({ID}), "states": 3,
        "objects": (b"o" * 32, b"o" * 8), "restore": (ID,), "without": frozenset({ID}),
        "paths": ("policy", "m.st"),
    },
    Received: {
        "place": PLACE, "missing": (b"o" * 32,),
        "without": frozenset({ID}), "retained": (ID,),
        "refused": (
            RefusedDeployment("prod", StatementId(b"d" * 32), live=ID, author="ada", time_ns=7),
        ),
    },
}  # fmt: skip


DECODE = {
    RemoteHead: wire.decode_head,
    Wanted: partial(wire.decode, Wanted),
    Received: partial(wire.decode, Received),
}
_SOME = {
    int: 5,
    bool: True,
    str: "text",
    bytes: b"i" * 32,
    tuple: (ID,),
    frozenset: frozenset({ID}),
}


def _default(field: FieldInfo) -> object:
    return field.default if field.default is not NODEFAULT else field.default_factory()


def test_messages_come_back_as_they_were() -> None:
    for kind, values in MESSAGES.items():
        later = {f.name: _SOME[type(_default(f))] for f in fields(kind) if f.name not in values}
        message = kind(**values, **later)
        back = DECODE[kind](wire.encode(message))
        assert back == message
        assert type(back) is kind
    assert wire.decode(Wanted, wire.encode(Wanted(states="none"))).states == "none"


@pytest.mark.parametrize("decode", DECODE.values())
def test_what_is_no_message_is_refused(decode: Callable[[bytes], object]) -> None:
    good = wire.encode(Wanted(versions=(ID,)))
    shorter = good.replace(b"\xc4\x20" + ID, b"\xc4\x1f" + ID[:31])
    for data in (b"", b"\xc1", b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", shorter):
        with pytest.raises(RemoteRefused):
            decode(data)


def test_an_error_of_an_unknown_kind_is_a_refusal() -> None:
    class NewKind(MvcError):
        pass

    assert type(wire.decode_error(wire.encode_error(NewKind("what")))) is RemoteRefused
    known = wire.decode_error(wire.encode_error(UnknownRevision("no x", hint="y")))
    assert (type(known), known.message, known.hint) == (UnknownRevision, "remote: no x", "y")


def frames(data: bytes) -> list[tuple[bytes, bytes]]:
    return list(wire.read_frames(io.BytesIO(data).read))


def test_frames_leave_out_what_says_at_work() -> None:
    data = [wire.frame(wire.DATA, b"one"), wire.frame(wire.DATA), wire.frame(wire.DATA, b"two")]
    assert frames(b"".join(data) + wire.frame(wire.END)) == [
        (wire.DATA, b"one"),
        (wire.DATA, b"two"),
    ]


def test_an_end_that_is_missing_is_a_broken_connection() -> None:
    data = wire.frame(wire.DATA, b"one") + wire.frame(wire.ANSWER, b"two")
    for size in range(len(data) + 1):
        with pytest.raises(Broken):
            frames(data[:size])


def test_what_is_no_frame_is_refused() -> None:
    for data in (b"xxxxx", wire.frame(b"q", b"1"), b"a\xff\xff\xff\xff"):
        with pytest.raises(RemoteRefused):
            frames(data)
    with pytest.raises(UnknownRevision):
        frames(wire.frame(wire.ERROR, wire.encode_error(UnknownRevision("x"))))
