"""What fetches and pushes have in common: refs that moved, what went, and trying until all did."""

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
"""The head of a slice without entries."""
_TRIES = 4


class RefUpdate(Struct, frozen=True):
    """What became of a ref, by its full name there and here.

    ``kept``: the tag that is here stays, and the other one goes by the name ``local``.
    """

    name: str
    local: str
    old: CommitId | None
    new: CommitId | None
    change: Change


class Transferred(Struct, frozen=True):
    """``versions`` and ``operations`` that came or went, or would, and their ``bytes``.

    ``targets``: where these deploy or retract, so that what is live there may be another version.
    Of versions that were forgotten by name at the sender, ``held`` are kept at the receiver for
    now, because something stands on them. A fetch also names those that are ``forgotten`` here from
    now on, and those that are ``kept``, because ``tombstones`` of the remote is false.
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
        """Whether something was left out."""
        return False


class Tally:
    """Counts what passes between two repositories. ``place``: up to where the sender was read."""

    def __init__(self, remote: Remote, progress: Progress | None) -> None:
        self.remote = remote.name or remote.url
        self.bytes = self.operations = 0
        self.versions: set[CommitId] = set()
        self.targets: set[str] = set()
        self.held: dict[CommitId, None] = {}
        self.place: Place | None = None
        self._progress = progress

    def entries(self, head: bytes, entries: Collection[Sent], versions: set[CommitId]) -> None:
        """Counts the entries of a slice, and which of their versions are new."""
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
            targets=tuple(sorted(self.targets)), held=tuple(self.held),
        )  # fmt: skip


def versions_in(entries: Iterable[Sent]) -> set[CommitId]:
    """The versions that entries bring."""
    return {Commit.decode(data).id for sent in entries for data in sent.commits}


Send = Callable[[Wanted], Generator[Slice]]
Give = Callable[[Slice], Received]


def carry(send: Send, give: Give, wanted: Wanted, moves: tuple[Move, ...], *, tally: Tally) -> None:
    """Gives all that is wanted, and what the receiver misses then; refs move with the last slice.

    Raises DamagedData where it misses what it was given.
    """
    for _ in range(_TRIES):
        following = _carried(send, give, wanted, moves)
        if following is None:
            return
        if following == wanted:
            break
        wanted = replace(following, have=following.have | tally.versions)
    raise DamagedData(
        f"{tally.remote} and this repository do not have together what the versions build on",
        hint="'mvc fsck' here and 'mvc fsck --remote NAME' say what is lost",
    )


def _carried(send: Send, give: Give, wanted: Wanted, moves: tuple[Move, ...]) -> Wanted | None:
    """What to want next; None if all is there."""
    after = wanted.after
    with closing(send(wanted)) as slices:
        for each in slices:
            is_last = each.place is not None and not each.place.seen
            try:
                got = give(replace(each, moves=moves if is_last else ()))
            except HistoryMissing:  # less is there than was believed
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
            after = each.place or after
            moves = () if is_last else moves
    if moves:
        give(Slice(NOTHING, 0, (), moves))
    return None
