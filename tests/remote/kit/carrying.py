"""One repository's versions taken into another one as bytes of the wire, without a remote."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from mvc.api.repository import Repository
from mvc.remote import slices
from mvc.remote.receiving.receiver import receive
from mvc.remote.sending.sender import send
from mvc.remote.slices import SLICE, encode_entries
from mvc.remote.statements import purged_versions
from mvc.remote.transport import Move, Place, Received, Slice, Wanted
from mvc.repo.lookup.refs import head_refs

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
    for full, new in head_refs(source.handle.store.fresh()).items():
        name = "remotes/origin/" + full.removeprefix("heads/").removeprefix("tags/")
        old = target.handle.store.snapshot.ref(name)
        if old != new:
            assert not isinstance(old, str)
            moves.append(Move(name, old, new))
    return tuple(moves)


def carry(
    source: Repository,
    target: Repository,
    wanted: Wanted = Wanted(),  # noqa: B008
    *,
    most: int = SLICE,
    between: Callable[[int], None] = lambda _: None,
    took: Carried | None = None,
) -> Carried:
    """Fetches from ``source`` into ``target`` until nothing is missing; then refs move.

    ``between`` is called with the number of slices after each one.
    """
    took, without = took or Carried(), purged_versions(target.handle.store.fresh())
    took.place = wanted.after
    wanted = replace(wanted, without=wanted.without | without)
    for _ in range(12):
        took.tries += 1
        missing: tuple[bytes, ...] = ()
        for given in over_the_wire(
            send(source.handle.store, source.handle.config, wanted, most=most), took
        ):
            took.last = receive(target.handle.store, target.handle.config, given, local=True)
            missing = took.last.missing
            if missing:
                break
            took.place = given.place or took.place
            between(took.slices)
        if not missing:
            moves = tracked(source, target)
            took.last = receive(
                target.handle.store,
                target.handle.config,
                Slice(encode_entries(()), 0, (), moves),
                local=True,
            )
            return took
        assert took.last is not None
        without = wanted.without | took.last.without
        objects = (*wanted.objects, *missing)
        wanted = replace(wanted, after=took.place, objects=objects, without=without)
    raise AssertionError(f"still missing: {took.last}")
