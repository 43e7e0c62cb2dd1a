"""What a power loss may leave of a folder: the model behind ``CrashFS``.

The rules are those a store may rely on, and none beyond (ALICE, OSDI '14; the crash
VFS of SQLite's ``test6.c``):

- ``sync`` of a file makes its content and size durable, but not its name;
- ``sync_dir`` makes the names in one folder durable;
- of each write since, every 512-byte sector arrives, or does not, or turns to garbage.
  Bytes outside the written range stay (power-safe overwrite);
- the size of a file is anything between the least and the greatest since its last sync;
- names that were made, changed or removed since are kept or lost independently, or in
  order. A rename is one step; between two folders it may leave both names.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
ROOT = 0


@dataclass(frozen=True)
class Adopt:
    """A file or folder (``content`` None) that was there before anyone watched: durable."""

    folder: int
    name: str
    node: int
    content: bytes | None


@dataclass(frozen=True)
class Write:
    node: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    node: int
    size: int


@dataclass(frozen=True)
class Sync:
    node: int


@dataclass(frozen=True)
class SyncDir:
    folder: int


@dataclass(frozen=True)
class Rename:
    """Names that change in one step: (folder, name, node or None for none).

    Creations, links, removals and renames are all of this kind. ``is_folder`` says that
    the node is a new, empty folder.
    """

    changes: tuple[tuple[int, str, int | None], ...]
    is_folder: bool = False

    @property
    def folders(self) -> set[int]:
        return {folder for folder, _, _ in self.changes}


Op = Adopt | Write | Truncate | Sync | SyncDir | Rename


@dataclass
class _Content:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)


class Disk:
    """Files and folders as durable state plus what is not yet durable."""

    def __init__(self) -> None:
        self._files: dict[int, _Content] = {}
        self._folders: dict[int, dict[str, int]] = {ROOT: {}}
        self._pending: list[tuple[int, Rename]] = []  # with the step's number
        self._latest: dict[tuple[int, str], int] = {}  # the last durable step of each name
        self._steps = 0

    def apply(self, op: Op) -> None:
        """Takes the next operation."""
        match op:
            case Adopt(folder, name, node, content):
                self._folders.setdefault(folder, {})[name] = node
                if content is None:
                    self._folders.setdefault(node, {})
                else:
                    self._files[node] = _Content(bytearray(content))
            case Write(node) | Truncate(node):
                self._files.setdefault(node, _Content()).pending.append(op)
            case Sync(node):
                content = self._files.setdefault(node, _Content())
                for change in content.pending:
                    _carry_out(content.durable, change)
                content.pending.clear()
            case Rename(changes, is_folder):
                self._steps += 1
                self._pending.append((self._steps, op))
                for _, _, node in changes:
                    if is_folder and node is not None:
                        self._folders.setdefault(node, {})
            case SyncDir(folder):
                self._sync_dir(folder)

    def image(self, rng: random.Random, dest: Path) -> None:
        """Builds in the folder ``dest`` (absent or empty) what a crash now may leave."""
        folders = {node: dict(names) for node, names in self._folders.items()}
        latest = dict(self._latest)
        for step, op, whole in self._kept(rng):
            _name(folders, latest, step, op.changes if whole else op.changes[:1])
        self._build(rng, folders, ROOT, dest, {})

    def _sync_dir(self, folder: int) -> None:
        waiting = []
        for step, op in self._pending:
            if folder in op.folders:
                _name(self._folders, self._latest, step, op.changes)
            else:
                waiting.append((step, op))
        self._pending = waiting

    def _kept(self, rng: random.Random) -> Iterator[tuple[int, Rename, bool]]:
        """The not yet durable steps that arrived; whether each of them did as a whole."""
        how = rng.choice(("all", "none", "prefix", "each", "each"))
        counts: dict[int, int] = {}
        for _, op in self._pending:
            folder = op.changes[0][0]
            counts[folder] = counts.get(folder, 0) + 1
        left = {folder: rng.randint(0, count) for folder, count in counts.items()}
        for step, op in self._pending:
            folder = op.changes[0][0]
            left[folder] -= 1
            arrived = {
                "all": True,
                "none": False,
                "prefix": left[folder] >= 0,
                "each": rng.random() < 0.5,
            }[how]
            if arrived:
                yield step, op, len(op.folders) == 1 or rng.random() < 0.5

    def _build(
        self,
        rng: random.Random,
        folders: dict[int, dict[str, int]],
        node: int,
        dest: Path,
        built: dict[int, Path],
    ) -> None:
        dest.mkdir(parents=True, exist_ok=True)
        for name, child in sorted(folders[node].items()):
            path = dest / name
            if child in folders:
                self._build(rng, folders, child, path, built)
            elif child in built:
                os.link(built[child], path)
            else:
                path.write_bytes(after_crash(self._files.get(child, _Content()), rng))
                built[child] = path


def _name(
    folders: dict[int, dict[str, int]],
    latest: dict[tuple[int, str], int],
    step: int,
    changes: tuple[tuple[int, str, int | None], ...],
) -> None:
    for folder, name, node in changes:
        if latest.get((folder, name), 0) > step:
            continue  # a later step has become durable with another folder
        latest[folder, name] = step
        if node is None:
            folders[folder].pop(name, None)
        else:
            folders[folder][name] = node


def _carry_out(content: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    content.extend(bytes(max(0, change.offset - len(content))))
    content[change.offset : change.offset + len(change.data)] = change.data


def after_crash(content: _Content, rng: random.Random) -> bytes:
    """What a file may hold after a power loss."""
    if not content.pending:
        return bytes(content.durable)
    how = rng.choice(("kept", "lost", "mixed", "mixed"))
    if how == "lost":
        return bytes(content.durable)
    if how == "kept":
        latest = bytearray(content.durable)
        for change in content.pending:
            _carry_out(latest, change)
        return bytes(latest)
    sizes = list(_sizes(content))
    size = rng.choice((sizes[0], sizes[-1], rng.randint(min(sizes), max(sizes))))
    image = bytearray(content.durable) + bytes(max(sizes) - len(content.durable))
    for change in content.pending:
        if isinstance(change, Write):
            _scatter(image, change, rng)
        elif rng.random() < 0.5:
            image[change.size :] = bytes(len(image) - change.size)
    return bytes(image[:size])


def _sizes(content: _Content) -> Iterator[int]:
    """Every size the file had since its last sync, that one included."""
    size = len(content.durable)
    yield size
    for change in content.pending:
        if isinstance(change, Truncate):
            size = change.size
        else:
            size = max(size, change.offset + len(change.data))
        yield size


def _scatter(image: bytearray, write: Write, rng: random.Random) -> None:
    """Lets each sector of a write arrive, not arrive, or turn to garbage."""
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        fate = rng.random()
        if fate < 0.5:
            image[start:stop] = write.data[start - write.offset : stop - write.offset]
        elif fate < 0.6:
            image[start:stop] = rng.randbytes(stop - start)
        start = stop
