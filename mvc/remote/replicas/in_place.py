"""Overwrites a file, or the files of a folder, in place, for ``mvc follow --in-place``.

Before each write, a journal (a file) records the changed bytes. If the write is interrupted, it is
completed from this journal. No process may read the overwritten files during a write.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

from mvc.errors import DamagedData, IoFailed, MvcError, WouldOverwrite
from mvc.io.files import SWAPPED, FileIdentity, FileSystem, ReadFile, WriteFile
from mvc.io.redo import ChangedFile, RedoJournal, carry_out, discard
from mvc.io.replacement import replacing
from mvc.limits import MIB
from mvc.model.manifest import FileEntry
from mvc.names import check_place, printable
from mvc.remote.replicas.places import (
    OneFile,
    check_file,
    check_parent,
    refuse_link,
    remove,
    require_room,
)
from mvc.remote.replicas.versions import FollowedVersion
from mvc.repo.content.contents import write_file
from mvc.types import Bytes

WriteParts = Callable[..., None]
"""A function such as ``write_file``, but without its first argument."""


class InPlace(OneFile):
    """A file, or a folder if ``folder``, that is overwritten in place.

    ``notes``: a folder for the journals. ``undo``: whether to store the old bytes for ``go_back``.
    """

    write = staticmethod(partial(write_file, check=False))

    def __init__(
        self, fs: FileSystem, place: Path, notes: Path, *, folder: bool, undo: bool
    ) -> None:
        self._fs, self._place, self._is_folder, self._keeps_old = fs, place, folder, undo
        self._next, self._redo, self._undo = (notes / name for name in ("next", "redo", "undo"))
        self._before: dict[Path, FileIdentity | None] | None = None
        self._noted, self._sealed = set[str](), dict[Path, RedoJournal]()
        if (fs.read_link(place) or "").startswith(f"{SWAPPED}{place.name}."):
            raise WouldOverwrite(
                f"{printable(str(place))} was created without --in-place",
                hint="leave --in-place out; or delete the link and its folder to create it anew",
            )
        refuse_link(fs, place, "the file or folder itself")
        if not folder:
            check_file(fs, place, with_suffix=True)
            return
        check_parent(fs, place)
        if self.is_taken() and fs.stat(notes) is None:
            raise WouldOverwrite(
                f"{printable(str(place))} has files that 'mvc follow --in-place' did not write",
                hint="move them away, or name another folder",
            )

    def tidy(self, known: Sequence[FollowedVersion]) -> None:
        """Completes an interrupted write. If the write did not begin, deletes its journal."""
        self._noted = {path for version in known for path in version.paths}
        carry_out(self._fs, self._redo, self._place)
        discard(self._fs, self._redo)
        remove(self._fs, self._next)

    def files(self, paths: Sequence[str], at: Path | None = None) -> list[Path]:
        """Converts paths in a version to paths on disk. Returns no paths if ``at`` is set, because
        no new files are written next to the visible files.
        """
        if at is not None:
            return []
        return [self._place / path if self._is_folder else self._place for path in paths]

    def is_taken(self) -> bool:
        """As ``OneFile.is_taken``."""
        facts = self._fs.stat(self._place, follow=False)
        return facts is not None and (not facts.is_dir or bool(self._fs.list(self._place)))

    @contextmanager
    def next(
        self,
        _label: str,
        entries: Sequence[FileEntry],
        present: Mapping[Path, FileEntry],
        fill: WriteParts,
    ) -> Iterator[Path]:
        """Prepares the next version, as ``OneFile.next`` does.

        Yields the path of a journal of differences. If there is no file yet, yields the path of the
        new files.
        """
        self.settle()
        try:
            if self.is_taken():
                files = self.files([entry.path for entry in entries])
                self._compare(dict(zip(files, entries, strict=True)), present, fill)
            else:
                self._write_whole(entries, fill)
            yield self._next
        except BaseException:
            with suppress(MvcError):
                remove(self._fs, self._next)
            raise

    def show(self, fresh: Path) -> None:
        """Writes the differences into the files. The files are durable on return.

        Raises IoFailed if another program changed a file after ``next``. If the write fails,
        ``tidy`` completes the write later.
        """
        if self._before is None:
            self._fs.replace(fresh, self._place)
            self._fs.sync_dir(self._place.parent)
        elif any(self._fs.stat(file, follow=False) != it for file, it in self._before.items()):
            raise IoFailed(
                f"another program changed {printable(str(self._place))} during the update"
            )
        else:
            self._overwrite(fresh)
            if any(
                it and (now := self._fs.stat(file, follow=False)) and it.inode != now.inode
                for file, it in self._before.items()
            ):
                raise IoFailed(
                    f"another program changed {printable(str(self._place))} during the update"
                )

    def go_back(self, _link: str) -> None:
        """Restores the old bytes. Raises IoFailed if the old bytes were not stored."""
        self._overwrite(self._undo)

    def settle(self) -> None:
        """As ``OneFile.settle``."""
        discard(self._fs, self._undo)

    def _overwrite(self, journal: Path) -> None:
        fs = self._fs
        fs.replace(journal, self._redo)
        fs.sync_dir(self._redo.parent)
        if not carry_out(fs, self._redo, self._place, self._sealed.pop(journal, None)):
            raise DamagedData(
                f"another program changed {printable(str(self._place))} during the update"
            )
        discard(fs, self._redo)

    def _write_whole(self, entries: Sequence[FileEntry], fill: WriteParts) -> None:
        self._before = None
        require_room(self._fs, self._place, sum(entry.size for entry in entries))
        folder, named = self._next.parent, {self._next.name: entries[0]}
        if self._is_folder:
            folder, named = self._next, {check_place(entry.path): entry for entry in entries}
            self._fs.make_dir(folder)

        def write(entry: FileEntry, file: WriteFile) -> None:
            fill(entry, file.write_at)

        with replacing(
            self._fs,
            folder,
            {name: partial(write, entry) for name, entry in named.items()},
            plans=None,
            checks={name: entry.content_id.hex() for name, entry in named.items()},
        ):
            pass

    def _check_folders(self, new: Collection[Path]) -> None:
        """Raises IoFailed if new files need a folder, but a file or link has the folder's path."""
        for folder in {
            parent for file in new for parent in file.parents if self._place in parent.parents
        }:
            facts = self._fs.stat(folder, follow=False)
            if folder in new or (facts is not None and not facts.is_dir):
                raise IoFailed(
                    f"{printable(str(folder))} is a file or a link where a folder is needed",
                    hint=f"move {printable(str(self._place))} away: the next update recreates it",
                )

    def _compare(
        self, new: Mapping[Path, FileEntry], present: Mapping[Path, FileEntry], fill: WriteParts
    ) -> None:
        """Writes the journal of differences, and with ``undo`` a journal of the old bytes."""
        fs, changes = self._fs, list[ChangedFile]()
        same = {f for f in new if f in present and new[f].content_id == present[f].content_id}
        self._check_folders(new)
        files = (*new, *self.files(sorted(self._noted)))
        stats = {file: _alone(fs, file) for file in files if file not in same}
        self._before = {file: it for file, it in stats.items() if it is not None or file in new}
        for file, facts in self._before.items():
            name = check_place(str(file.relative_to(self._place))) if self._is_folder else ""
            size, entry = None if facts is None else facts.size, new.get(file)
            changes.append(ChangedFile(name, size, None if entry is None else entry.size))
        journals = [RedoJournal(fs, self._next, changes)]
        if self._keeps_old:
            back = [ChangedFile(change.name, change.size, change.before) for change in changes]
            journals += [RedoJournal(fs, self._undo, back)]

        def append(number: int, at: int, old: Bytes, new: Bytes) -> None:
            journals[0].append(number, at, old, new)
            for undo in journals[1:]:
                undo.append(number, at, new[: len(old)], old)

        for number, (file, change) in enumerate(zip(self._before, changes, strict=True)):
            existed = change.before is not None
            with fs.open_read(file, follow=False) if existed else nullcontext() as old:
                record = partial(append, number)
                if file in new:
                    _fill(
                        fill, new[file], present.get(file), partial(_record_difference, record, old)
                    )
                if old is not None:
                    for at in range(change.size or 0, change.before or 0, MIB):
                        record(at, old.read(at, MIB), b"")
        for journal in journals:
            journal.seal()
        self._sealed = dict(zip((self._next, self._undo), journals, strict=False))
        # Space is checked after the journals were written, because the journals need space.
        require_room(fs, self._place, sum((c.size or 0) - (c.before or 0) for c in changes))


def _alone(fs: FileSystem, file: Path) -> FileIdentity | None:
    """The identity of a file, or None if the file is missing.

    If the file has other hard links, first replaces the file by a copy, because the other links
    must not change.
    """
    facts = fs.stat(file, follow=False)
    if facts is not None:
        fs.open_write(file).close()  # refuses a read-only file before any file is written
    if facts is None or facts.links == 1:
        return facts
    with fs.open_read(file, follow=False) as shared:

        def copy(own: WriteFile) -> None:
            for at in range(0, facts.size, MIB):
                own.write(shared.read(at, MIB))

        fs.replace_file(file, copy, mode=None, durable=True)
    return fs.stat(file, follow=False)


def _record_difference(
    record: Callable[[int, Bytes, Bytes], None], old: ReadFile | None, at: int, data: Bytes
) -> None:
    """Passes ``data`` and the bytes of the old file at the same offset ``at`` to ``record``."""
    view, room = memoryview(data), memoryview(bytearray(MIB))
    for start in range(0, len(view), MIB):
        new = view[start : start + MIB]
        count = 0 if old is None else old.read_into(at + start, room[: len(new)])
        record(at + start, room[:count], new)


def _fill(
    fill: WriteParts,
    entry: FileEntry,
    before: FileEntry | None,
    write_at: Callable[[int, Bytes], None],
) -> None:
    """Writes the changed parts of a file.

    Does not read or write contents (tensors) that have the same offset in the old file.
    """
    if before is None or entry.checks:  # checksums need all bytes
        fill(entry, write_at)
        return
    places = {(content.offset, content.id) for content in before.contents}
    moved = {c.id for c in entry.contents if (c.offset, c.id) not in places}
    unmoved = [content for content in entry.contents if content.id not in moved]
    spans = sorted((c.offset, c.offset + c.spec.nbytes) for c in unmoved)

    def write_changed(at: int, data: Bytes) -> None:
        i = bisect(spans, at, key=lambda span: span[0])
        if not i or at >= spans[i - 1][1]:
            write_at(at, data)

    fill(entry, write_changed, copied=dict.fromkeys((c.id for c in unmoved), _skip))


def _skip(start: int, out: memoryview) -> None:
    """Does nothing. ``_fill`` uses it in place of functions that read unchanged contents."""
