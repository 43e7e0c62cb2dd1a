"""Writes the files of a replica: a file or folder that is kept equal to a live version.

New files are first written to another path on the same file system. Then a rename makes the new
files visible in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from mvc.errors import IoFailed, MvcError, StorageFull, WrongUsage
from mvc.io.files import FileSystem, WriteFile
from mvc.io.replacement import make_folder, replacing
from mvc.model.manifest import FileEntry
from mvc.names import check_place, printable
from mvc.remote.replicas.versions import FollowedVersion
from mvc.repo.checkout.checkout import fill_file
from mvc.repo.checkout.outputs import names_folder, refuse_store
from mvc.repo.checkout.swapped import SwappedFolder
from mvc.text import size as in_units

Fill = Callable[[FileEntry, WriteFile], None]
"""A function that writes all bytes of a file."""


class OneFile:
    """A replica that is one file. ``notes``: a folder for the next and the previous file."""

    write = staticmethod(fill_file)

    def __init__(self, fs: FileSystem, place: Path, notes: Path) -> None:
        check_file(fs, place, with_suffix=True)
        refuse_link(fs, place, "the file itself")
        self._fs, self._place = fs, place
        self._next, self._last = notes / "next", notes / "last"

    def tidy(self, _known: Sequence[FollowedVersion]) -> None:
        """Deletes files of an unfinished update, unless versions in ``_known`` need them."""
        self._fs.unlink(self._next, missing_ok=True)

    def files(self, paths: Sequence[str], at: Path | None = None) -> list[Path]:
        """The paths of the visible files; with ``at``, of the new files (see ``link``)."""
        return [at or self._place for _ in paths]

    def link(self, at: Path | None = None) -> str:
        """The value of the symbolic link at the path of the replica. Empty if there is no link.

        With ``at`` (the path that ``next`` yielded), returns the value of the link after ``show``.
        """
        return "" if at else self._fs.read_link(self._place) or ""

    def is_taken(self) -> bool:
        """Whether anything exists at the path."""
        return self._fs.stat(self._place, follow=False) is not None

    @contextmanager
    def next(
        self,
        _label: str,
        entries: Sequence[FileEntry],
        _present: Mapping[Path, FileEntry],
        fill: Fill,
    ) -> Iterator[Path]:
        """Writes the new files durably and yields the path of these files.

        If the ``with`` block fails, deletes the new files. ``_present``: entries of the visible
        files. Raises StorageFull.
        """
        (entry,) = entries
        require_room(self._fs, self._place, entry.size)
        fs, fresh = self._fs, self._next
        existing = fs.stat(self._place, follow=False)
        mode = None if existing is None else existing.permissions
        try:
            with fs.open_write(
                fresh, create=True, exclusive=True, mode=0o666 if mode is None else mode
            ) as file:
                if mode is not None:
                    file.set_mode(mode)
                fill(entry, file)
                file.sync()
            yield fresh
        except BaseException:
            with suppress(MvcError):
                fs.unlink(fresh, missing_ok=True)
            raise

    def show(self, fresh: Path) -> None:
        """Makes the files of ``next`` visible, in one step. The change is durable on return."""
        fs = self._fs
        self.settle()
        with suppress(MvcError):  # no file yet, or a file system without hard links
            fs.link(self._place, self._last)
        fs.replace(fresh, self._place)
        fs.sync_dir(self._place.parent)

    def go_back(self, _link: str) -> None:
        """Makes the previous file visible, in one step.

        Raises IoFailed if the previous file was deleted.
        """
        self._fs.replace(self._last, self._place)
        self._fs.sync_dir(self._place.parent)

    def settle(self) -> None:
        """Deletes the previous files. Then ``go_back`` is no longer possible."""
        self._fs.unlink(self._last, missing_ok=True)


class LinkedFolder:
    """A replica that is a symbolic link to a folder. Each version gets a new folder.

    Unchanged files in the new folder are hard links to the previous files.
    """

    write = staticmethod(fill_file)

    def __init__(self, fs: FileSystem, place: Path) -> None:
        check_parent(fs, place)
        self._fs, self._place = fs, place
        self._swapped = SwappedFolder(fs, place)
        self._swapped.target()
        self._before = ""  # the value of the link before ``show``

    def tidy(self, known: Sequence[FollowedVersion]) -> None:
        """As ``OneFile.tidy``."""
        if known or self._before:
            with self._swapped.alone([*(version.link for version in known), self._before]):
                pass

    def files(self, paths: Sequence[str], at: Path | None = None) -> list[Path]:
        """As ``OneFile.files``."""
        return [(at or self._place) / path for path in paths]

    def link(self, at: Path | None = None) -> str:
        """As ``OneFile.link``."""
        return at.name if at else self._fs.read_link(self._place) or ""

    def is_taken(self) -> bool:
        """As ``OneFile.is_taken``."""
        return self._swapped.target() is not None and self._fs.stat(self._place) is not None

    @contextmanager
    def next(
        self,
        label: str,
        entries: Sequence[FileEntry],
        present: Mapping[Path, FileEntry],
        fill: Fill,
    ) -> Iterator[Path]:
        """As ``OneFile.next``."""
        fs, writes = self._fs, dict[str, FileEntry]()
        links = {entry.content_id: file for file, entry in present.items()}
        # Old folders are deleted now only if the space is needed: deleting slows flushes down.
        is_tight = fs.free_bytes(self._place.parent) < sum(entry.size for entry in entries)
        with self._swapped.next(label, tidy=is_tight) as new:
            for entry in entries:
                place = new / check_place(entry.path)
                if entry.content_id in links:
                    make_folder(fs, place.parent, within=new)
                    with suppress(MvcError, FileExistsError):  # a file system without hard links
                        fs.link(links[entry.content_id], place)
                        continue
                writes[entry.path] = entry
            require_room(fs, self._place, sum(entry.size for entry in writes.values()))
            fills = {path: partial(fill, entry) for path, entry in writes.items()}
            checks = {path: entry.content_id.hex() for path, entry in writes.items()}
            with replacing(fs, new, fills, plans=None, checks=checks):
                folders = {new, *(p for e in entries for p in (new / e.path).parents)}
            for folder in sorted(f for f in folders if f.is_relative_to(new)):
                fs.sync_dir(folder)
            yield new

    def show(self, fresh: Path) -> None:
        """As ``OneFile.show``."""
        self._before = self.link()
        self._swapped.lead_to(fresh.name)

    def go_back(self, link: str) -> None:
        """As ``OneFile.go_back``."""
        if self._fs.stat(self._swapped.parent / link) is None:
            raise IoFailed(f"{printable(link)} was deleted: the previous version is lost")
        self._swapped.lead_to(link)

    def settle(self) -> None:
        """Deletes all folders except the visible folder and the previous folder.

        Programs may still read the previous folder.
        """
        self.tidy(())


def check_file(fs: FileSystem, place: Path, *, with_suffix: bool = False) -> None:
    """Raises WrongUsage if a path is inside ``.mvc``, or is a folder, a pipe, a socket or a device.

    Raises IoFailed if the folder of the path does not exist. ``with_suffix``: refuse a new path
    without a suffix, too.
    """
    refuse_store(fs, place)
    check_parent(fs, place)
    shown, present = printable(str(place)), fs.stat(place, follow=False)
    if present is not None and not present.is_file and fs.read_link(place) is None:
        kind = "a folder" if present.is_dir else "a pipe, a socket or a device"
        raise WrongUsage(f"{shown} is {kind}", hint="name a file or an unused path")
    if with_suffix and names_folder(fs, place):
        raise WrongUsage(f"{shown} names a folder", hint="give the file a suffix")


def check_parent(fs: FileSystem, place: Path) -> None:
    """Raises IoFailed if the parent folder does not exist.

    Raises WrongUsage if the path is a mount point.
    """
    folder = fs.stat(place.parent)
    if folder is None or not folder.is_dir:
        raise IoFailed(
            f"the folder {printable(str(place.parent))} does not exist", hint="create it first"
        )
    existing = fs.stat(place, follow=False)
    if existing is not None and existing.is_dir and existing.device != folder.device:
        raise WrongUsage(
            f"{printable(str(place))} is a mount point, which cannot be replaced",
            hint="name a folder inside it",
        )


def refuse_link(fs: FileSystem, place: Path, instead: str) -> None:
    """Raises WrongUsage for a symbolic link. The hint is ``name {instead}``."""
    present = fs.stat(place, follow=False)
    if present is not None and present.is_symlink:
        raise WrongUsage(f"{printable(str(place))} is a symbolic link", hint=f"name {instead}")


def remove(fs: FileSystem, place: Path) -> None:
    """Deletes a file or a folder with its files, if it exists."""
    existing = fs.stat(place, follow=False)
    if existing is not None and existing.is_dir:
        fs.remove_tree(place)
    else:
        fs.unlink(place, missing_ok=True)


def require_room(fs: FileSystem, place: Path, size: int) -> None:
    """Raises StorageFull if the file system of a path has less than ``size`` free bytes."""
    if (free := fs.free_bytes(place.parent)) < size:
        raise StorageFull(
            f"the disk is nearly full: {printable(str(place))} needs {in_units(size - free)} more",
            hint="free some space, then repeat the command"
            + ("; the previous version stays until then" if fs.stat(place) else ""),
        )
