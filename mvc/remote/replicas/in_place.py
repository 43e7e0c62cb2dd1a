"""A file or a folder that is written in place: what differs is kept in a journal before.

Readers are to be paused while it is written.
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
"""``write_file`` without its first argument."""


class InPlace(OneFile):
    """A file, or a ``folder`` that is no link; ``beside`` is a folder for the journals.

    ``undo``: old values are kept for ``go_back``.
    """

    write = staticmethod(partial(write_file, check=False))

    def __init__(
        self, fs: FileSystem, place: Path, beside: Path, *, folder: bool, undo: bool
    ) -> None:
        self._fs, self._place, self._is_folder, self._keeps_old = fs, place, folder, undo
        self._next, self._redo, self._undo = (beside / each for each in ("next", "redo", "undo"))
        self._found: dict[Path, FileIdentity | None] | None = None
        self._noted, self._sealed = set[str](), dict[Path, RedoJournal]()
        if (fs.read_link(place) or "").startswith(f"{SWAPPED}{place.name}."):
            raise WouldOverwrite(
                f"{printable(str(place))} was kept without --in-place",
                hint="leave that out; or delete the link and its folder, and it comes anew",
            )
        refuse_link(fs, place, "the file or folder itself")
        if not folder:
            check_file(fs, place, with_suffix=True)
            return
        check_parent(fs, place)
        if self.is_taken() and fs.stat(beside) is None:
            raise WouldOverwrite(
                f"{printable(str(place))} holds files, and no 'mvc follow --in-place' keeps it",
                hint="move them away, or name another folder",
            )

    def tidy(self, known: Sequence[FollowedVersion]) -> None:
        """What was begun to be written is completed; what was only prepared goes."""
        self._noted = {path for version in known for path in version.paths}
        carry_out(self._fs, self._redo, self._place)
        discard(self._fs, self._redo)
        remove(self._fs, self._next)

    def files(self, paths: Sequence[str], at: Path | None = None) -> list[Path]:
        """Where files lie that are visible; of those that ``next`` yields, nothing is known."""
        if at is not None:
            return []
        return [self._place / path if self._is_folder else self._place for path in paths]

    def is_taken(self) -> bool:
        """As ``OneFile.is_taken``."""
        there = self._fs.stat(self._place, follow=False)
        return there is not None and (not there.is_dir or bool(self._fs.list(self._place)))

    @contextmanager
    def next(
        self,
        _label: str,
        entries: Sequence[FileEntry],
        present: Mapping[Path, FileEntry],
        fill: WriteParts,
    ) -> Iterator[Path]:
        """Yields a journal of what differs, or where nothing is, the files; as ``OneFile.next``."""
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
        """Writes what differs; durable on return.

        Raises IoFailed if a file was changed since ``next``. From then on, and until it succeeds,
        ``tidy`` completes it.
        """
        if self._found is None:
            self._fs.replace(fresh, self._place)
            self._fs.sync_dir(self._place.parent)
        elif any(self._fs.stat(file, follow=False) != it for file, it in self._found.items()):
            raise IoFailed(f"another program changes {printable(str(self._place))}")
        else:
            self._overwrite(fresh)
            if any(
                it and (now := self._fs.stat(file, follow=False)) and it.inode != now.inode
                for file, it in self._found.items()
            ):
                raise IoFailed(f"another program changes {printable(str(self._place))}")

    def go_back(self, _link: str) -> None:
        """Writes the old values over the new ones. Raises IoFailed if they were not kept."""
        self._overwrite(self._undo)

    def settle(self) -> None:
        """As ``OneFile.settle``."""
        discard(self._fs, self._undo)

    def _overwrite(self, journal: Path) -> None:
        fs = self._fs
        fs.replace(journal, self._redo)
        fs.sync_dir(self._redo.parent)
        if not carry_out(fs, self._redo, self._place, self._sealed.pop(journal, None)):
            raise DamagedData(f"another program changes {printable(str(self._place))}")
        discard(fs, self._redo)

    def _write_whole(self, entries: Sequence[FileEntry], fill: WriteParts) -> None:
        self._found = None
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
        """Raises IoFailed where a folder of new files is a file, or a link."""
        for folder in {
            each for file in new for each in file.parents if self._place in each.parents
        }:
            there = self._fs.stat(folder, follow=False)
            if folder in new or (there is not None and not there.is_dir):
                raise IoFailed(
                    f"{printable(str(folder))} is to be a folder, and is a file or a link",
                    hint=f"move {printable(str(self._place))} away: then it is written anew",
                )

    def _compare(
        self, new: Mapping[Path, FileEntry], present: Mapping[Path, FileEntry], fill: WriteParts
    ) -> None:
        """Writes the journal of what differs, and that of old values."""
        fs, changes = self._fs, list[ChangedFile]()
        same = {f for f in new if f in present and new[f].content_id == present[f].content_id}
        self._check_folders(new)
        files = (*new, *self.files(sorted(self._noted)))
        found = {file: _alone(fs, file) for file in files if file not in same}
        self._found = {file: it for file, it in found.items() if it is not None or file in new}
        for file, there in self._found.items():
            name = check_place(str(file.relative_to(self._place))) if self._is_folder else ""
            size, entry = None if there is None else there.size, new.get(file)
            changes.append(ChangedFile(name, size, None if entry is None else entry.size))
        journals = [RedoJournal(fs, self._next, changes)]
        if self._keeps_old:
            back = [ChangedFile(each.name, each.size, each.before) for each in changes]
            journals += [RedoJournal(fs, self._undo, back)]

        def append(number: int, at: int, old: Bytes, new: Bytes) -> None:
            journals[0].append(number, at, old, new)
            for undo in journals[1:]:
                undo.append(number, at, new[: len(old)], old)

        for number, (file, change) in enumerate(zip(self._found, changes, strict=True)):
            is_there = change.before is not None
            with fs.open_read(file, follow=False) if is_there else nullcontext() as old:
                keep = partial(append, number)
                if file in new:
                    _fill(fill, new[file], present.get(file), partial(_keep_difference, keep, old))
                if old is not None:
                    for at in range(change.size or 0, change.before or 0, MIB):
                        keep(at, old.read(at, MIB), b"")
        for journal in journals:
            journal.seal()
        self._sealed = dict(zip((self._next, self._undo), journals, strict=False))
        # The journals take room themselves.
        require_room(fs, self._place, sum((c.size or 0) - (c.before or 0) for c in changes))


def _alone(fs: FileSystem, file: Path) -> FileIdentity | None:
    """What stands there, copied if it has other names: another version would change with it."""
    there = fs.stat(file, follow=False)
    if there is not None:
        fs.open_write(file).close()  # one that may not be written is refused before any is
    if there is None or there.links == 1:
        return there
    with fs.open_read(file, follow=False) as shared:

        def copy(own: WriteFile) -> None:
            for at in range(0, there.size, MIB):
                own.write(shared.read(at, MIB))

        fs.replace_file(file, copy, mode=None, durable=True)
    return fs.stat(file, follow=False)


def _keep_difference(
    keep: Callable[[int, Bytes, Bytes], None], old: ReadFile | None, at: int, data: Bytes
) -> None:
    """Has what differs from the bytes of the old file kept."""
    view, room = memoryview(data), memoryview(bytearray(MIB))
    for start in range(0, len(view), MIB):
        new = view[start : start + MIB]
        count = 0 if old is None else old.read_into(at + start, room[: len(new)])
        keep(at + start, room[:count], new)


def _fill(
    fill: WriteParts,
    entry: FileEntry,
    before: FileEntry | None,
    write_at: Callable[[int, Bytes], None],
) -> None:
    """Writes a file, but not the contents that lie where they did: these are not read either."""
    if before is None or entry.checks:  # checksums are computed from all bytes
        fill(entry, write_at)
        return
    places = {(content.offset, content.id) for content in before.contents}
    moved = {each.id for each in entry.contents if (each.offset, each.id) not in places}
    stays = [each for each in entry.contents if each.id not in moved]
    spans = sorted((each.offset, each.offset + each.spec.nbytes) for each in stays)

    def write_changed(at: int, data: Bytes) -> None:
        i = bisect(spans, at, key=lambda span: span[0])
        if not i or at >= spans[i - 1][1]:
            write_at(at, data)

    fill(entry, write_changed, copied=dict.fromkeys((each.id for each in stays), _leave))


def _leave(start: int, out: memoryview) -> None:
    """Reads nothing."""
