"""Shards that wait in the repository's folder until their checkpoint is complete.

Each branch and folder of a checkpoint has a place of its own in ``.mvc/staging``. A process
that writes there holds a shared lock on it, which ends with the process: places without a
holder are what a crash left, and the next save removes them.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from pathlib import Path

from mvc.errors import WrongUsage
from mvc.frameworks.fsspec.location import Opened
from mvc.frameworks.fsspec.write import staging_folder
from mvc.io.files import TEMPORARY, FileLock, FileSystem, ReadFile, WriteFile
from mvc.model.hashing import digest
from mvc.store.store import FOLDER

__all__ = ["METADATA", "Staging", "is_staged"]

METADATA = ".metadata"

_STAGED = re.compile(r"__[0-9]{1,9}_[0-9]{1,9}\.distcp|\.metadata\.tmp")
_OF_ONE_RANK = re.compile(r"__[0-9]{1,9}\.metadata(\.tmp)?")
_TAG = b"mvc.staging.1"
_LOCK = ".lock"
_MOST_HELD = 8  # a rank that is no coordinator never hears that a checkpoint is complete
_held: OrderedDict[Path, FileLock] = OrderedDict()
_holding = threading.Lock()


def is_staged(path: str) -> bool:
    """Whether a file of this name waits for its checkpoint instead of being committed.

    Raises WrongUsage for names of checkpoints without a coordinator.
    """
    name = path.rpartition("/")[2]
    if _OF_ONE_RANK.fullmatch(name):
        raise WrongUsage(
            "a checkpoint saved without collectives has no rank that completes it",
            hint="save with use_collectives=True, which is torch's default",
        )
    return _STAGED.fullmatch(name) is not None


class Staging:
    """The place of one checkpoint: ``folder`` is its folder in the version."""

    def __init__(self, opened: Opened, branch: str, folder: str) -> None:
        self.opened = opened
        self.branch = branch
        self.folder = folder
        self._fs = opened.context.store.fs
        name = digest(_TAG, branch.encode(), folder.encode()).hex()[:32]
        self._within = opened.context.root / FOLDER
        self._place = self._within / "staging" / name

    def holds(self, name: str) -> bool:
        """Whether a file waits here."""
        return self._fs.stat(self._place / name) is not None

    def open_write(self, name: str) -> WriteFile:
        """A new file in place of one of this name."""
        self._enter()
        self.remove(name)
        path = self._place / name
        return self._fs.open_write(path, create=True, exclusive=True, within=self._within)

    def open_read(self, name: str) -> ReadFile:
        return self._fs.open_read(self._place / name, follow=False)

    def read(self, name: str, limit: int) -> bytes:
        """A whole file of at most ``limit`` bytes."""
        return self._fs.read_bytes(self._place / name, limit)

    def remove(self, name: str) -> None:
        """Takes a file away; nothing happens if it is not there."""
        self._fs.unlink(self._place / name, missing_ok=True, within=self._within)

    def clear(self) -> None:
        """Takes away what an earlier save left: every rank does so before any rank writes."""
        if self._fs.stat(self._place) is None:
            return
        for name in self._fs.list(self._place):
            self.remove(name)

    def drop(self) -> None:
        """Removes the place; its checkpoint is complete."""
        _remove(self._fs, self._place, self._within)
        with _holding:
            lock = _held.pop(self._place, None)
        if lock is not None:
            lock.release()

    def _enter(self) -> None:
        """Makes the place and holds it."""
        with _holding:
            lock = _held.pop(self._place, None)
            if lock is None or not lock.held:
                parent = staging_folder(self.opened.context)
                lock = self._fs.lock(_lock_of(self._place), shared=True)
                _sweep(self._fs, parent, self._within)
            _held[self._place] = lock
            while len(_held) > _MOST_HELD:
                _held.pop(next(iter(_held))).release()
        self._fs.make_dir(self._place, exist_ok=True, within=self._within)


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}{_LOCK}")


def _sweep(fs: FileSystem, parent: Path, within: Path) -> None:
    """Removes places that no process holds, and files that lost their process."""
    for name in fs.list(parent):
        if name.startswith(TEMPORARY):
            fs.unlink(parent / name, missing_ok=True, within=within)
        if not name.endswith(_LOCK):
            continue
        lock = fs.lock(parent / name, block=False)
        if lock is not None:
            with lock:
                _remove(fs, parent / name.removesuffix(_LOCK), within)
                fs.unlink(parent / name, missing_ok=True, within=within)


def _remove(fs: FileSystem, place: Path, within: Path) -> None:
    found = fs.stat(place, follow=False)
    if found is None or not found.is_dir:
        return
    for name in fs.list(place):
        fs.unlink(place / name, missing_ok=True, within=within)
    fs.remove_dir(place)
