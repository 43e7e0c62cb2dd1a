"""Functions for the working folder: they find files, name them, and compute their entries.

The entry of a file is the record that a commit stores for the file. The name of a tracked file is
relative to the repository's root, has '/' between its parts, is in Unicode form NFC and passes
``check_path``. So the name means the same file on every system.
"""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from mvc.control_folders import MARKERS, VERSION_CONTROL
from mvc.errors import InvalidName, IoFailed, UnknownPath, WrongUsage
from mvc.io.files import SWAPPED, TEMPORARY, FileIdentity, FileSystem
from mvc.model.manifest import FileEntry
from mvc.names import check_path, is_under, printable
from mvc.repo.worktree.ignore import IGNORE_FILE, Ignore
from mvc.store.store import Store
from mvc.types import Progress

REPORT_SUFFIX = ".html"
REPORT_BEGIN = b'<!doctype html><html lang="en"><!-- mvc report -->'
"""First bytes of pages of ``mvc report``."""
_MAX_IGNORE_FILE = 1 << 20


class FoundFile(Struct, frozen=True):
    """A file of the working folder. Its ``name`` may be invalid as a tracked path."""

    name: str
    identity: FileIdentity


def check_worktree(store: Store) -> None:
    """Raises WrongUsage in a bare repository."""
    if store.bare:
        raise WrongUsage(
            f"{printable(str(store.root))} is a bare repository: it has no working files",
            hint="work in a clone ('mvc clone'), or write a file elsewhere with "
            "'mvc checkout -o FILE REV'",
        )


def tracked_name(root: Path, path: str | Path, cwd: Path, *, fs: FileSystem | None = None) -> str:
    """The name under which ``path`` is tracked. The folder ``root`` has an empty name.

    ``path``: absolute, or relative to ``cwd``. Symbolic links inside the repository are not
    resolved. With ``fs``, ``path`` may lead into the repository through symbolic links. Raises
    InvalidName if ``path`` is outside the repository, or if the name is invalid. With ``fs``,
    raises InvalidName if another file has the NFC form of the name.
    """
    shown = printable(str(path))
    absolute = Path(posixpath.normpath(cwd / path))
    inside = _below(root, absolute)
    if inside is None and fs is not None:
        inside = _below(fs.realpath(root), fs.realpath(absolute.parent) / absolute.name)
    if inside is None:
        raise InvalidName(
            f"{shown} is outside the repository {printable(str(root))}",
            hint="only files inside the repository's folder can be tracked",
        )
    name = unicodedata.normalize("NFC", inside)
    if fs is not None and name != inside:
        spelled, tracked = fs.stat(absolute), fs.stat(root / name)
        if (
            spelled
            and tracked
            and (spelled.device, spelled.inode) != (tracked.device, tracked.inode)
        ):
            raise InvalidName(
                f"{shown} and another file have one name in Unicode form NFC",
                hint="rename one of the two: mvc tracks files by names in this form",
            )
    return check_path(name) if name else ""


def _below(root: Path, path: Path) -> str | None:
    base = Path(posixpath.normpath(root))
    if not path.is_relative_to(base):
        return None
    inside = path.relative_to(base).as_posix()
    return "" if inside == "." else inside


def expand(
    store: Store, paths: Iterable[str | Path], cwd: Path, tracked: Mapping[str, FileEntry]
) -> tuple[list[str], list[str]]:
    """Two sorted lists: the files that ``paths`` select, and the selected paths without a file.

    A file is selected even if it is ignored. A folder selects the files in the folder, but ignored
    files only if they are tracked. A ``tracked`` path whose file is missing is in the second list.
    But a state that was committed from Python needs no file, so a folder does not add it. Raises
    UnknownPath for a path that does not exist and is not tracked, and for a dead link; InvalidName.
    """
    check_worktree(store)
    fs, files, missing = store.fs, set[str](), set[str]()
    for path in paths:
        name = tracked_name(store.root, path, cwd, fs=fs)
        place = store.root / name
        identity = fs.stat(place)
        if identity is not None and identity.is_file:
            files.add(name)
            continue
        inside = [entry for other, entry in tracked.items() if is_under(other, [name])]
        if identity is None:
            if fs.stat(place, follow=False) is not None or not inside:
                raise _missing(store, cwd / path, name)
            missing |= {name} & tracked.keys()
        elif identity.is_dir:
            files |= _in_folder(store, name)
        else:
            raise UnknownPath(f"{printable(name)} is neither a file nor a folder")
        for entry in inside:
            present = fs.stat(store.root / entry.path)
            if present is not None and present.is_file:
                files.add(entry.path)
            elif not is_python_state(entry):
                missing.add(entry.path)
    return sorted(files, key=str.encode), sorted(missing, key=str.encode)


def _in_folder(store: Store, folder: str) -> set[str]:
    try:
        return {check_path(file.name) for file in sorted_files_in(store.fs, store.root, folder)}
    except InvalidName as error:
        hint = f"rename the file, or exclude it with a line in {IGNORE_FILE}"
        raise InvalidName(error.message, hint=hint) from None


def _missing(store: Store, path: Path, name: str) -> InvalidName | UnknownPath:
    fs = store.fs
    if fs.stat(store.root / name, follow=False) is not None:
        return dead_link(name)
    if fs.stat(path) is not None:
        return InvalidName(
            f"{printable(name)} is on disk under a name that is not in Unicode form NFC",
            hint="rename it, so that its name is the same on every system",
        )
    return UnknownPath(f"there is no file {printable(name)}", hint="see 'mvc status' and 'mvc ls'")


def dead_link(name: str) -> UnknownPath:
    """The error for a symbolic link without a target."""
    return UnknownPath(
        f"{printable(name)} is a symbolic link whose target does not exist",
        hint="restore the target (in a cache, download it again), delete the link, or exclude it "
        f"with a line in {IGNORE_FILE}",
    )


def sorted_files_in(
    fs: FileSystem, root: Path, folder: str = "", *, linked: set[str] | None = None
) -> list[FoundFile]:
    """As ``files_in``, sorted by name. Raises UnknownPath for a dead link."""
    dead: set[str] = set()
    files = sorted(files_in(fs, root, folder, dead, linked=linked), key=lambda file: file.name)
    if dead:
        raise dead_link(min(dead))
    return files


def files_in(
    fs: FileSystem,
    root: Path,
    folder: str = "",
    dead: set[str] | None = None,
    *,
    linked: set[str] | None = None,
) -> Iterator[FoundFile]:
    """Yields every file below ``folder`` that is not ignored, in any order.

    The names are relative to ``root``. ``folder`` is read even if a rule ignores ``folder``. Skips
    temporary files and reports of mvc, special files, dead links and version control folders.
    ``dead``: names of dead links that are not ignored are added to this set. Symbolic links are
    followed, but a folder that contains itself is read once. With the set ``linked``, links to
    folders are not followed, but their names are added to it.
    """
    ignore = Ignore()
    parts = folder.split("/") if folder else []
    for depth in range(len(parts)):
        ignore = _with_rules(fs, root, "/".join(parts[:depth]), ignore)
    # Folders to read, each with the ignore rules and the (device, inode) of all folders above it.
    waiting: list[tuple[str, Ignore, frozenset[tuple[int, int]]]] = [(folder, ignore, frozenset())]
    while waiting:
        at, ignore, above = waiting.pop()
        parent = fs.stat(root / at)
        if parent is None or (parent.device, parent.inode) in above:
            continue
        above |= {(parent.device, parent.inode)}
        ignore = _with_rules(fs, root, at, ignore)
        for entry in fs.list(root / at):
            name = f"{at}/{entry}" if at else entry
            place = root / name
            if entry.startswith((TEMPORARY, SWAPPED)) or is_control_folder(fs, place):
                continue
            identity = fs.stat(place)
            if ignore.match(name, identity is not None and identity.is_dir):
                continue
            if identity is None:  # a dead link, or a file that was deleted meanwhile
                if dead is not None and fs.stat(root / name, follow=False) is not None:
                    dead.add(name)
            elif identity.is_dir and linked is not None and is_link(fs, place):
                linked.add(name)
            elif identity.is_dir:
                waiting.append((name, ignore, above))
            elif identity.is_file and not is_report(fs, root / name):
                yield FoundFile(name, identity)


def is_link(fs: FileSystem, folder: Path) -> bool:
    """Whether a path to a folder is a symbolic link."""
    identity = fs.stat(folder, follow=False)
    return identity is not None and not identity.is_dir


def is_report(fs: FileSystem, path: Path) -> bool:
    """Whether a file is a page that ``mvc report`` wrote."""
    if path.suffix.lower() != REPORT_SUFFIX:
        return False
    with suppress(IoFailed), fs.open_read(path) as file:
        return file.read(0, min(file.size(), len(REPORT_BEGIN))) == REPORT_BEGIN
    return False


def is_control_folder(fs: FileSystem, path: Path) -> bool:
    """Whether a folder belongs to a version control system, or to ``mvc follow`` (.NAME.mvc)."""
    name = path.name.casefold()
    return (
        name in VERSION_CONTROL
        or (name.startswith(".") and name.endswith(".mvc"))
        or (name in MARKERS and fs.stat(path / MARKERS[name], follow=False) is not None)
    )


def _with_rules(fs: FileSystem, root: Path, folder: str, ignore: Ignore) -> Ignore:
    path = root / folder / IGNORE_FILE
    identity = fs.stat(path)
    if identity is None or not identity.is_file:
        return ignore
    text = fs.read_bytes(path, _MAX_IGNORE_FILE).decode("utf-8", "surrogateescape")
    return ignore.within(folder, text.removeprefix("\ufeff").split("\n"))


def is_python_state(entry: FileEntry) -> bool:
    """Whether ``entry`` is a state that was committed from Python, so that it may have no file."""
    return entry.format == "state"


def entry_of(store: Store, name: str, like: FileEntry | None = None) -> FileEntry:
    """The entry that a commit of the file ``name`` would store now. Stores nothing.

    ``like``: an entry. If the file has the same bytes as ``like``, it gets the tensors of ``like``.
    Raises UnknownPath if the file does not exist; SourceChanged if it changes while it is read.
    """
    return entry_at(store.fs, store.root / name, name, like)


def entry_at(
    fs: FileSystem,
    path: Path,
    name: str,
    like: FileEntry | None = None,
    progress: Progress | None = None,
) -> FileEntry:
    """As ``entry_of``, for a file anywhere on disk."""
    from mvc.adapters.hashing import hash_file
    from mvc.adapters.opening import open_file

    if fs.stat(path) is None:
        raise UnknownPath(f"there is no file {printable(str(path))}")
    with open_file(fs, path, name, like=like) as file:
        return hash_file(file.parsed, name, progress)
