"""Transfers versions between two repositories, for ``mvc fetch`` and ``mvc push``.

A transfer consists of *slices*. A slice has entries of the journal, and stored data of versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import DamagedData, HistoryMissing
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.remote.remotes import Remote
from mvc.remote.slices import Sent, encode_entries
from mvc.remote.transport import Move, Place, Received, Slice, Wanted
from mvc.types import Bytes, Progress

Change = Literal["new", "forward", "forced", "deleted", "kept"]

NOTHING = encode_entries(())
"""The encoded entries of a slice without entries."""
_TRIES = 4


class RefUpdate(Struct, frozen=True):
    """A changed ref. ``name``: the full name at the remote. ``local``: the full name here.

    ``change`` is ``kept`` if a local tag ``name`` differs from the remote's tag. The local tag then
    does not change. The remote's tag is stored as ``local``.
    """

    name: str
    local: str
    old: CommitId | None
    new: CommitId | None
    change: Change


class Transferred(Struct, frozen=True):
    """The result of a transfer, or of a dry run. ``operations``: the number of entries.

    ``targets``: targets with new deployments or retractions. ``held``: versions that the sender
    purged, and that the receiver retains because the receiver needs them. ``forgotten``: versions
    that a fetch purged here. ``kept``: versions that a fetch did not purge, because the remote has
    ``tombstones=false``.
    """

    remote: str
    updates: tuple[RefUpdate, ...]
    versions: int = 0
    operations: int = 0
    bytes: int = 0
    targets: tuple[str, ...] = ()
    held: tuple[CommitId, ...] = ()
    forgotten: tuple[CommitId, ...] = ()
    kept: tuple[CommitId, ...] = ()

    @property
    def is_news(self) -> bool:
        return bool(self.updates or self.operations)

    @property
    def is_short(self) -> bool:
        """Whether something was not transferred."""
        return False


class Tally:
    """Counts what a transfer sends. ``place``: the position reached in the sender's journal."""

    def __init__(self, remote: Remote, progress: Progress | None) -> None:
        self.remote = remote.name or remote.url
        self.bytes = self.operations = 0
        self.versions: set[CommitId] = set()
        self.targets: set[str] = set()
        self.retained: dict[CommitId, None] = {}
        self.place: Place | None = None
        self._progress = progress

    def entries(self, head: bytes, entries: Collection[Sent], versions: set[CommitId]) -> None:
        """Counts the entries of a slice. ``versions``: the new versions in these entries."""
        self.bytes += len(head) if entries else 0
        self.operations += len(entries)
        self.versions |= versions
        for sent in entries:
            self.targets |= sent.targets

    def records(self, parts: Iterable[Bytes]) -> Iterator[Bytes]:
        for part in parts:
            yield part
            self.bytes += len(part)
            if self._progress is not None:
                self._progress(self.bytes, 0, self.remote)

    def total(self, updates: Iterable[RefUpdate] = ()) -> Transferred:
        return Transferred(
            self.remote, tuple(updates), len(self.versions), self.operations, bytes=self.bytes,
            targets=tuple(sorted(self.targets)), held=tuple(self.retained),
        )  # fmt: skip


def versions_in(entries: Iterable[Sent]) -> set[CommitId]:
    """The versions that entries contain."""
    return {Commit.decode(data).id for sent in entries for data in sent.commits}


Send = Callable[[Wanted], Generator[Slice]]
Receive = Callable[[Slice], Received]


def transfer(
    send: Send, receive: Receive, wanted: Wanted, moves: tuple[Move, ...], *, tally: Tally
) -> None:
    """Sends the wanted entries, then the data that the receiver reports as missing.

    ``moves``: changes of refs, which are sent with the last slice. Raises DamagedData if the
    receiver reports the same data as missing again, or lacks data after four attempts.
    """
    for _ in range(_TRIES):
        following = _attempt(send, receive, wanted, moves)
        if following is None:
            return
        if following == wanted:
            break
        wanted = replace(following, have=following.have | tally.versions)
    raise DamagedData(
        f"neither {tally.remote} nor this repository has all data that the versions need",
        hint="'mvc fsck' here and 'mvc fsck --remote NAME' list lost data",
    )


def _attempt(
    send: Send, receive: Receive, wanted: Wanted, moves: tuple[Move, ...]
) -> Wanted | None:
    """Makes one attempt. Returns what to send in the next attempt; None if nothing is missing."""
    after = wanted.after
    with closing(send(wanted)) as slices:
        for slice_ in slices:
            is_last = slice_.place is not None and not slice_.place.seen
            try:
                got = receive(replace(slice_, moves=moves if is_last else ()))
            except HistoryMissing:  # the receiver lacks versions that the request names
                if wanted.after is None and not wanted.have:
                    raise
                have = frozenset() if wanted.after is None else wanted.have
                return replace(wanted, after=None, have=have)
            if got.missing:
                objects = tuple(dict.fromkeys([*wanted.objects, *got.missing]))
                if objects == wanted.objects:
                    return wanted
                without = wanted.without | got.without
                return replace(wanted, after=after, objects=objects, without=without)
            after = slice_.place or after
            moves = () if is_last else moves
    if moves:
        receive(Slice(NOTHING, 0, (), moves))
    return None
