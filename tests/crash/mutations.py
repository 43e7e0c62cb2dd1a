"""Protections of packs and index, taken away one by one in the process that calls these.

Each brings back what once lost acknowledged versions; the suites must notice it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mvc.io.files import FileSystem
from mvc.store import index, index_folder
from mvc.store.index import Index, Meta
from mvc.store.pack_ends import PackEnds
from mvc.store.runs import RunReader

__all__ = ["lock_kept", "runs_by_number", "truncation_trusts_the_index"]


def truncation_trusts_the_index() -> None:
    """Where a pack's committed bytes end is taken from the index, and the rest is cut off."""
    PackEnds.proven = PackEnds.claimed  # type: ignore[method-assign]


def lock_kept() -> None:
    """A rebuilt index takes the place of the old one in its folder, beside the old lock."""

    def make(fs: FileSystem, folder: Path) -> Path:
        environment = index_folder.current(fs, folder) or folder / ("0" * 16)
        fs.make_dir(environment, parents=True, exist_ok=True)
        fs.unlink(environment / index_folder.DATA, missing_ok=True)
        return environment

    index_folder.make = make


_NUMBERS = b"numbers"


def runs_by_number() -> None:
    """A run is known by a number that is counted up in LMDB, as what reads it is in memory."""
    extend, original = Index._extend, Index.readers

    def _extend(self: Index, *arguments: Any) -> Meta:
        made = extend(self, *arguments)
        with self._env.begin(write=True) as txn:
            after, numbers = json.loads(txn.get(_NUMBERS) or b"[0, {}]")
            kept = {}
            for run in made.runs:
                check = run.check.hex()
                if check not in numbers:
                    numbers[check], after = after, after + 1
                kept[check] = numbers[check]
            txn.put(_NUMBERS, json.dumps([after, kept]).encode())
        return made

    def readers(self: Index, meta: Meta) -> list[RunReader]:
        numbers = json.loads(self._get(_NUMBERS) or b"[0, {}]")[1]
        kept: dict[Any, RunReader] = self._readers  # type: ignore[assignment]
        if any(run.check.hex() not in numbers for run in meta.runs):
            return original(self, meta)
        by_number = {numbers[run.check.hex()]: run for run in meta.runs}
        found = {n: kept.get(n) or self._reader(run) for n, run in by_number.items()}
        self._readers = found  # type: ignore[assignment]
        return list(found.values())

    index.Index._extend = _extend  # type: ignore[method-assign]
    index.Index.readers = readers  # type: ignore[method-assign]


def all_three() -> None:
    """As it was."""
    truncation_trusts_the_index()
    lock_kept()
    runs_by_number()
