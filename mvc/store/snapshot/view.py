"""A view: what the repository holds at one moment, index and journal tail together.

The index covers the journal up to some entry; the entries behind it are kept as
sorted keys in memory. Every question is one ordered look-up over both. ``refresh``
moves the view to the journal's present end. A damaged index is remade from the
journal, or done without where the folder cannot be written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import merge
from typing import TypeVar

from mvc.errors import DamagedData
from mvc.store.index import keys
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot.journal_reader import INDEX, JOURNAL, PACKS, Placed
from mvc.store.snapshot.refresh import Following

__all__ = ["INDEX", "JOURNAL", "PACKS", "Placed", "View"]

_T = TypeVar("_T")
_TRIES = 8
_WINDOW = 1 << 20


class View(Following):
    """Reads a repository's folder. Safe across threads; one per process."""

    def last(self, low: bytes, high: bytes) -> bytes | None:
        """The greatest key with low <= key < high."""

        def look() -> bytes | None:
            self._read_tail(low)
            found = [key for run in self._runs if (key := run.last(low, high)) is not None]
            at = bisect_left(self._tail, high) - 1
            if at >= 0 and self._tail[at] >= low:
                found.append(self._tail[at])
            greatest = max(found, default=None)
            self._check_last(low, high, greatest)
            return greatest

        return self._guarded(look)

    def scan(self, low: bytes, high: bytes) -> list[bytes]:
        """Keys with low <= key < high, ascending."""

        def look() -> list[bytes]:
            self._read_tail(low)
            tail = self._tail[bisect_left(self._tail, low) : bisect_left(self._tail, high)]
            merged = merge(tail, *(run.scan(low, high) for run in self._runs))
            found = dict.fromkeys(merged)
            self._check_own(low, high, found)
            return list(found)

        return self._guarded(look)

    def under(self, prefix: bytes) -> list[bytes]:
        return self.scan(prefix, keys.after(prefix))

    def newest(self, prefix: bytes) -> Recorded | None:
        """The newest entry with a key under ``prefix`` (prefixes whose next part is the offset).

        DamagedData where a lost entry may be a newer one.
        """

        def look() -> Recorded | None:
            key = self.last(prefix, keys.after(prefix))
            if key is None:
                return None
            self.check_gaps(keys.offset_of(key), _shown(prefix))
            return self.entry(keys.offset_of(key))

        return self.steady(look)

    def by_sequence(self, sequence: int) -> Recorded | None:
        """The entry with this number, if there is one; DamagedData if it is lost."""
        prefix = keys.OPERATION + keys.number(sequence)

        def look() -> Recorded | None:
            key = self.last(prefix, keys.after(prefix))
            if key is not None:
                return self.entry(keys.offset_of(key))
            for gap in self.gaps:
                if sequence in gap.numbers:
                    self.check_gaps(gap.start.offset - 1, f"what operation {sequence} did")
            return None

        return self.steady(look)

    def check_whole(self) -> None:
        """As of ``Known``; also where the entry that says what HEAD is cannot be read."""
        super().check_whole()
        head = self.newest(keys.REF + keys.text("HEAD"))
        for change in head.entry.refs if head is not None else ():
            if change.name == "HEAD" and isinstance(change.new, str):
                self.newest(keys.REF + keys.text(f"heads/{change.new}"))

    def forgotten(self, commit: bytes) -> Recorded | None:
        """The entry that forgot a commit's state, if one did."""

        def look() -> Recorded | None:
            for key in reversed(self.under(keys.FORGOTTEN + commit[:8])):
                recorded = self.entry(keys.offset_of(key))
                if any(each.commit == commit for each in recorded.entry.forgotten):
                    return recorded
            return None

        return self.steady(look)

    def mentions(self, text: bytes, start: int) -> bool:
        """Whether the journal from byte ``start`` up to where it is indexed has these bytes.

        Nothing is parsed: no means no, yes means that an entry there may say so.
        """
        with self._lock:
            at, end = start, self._meta.position.offset
            while at < end:
                data = self._journal.read(at, min(_WINDOW, end - at))
                if text in data:
                    return True
                if len(data) <= len(text):
                    return False
                at += len(data) - len(text) + 1
        return False

    def _guarded(self, look: Callable[[], _T]) -> _T:
        """Runs a look-up; again where other processes have moved the index, or it is renewed."""
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return look()
                except DamagedData:
                    if not self._uses_newer():
                        break
            self._renew(self._lent)
            self.refresh()
            return look()


def _shown(prefix: bytes) -> str:
    """What a look-up under ``prefix`` is about, for a message."""
    if prefix[:1] in {keys.REF, keys.TARGET, keys.RETRACTED}:
        name = prefix[1:].partition(b"\0")[0].decode("utf-8", "replace")
        if prefix[:1] == keys.REF:
            return f"where {name.removeprefix('heads/').removeprefix('tags/')} points to"
        return f"what was recorded on {name}"
    return "what the journal says last"
