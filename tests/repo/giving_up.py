"""What is left of versions that were given up, and what is gone for good."""

from __future__ import annotations

from pathlib import Path

from mvc.errors import DamagedData
from mvc.maintenance.inventory import inventory
from mvc.store.index import keys
from mvc.store.packs.records import BASE_BYTES
from mvc.testing import History


class Kept(History):
    """A history by the names that these tests know it by."""

    state = History.commit
    file = History.commit_files

    @property
    def context(self):
        return self.repo.context

    def check(self, scratch: Path | None = None) -> None:
        super().check()


def traces(context, ids: set[bytes], *, files: bool = True) -> list[str]:
    """What is left of objects: records, edges, keys, ways to them; ids in ``files`` of packs."""
    found = inventory(context.store.snapshot)
    left = [f"stored {i.hex()[:10]}" for i in ids & found.codings.keys()]
    heads = {i[:BASE_BYTES] for i in ids}
    for records in found.records:
        for record in records:
            for member in record.header.members:
                if member.id in ids:
                    left.append(f"named in pack {record.pack} at {record.offset}")
                if member.base in heads:
                    left.append(f"a base in pack {record.pack} at {record.offset}")
    for id_ in ids:
        if context.store.snapshot.under(keys.BLOB + id_[: keys.ID_BYTES]):
            left.append(f"in the index {id_.hex()[:10]}")
        try:
            context.store.graph.path(id_)
        except DamagedData:
            continue
        left.append(f"a way leads to {id_.hex()[:10]}")
    for pack in (context.store.folder / "packs").iterdir() if files else ():
        data = pack.read_bytes()
        left += [f"{pack.name} has {i.hex()[:10]}" for i in ids if i in data]
    return left
