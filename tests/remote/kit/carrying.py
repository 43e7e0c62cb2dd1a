"""One repository's versions taken into another one as bytes of the wire, without a remote."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from mvc.api.repository import Repository
from mvc.remote import slices
from mvc.remote.door import Move, Place, Received, Slice, Wanted
from mvc.remote.receiver import by_name, receive
from mvc.remote.sender import head_refs, send
from mvc.remote.slices import encode_entries

__all__ = ["Carried", "carry", "over_the_wire", "tracked"]


class Carried(Struct):
    """What a transfer took: bytes on the wire, slices, tries, and up to where."""

    wire: int = 0
    slices: int = 0
    tries: int = 0
    place: Place | None = None
    last: Received | None = None


def over_the_wire(given: Iterable[Slice], took: Carried) -> Iterator[Slice]:
    """The slices as they are read again from their bytes."""
    for one in given:
        data = b"".join(bytes(part) for part in slices.write(one))
        took.wire += len(data)
        took.slices += 1
        read = slices.read(io.BytesIO(data).read)
        assert read is not None
        yield read


def tracked(source: Repository, target: Repository) -> tuple[Move, ...]:
    """The moves of ``remotes/origin/*`` that a fetch makes of a sender's refs."""
    moves = []
    for full, new in head_refs(source.context.fresh()).items():
        name = "remotes/origin/" + full.removeprefix("heads/").removeprefix("tags/")
        old = target.context.store.ref(name)
        if old != new:
            assert not isinstance(old, str)
            moves.append(Move(name, old, new))
    return tuple(moves)


def carry(source: Repository, target: Repository, wanted: Wanted = Wanted()) -> Carried:  # noqa: B008
    """Fetches from ``source`` into ``target`` until nothing is missing; then refs move."""
    took, without = Carried(place=wanted.after), by_name(target.context.fresh())
    wanted = replace(wanted, without=wanted.without | without)
    for _ in range(4):
        took.tries += 1
        missing = _once(source, target, wanted, took)
        if not missing:
            return took
        assert took.last is not None
        wanted = replace(
            wanted,
            after=took.place,
            objects=missing,
            without=wanted.without | took.last.without,
        )
    raise AssertionError(f"still missing: {took.last}")


def _once(
    source: Repository, target: Repository, wanted: Wanted, took: Carried
) -> tuple[bytes, ...]:
    for given in over_the_wire(send(source.context, wanted), took):
        took.last = receive(target.context, given, local=True)
        if took.last.missing:
            return took.last.missing
        took.place = given.place or took.place
    moves = tracked(source, target)
    took.last = receive(target.context, Slice(encode_entries(()), 0, (), moves), local=True)
    return ()
