"""What an entry says beside its versions, as it travels, and how a receiver takes it over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from mvc.ids import CommitId
from mvc.repo.context import Context
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot


class Truths(Struct, frozen=True, array_like=True):
    """What one entry says beside its versions."""

    time_ns: int


class TruthReader:
    """Says what entries say, as it travels."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def of(self, recorded: Recorded, among: Collection[CommitId] | None = None) -> Truths | None:
        """Of an entry, what it says of versions ``among`` these; None if nothing."""
        del recorded, among

    def about(self, ids: Collection[CommitId]) -> list[int]:
        """Offsets of the entries that say something of these versions."""
        del ids
        return []

    def tombstones(self) -> Iterator[Truths]:
        """What was ever forgotten by name."""
        return iter(())


class Merged(Struct, frozen=True):
    """What of an entry's truths is new here."""

    @property
    def is_news(self) -> bool:
        """Whether an entry has to say it."""
        return False

    def into(self, entry: Entry) -> Entry:
        """The entry with these fields."""
        return entry


class Merger:
    """Takes truths over into a repository."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def prepare(self, truths: Iterable[Truths]) -> None:
        """Stamps what is here, if deployments are to come."""

    def merge(self, truths: Truths, own: Collection[CommitId] = ()) -> Merged:
        """What is new here; call it under the journal's lock, after ``prepare``."""
        del truths, own
        return Merged()
