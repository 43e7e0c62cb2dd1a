"""Finds the committed end of a pack. A pack is a file of records (encoded tensors).

Journal entries name the records that belong to the repository. The committed end of a pack is the
end of its last named record. Bytes after this end belong to running or interrupted operations. The
index answers fast, but may be outdated or damaged. So mvc uses the index only to choose where to
append, which destroys nothing. Before mvc truncates or deletes a pack, it reads the whole journal.
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

        If no entry names the pack, the pack is new, or gc or repack has emptied it. A new pack has
        a higher number than all named packs, and the result is 0. For an emptied pack the result is
        None, because other processes may still read the old bytes of the pack.
        """
        self._snapshot.refresh()
        newest = self._snapshot.newest(keys.PACK + pack.to_bytes(4, "big"))
        if newest is None:
            return 0 if pack > self.newest() else None
        return max(r.end for r in newest.entry.regions if r.pack == pack) or None

    def proven(self, pack: int) -> int | None:
        """The committed end according to the whole journal. If the index differs, renews the index.

        The caller must lock the pack. A writer locks the pack until its journal entry is written.
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
        """The highest number of a pack that an entry names, according to the index."""
        key = self._snapshot.last_under(keys.PACK)
        return 0 if key is None else int.from_bytes(key[1:5], "big")
