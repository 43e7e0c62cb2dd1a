from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from mvc.errors import MvcError, RemoteRefused, UnknownRevision
from mvc.ids import CommitId
from mvc.remote import wire
from mvc.remote.door import Head, Place, Received, Wanted
from mvc.remote.wire import Broken

ID = CommitId(bytes(range(32)))


def test_messages_come_back_as_they_were() -> None:
    refs = {"heads/main": ID, "HEAD": "heads/main", "heads/new": None}
    head = Head(b"i" * 16, Place(3, b"c" * 16), frozenset({"entry-5"}), refs, 7, scopes=("read",))
    assert wire.decode_head(wire.encode_head(head)) == head
    wanted = Wanted(Place(1, b"a" * 16), (ID,), frozenset({ID}), 3, objects=(b"o" * 32,))
    assert wire.decode_wanted(wire.encode_wanted(wanted)) == wanted
    assert wire.decode_wanted(wire.encode_wanted(Wanted(states="none"))).states == "none"
    received = Received(Place(2, b"b" * 16), (b"o" * 32,), ("heads/main",))
    assert wire.decode_received(wire.encode_received(received)) == received


@pytest.mark.parametrize("decode", [wire.decode_head, wire.decode_wanted, wire.decode_received])
def test_what_is_no_message_is_refused(decode: Callable[[bytes], object]) -> None:
    good = wire.encode_wanted(Wanted(versions=(ID,)))
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
