"""The committed end of a pack: where the last record ends that a journal entry names.

This end is known from the index and from the journal. The index is fast, but it is derived from the
journal, and may be outdated, damaged, or the index of another repository. So the index is used only
to choose where to append, because appending at a file's end destroys nothing. Before bytes are
truncated or a pack is deleted, the whole journal is read.
"""

from __future__ import annotations

from mvc.store.index import keys
from mvc.store.snapshot import Snapshot


class PackEnds:
    """Committed ends of the packs of one snapshot, in bytes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def claimed(self, pack: int) -> int | None:
        """The committed end according to the index. None for a pack that must not be written to.

        A pack that no entry names is new if its number is higher than those of all named packs. Its
        end is then 0. Otherwise, gc or repack has emptied the pack. The result is None, because
        other processes may still read its old bytes.
        """
        self._snapshot.refresh()
        newest = self._snapshot.newest(keys.PACK + pack.to_bytes(4, "big"))
        if newest is None:
            return 0 if pack > self.newest() else None
        return max(r.end for r in newest.entry.regions if r.pack == pack) or None

    def proven(self, pack: int) -> int | None:
        """The committed end according to the whole journal. An index that differs is replaced.

        Call it under the pack's lock, which every writer has until its journal entry is written.
        """
        ends = self.all_proven()
        end = (ends[pack] or None) if pack in ends else (0 if pack > max(ends, default=0) else None)
        if end != self.claimed(pack):
            self._snapshot.renew_index()
        return end

    def all_proven(self) -> dict[int, int]:
        """The committed end of every pack in the journal; 0 for an emptied pack.

        Raises DamagedData if entries are lost, because lost entries may name bytes of any pack.
        """
        self._snapshot.refresh()
        self._snapshot.check_whole()
        ends: dict[int, int] = {}
        for recorded in self._snapshot.entries():
            for region in recorded.entry.regions:
                ends[region.pack] = max(ends.get(region.pack, 0), region.end)
        return ends

    def newest(self) -> int:
        """The highest pack number that an entry has named, according to the index."""
        key = self._snapshot.last_under(keys.PACK)
        return 0 if key is None else int.from_bytes(key[1:5], "big")
