"""The versions that a bench is given: files, folders of them, or what HEAD holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mvc.adapters.files.suspect import suspicion
from mvc.adapters.parsed import ParsedFile
from mvc.errors import InvalidName, WrongUsage
from mvc.ids import BlobId
from mvc.io.files import FileSystem
from mvc.model.manifest import Content, FileEntry, LogicalTensor, Manifest
from mvc.model.names import printable
from mvc.repo.content.bases import Recovers
from mvc.repo.content.sources import open_file
from mvc.repo.context import Context
from mvc.repo.importing.checkpoints import find_checkpoints
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head
from mvc.repo.worktree.worktree import tracked_name
from mvc.store.graph import search as graph_search

__all__ = [
    "NO_ID", "NO_PARENT",
    "Note", "Parent", "Version", "find_versions", "from_head", "opened", "parent",
]  # fmt: skip

Note: TypeAlias = Callable[[str], None]
"""Is told what a user should know of the files."""

_FOLDER = "model"  # the name that the files of every version share
NO_ID = BlobId(bytes(32))


@dataclass(frozen=True)
class Version:
    """Files that make one version, by the name they would be tracked under."""

    label: str
    files: Mapping[str, Path]
    size: int


@dataclass(frozen=True)
class Parent:
    """What a version's tensors may be coded against."""

    manifest: Manifest
    bytes: Recovers


def find_versions(fs: FileSystem, sources: Sequence[Path]) -> list[Version]:
    """Versions in the order given; those of a folder by name, numbers by value.

    A folder that holds the parts of one checkpoint is one version. Raises UnknownPath for
    what is not there, WrongUsage for a folder without model files.
    """
    found: list[Version] = []
    for source in sources:
        inside = find_checkpoints(fs, [source], "mtime", _FOLDER)
        if not inside:
            raise WrongUsage(
                f"no model files in {printable(str(source))}",
                hint="name files, or a folder of them",
            )
        inside.sort(key=lambda checkpoint: _by_number(checkpoint.source.name))
        found += [Version(str(c.source), c.files, c.size) for c in inside]
    return found


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name) if p]


def from_head(context: Context, version: Version) -> Parent | None:
    """The files of HEAD that a version's files are tracked as; None if there are none."""
    fs, there = context.store.fs, head(context).commit
    by_path = manifests.of_commit(context, there).by_path
    entries = []
    for name, place in version.files.items():
        try:
            tracked = tracked_name(context.root, place, fs.cwd(), fs=fs)
        except InvalidName:
            continue
        if tracked in by_path:
            entries.append(by_path[tracked].with_path(name))
    return Parent(Manifest(entries), context.store.recovery) if entries else None


@contextmanager
def opened(fs: FileSystem, version: Version, note: Note) -> Iterator[dict[str, ParsedFile]]:
    """Every file of a version taken apart; SourceChanged if one is written to meanwhile."""
    with ExitStack() as held:
        files = {
            name: held.enter_context(open_file(fs, place, printable(str(place))))
            for name, place in version.files.items()
        }
        for name, parsed in files.items():
            _look(fs, version, name, parsed, note)
        yield files


def _look(
    fs: FileSystem,
    version: Version,
    name: str,
    parsed: ParsedFile,
    note: Note,
) -> None:
    """Files of a checkpoint folder that are no models (settings, words) are as they should be."""
    if parsed.format != "opaque" or not parsed.size or len(version.files) > 1:
        return
    place = version.files[name]
    with fs.open_read(place) as file:
        why = suspicion(file, place.name)
    because = f" ({why})" if why else ""
    note(f"{printable(str(place))} is no model file that mvc can read{because}: "
         "measured as raw bytes")  # fmt: skip


class _OnDisk:
    """Contents of files as bases; their ids are places, for nothing is hashed."""

    def __init__(self, files: Mapping[str, ParsedFile]) -> None:
        self._contents: list[tuple[ParsedFile, int]] = []
        self.manifest = Manifest([self._entry(name, parsed) for name, parsed in files.items()])

    def _entry(self, name: str, parsed: ParsedFile) -> FileEntry:
        contents = []
        for i, content in enumerate(parsed.contents):
            id_ = BlobId(len(self._contents).to_bytes(32, "big"))
            self._contents.append((parsed, i))
            contents.append(Content(content.offset, content.spec, id_))
        tensors = (LogicalTensor(t.key, t.spec, NO_ID, t.content) for t in parsed.tensors)
        return FileEntry(
            name, parsed.format, parsed.size, tuple(contents), None, (), tuple(tensors)
        )

    def piece(self, id_: bytes, start: int, out: memoryview) -> graph_search.Path:
        parsed, i = self._contents[int.from_bytes(id_, "big")]
        parsed.read(i, start, out)
        return graph_search.Path((), 0.0)


@contextmanager
def parent(fs: FileSystem, version: Version, note: Note) -> Iterator[Parent]:
    """The version before, while its files are open."""
    with opened(fs, version, note) as files:
        on_disk = _OnDisk(files)
        yield Parent(on_disk.manifest, on_disk)


NO_PARENT = Parent(manifests.EMPTY, _OnDisk({}))
"""What the first version has before it."""
