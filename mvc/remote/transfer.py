"""What fetches and pushes have in common: refs that moved, what went, and trying until all did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.remote.remotes import Remote
from mvc.remote.slices import Sent, encode_entries
from mvc.remote.transport import Received, Wanted
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
    """Counts what passes between two repositories."""

    def __init__(self, remote: Remote, progress: Progress | None) -> None:
        self.remote = remote.name or remote.url
        self.bytes = self.operations = 0
        self.versions: set[CommitId] = set()
        self.targets: set[str] = set()
        self.held: dict[CommitId, None] = {}
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


def until_complete(
    wanted: Wanted, attempt: Callable[[Wanted], Wanted | None], failed: DamagedData
) -> None:
    """Tries until an attempt returns None, each time with what the one before returned.

    Raises ``failed`` where an attempt asks for nothing else, or after too many.
    """
    for _ in range(_TRIES):
        following = attempt(wanted)
        if following is None:
            return
        if following == wanted:
            break
        wanted = following
    raise failed


def with_missing(wanted: Wanted, got: Received, then: Wanted) -> Wanted:
    """As ``then``, and what the receiver misses; ``wanted`` itself if it was sent all of that."""
    if set(got.missing) <= set(wanted.objects):
        return wanted
    objects = tuple(dict.fromkeys([*wanted.objects, *got.missing]))
    return replace(then, objects=objects, without=wanted.without | got.without)
