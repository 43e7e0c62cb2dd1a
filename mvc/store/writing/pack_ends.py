"""Committed ends of packs: as the index claims, and as the journal proves.

Code that deletes, truncates or overwrites bytes never relies on the index, which is derived and may
be stale, foreign or damaged. The index may choose where to append, because appending at a file's
end destroys nothing. Before bytes are truncated or a pack is deleted, the whole journal is read.
"""

from __future__ import annotations

from mvc.store.index import keys
from mvc.store.snapshot import Snapshot


class PackEnds:
    """Committed ends of the packs of one snapshot, in bytes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def claimed(self, pack: int) -> int | None:
        """The end by the index; None for a pack that must not be written to.

        A pack that no entry names is new (0) if its number is above all numbers ever named.
        Otherwise maintenance has emptied it, and other processes may still read its old bytes.
        """
        self._snapshot.refresh()
        newest = self._snapshot.newest(keys.PACK + pack.to_bytes(4, "big"))
        if newest is None:
            return 0 if pack > self.newest() else None
        return max(r.end for r in newest.entry.regions if r.pack == pack) or None

    def proven(self, pack: int) -> int | None:
        """As ``claimed``, from the whole journal; an index that differs is replaced.

        The caller holds the pack's lock, as every writer does until its entry is written.
        """
        ends = self.all_proven()
        end = (ends[pack] or None) if pack in ends else (0 if pack > max(ends, default=0) else None)
        if end != self.claimed(pack):
            self._snapshot.renew_index()
        return end

    def all_proven(self) -> dict[int, int]:
        """The committed end of every pack in the journal; 0 for an emptied one.

        DamagedData if entries are lost: they may have named bytes of any pack.
        """
        self._snapshot.refresh()
        self._snapshot.check_whole()
        ends: dict[int, int] = {}
        for recorded in self._snapshot.entries():
            for region in recorded.entry.regions:
                ends[region.pack] = max(ends.get(region.pack, 0), region.end)
        return ends

    def newest(self) -> int:
        """The highest pack number that an entry has named, by the index."""
        key = self._snapshot.last_under(keys.PACK)
        return 0 if key is None else int.from_bytes(key[1:5], "big")
