"""States that drift, and what is left of objects that are to be gone."""

from __future__ import annotations

import numpy as np

from mvc.errors import DamagedData
from mvc.maintenance.graph import read_records
from mvc.store.index import keys
from mvc.store.packs.records import BASE_BYTES
from tests.histories import CheckedHistory


def drift(weights: np.ndarray, seed: int, step: float = 1e-3) -> np.ndarray:
    """The weights with noise of size ``step`` added, the same for the same seed."""
    noise = np.random.default_rng(seed).standard_normal(weights.shape)
    return (weights + noise * step).astype(np.float32)


def traces(history: CheckedHistory, ids: set[bytes], *, files: bool = True) -> list[str]:
    """What is left of objects: records, edges, keys, ways to them; ids in ``files`` of packs."""
    store = history.repo.handle.store
    found = read_records(store.snapshot)
    left = [f"stored {i.hex()[:10]}" for i in ids if found.rows_of(i)]
    heads = {i[:BASE_BYTES] for i in ids}
    for record, _, member in found.all_members():
        if member.id in ids:
            left.append(f"named in pack {record.pack} at {record.offset}")
        if member.base in heads:
            left.append(f"a base in pack {record.pack} at {record.offset}")
    for id_ in ids:
        if store.snapshot.under(keys.BLOB + id_[: keys.ID_BYTES]):
            left.append(f"in the index {id_.hex()[:10]}")
        try:
            store.graph.path(id_)
        except DamagedData:
            continue
        left.append(f"a way leads to {id_.hex()[:10]}")
    for pack in (store.folder / "packs").iterdir() if files else ():
        data = pack.read_bytes()
        left += [f"{pack.name} has {i.hex()[:10]}" for i in ids if i in data]
    return left
