"""Protections of packs and index, taken away one by one.

Each brings back what once lost acknowledged versions; the suites must notice it. ``patch``
sets an attribute; by default for good, as a process of its own wants it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mvc.io.files import FileSystem
from mvc.store.index import folder as index_folder
from mvc.store.index.index import Index, Meta
from mvc.store.index.runs import RunReader
from mvc.store.writing.pack_ends import PackEnds

__all__ = ["lock_kept", "runs_by_number", "truncation_trusts_the_index"]

Patch = Callable[[object, str, object], None]
_NUMBERS = b"numbers"


def truncation_trusts_the_index(patch: Patch = setattr) -> None:
    """Where a pack's committed bytes end is taken from the index, and the rest is cut off."""
    patch(PackEnds, "proven", PackEnds.claimed)


def lock_kept(patch: Patch = setattr) -> None:
    """A rebuilt index takes the place of the old one in its folder, beside the old lock."""

    def make(fs: FileSystem, folder: Path) -> Path:
        environment = index_folder.current(fs, folder) or folder / ("0" * 16)
        fs.make_dir(environment, exist_ok=True)
        fs.unlink(environment / index_folder.DATA, missing_ok=True)
        return environment

    patch(index_folder, "make", make)


def runs_by_number(patch: Patch = setattr) -> None:
    """A run is known in memory by a number that is counted up in LMDB."""
    extend, by_content = Index.extend, Index.readers

    def counted(self: Index, *arguments: Any) -> Meta:
        made = extend(self, *arguments)
        with self._env.begin(write=True) as txn:
            newest, numbers = json.loads(txn.get(_NUMBERS) or b"[0, {}]")
            kept = {}
            for check in (run.check.hex() for run in made.runs):
                if check not in numbers:
                    numbers[check], newest = newest, newest + 1
                kept[check] = numbers[check]
            txn.put(_NUMBERS, json.dumps([newest, kept]).encode())
        return made

    def readers(self: Index, meta: Meta) -> list[RunReader]:
        numbers = json.loads(self._get(_NUMBERS) or b"[0, {}]")[1]
        if any(run.check.hex() not in numbers for run in meta.runs):
            return by_content(self, meta)
        kept: dict[Any, RunReader] = self._readers
        by_number = {numbers[run.check.hex()]: run for run in meta.runs}
        found = {n: kept.get(n) or self._reader(run) for n, run in by_number.items()}
        self._readers = found
        return list(found.values())

    patch(Index, "extend", counted)
    patch(Index, "readers", readers)
