"""Data sets: versions of files under tags ``data/NAME``, or references with the hash of each file.

A stored data set is a version like any other: its files are content-addressed, and what did not
change is not stored again. A reference is a version with one file that names a path or a URL, and
the size and hash of every file there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from blake3 import blake3
from msgspec import Struct

from mvc.errors import (
    CannotRecord,
    CannotRetrain,
    DamagedData,
    InvalidName,
    NothingToCommit,
    UnknownPath,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.io.handles import FileIdentity
from mvc.limits import MAX_NEEDS, MIB
from mvc.model.names import DATA, check_path, printable
from mvc.recipes.recipe import Data, is_data_name
from mvc.repo.checkout.checkout import write_files
from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import Change, CommitRequest
from mvc.repo.content.contents import in_memory
from mvc.repo.content.sources import open_file
from mvc.repo.context import Context
from mvc.repo.lookup import commits, manifests
from mvc.repo.lookup.refs import TAG, tags
from mvc.repo.worktree.worktree import sound_files_in
from mvc.types import Progress

__all__ = ["DataSet", "Given", "Used", "add", "data_set", "data_sets", "outside", "place", "used"]

Given: TypeAlias = str | PathLike[str] | Mapping[str, Any] | None
"""A file or folder, or several by the names of their data sets."""

_REFERENCE = "reference.json"
_SCHEMA = "mvc.reference/1"
_KIND = "mvc.data"  # the param of a data set's version
_MOST = 64 * MIB  # bytes of a reference
_URL = re.compile(r"https?://[!-~]{1,2000}")
_HEX = re.compile(r"[0-9a-f]{64}")


class DataSet(Struct, frozen=True):
    """``files`` have so many ``nbytes``. ``source``: the path or URL of a reference, else None."""

    name: str
    version: CommitId
    files: tuple[str, ...]
    nbytes: int
    source: str | None = None


class _File(Struct, frozen=True):
    size: int
    hash: str


# -- adding and showing ------------------------------------------------------------------------


def add(
    context: Context,
    source: str | PathLike[str],
    name: str | None = None,
    *,
    reference: bool = False,
    message: str = "",
    progress: Progress | None = None,
) -> DataSet:
    """Stores a file or the files of a folder as the newest version of a data set.

    ``name`` is by default that of the file or folder. With ``reference`` only the place and the
    hashes are kept; a URL (http, https) can only be referred to. Nothing is stored if the data set
    has not changed. Raises InvalidName, UnknownPath, WrongUsage.
    """
    url = isinstance(source, str) and _URL.fullmatch(source) is not None
    path = Path(str(source).partition("?")[0])
    name = path.name if name is None else name
    if not is_data_name(name):
        raise InvalidName(
            f"not a name for a data set: {printable(name)!r}",
            hint="use letters, digits and . _ + -",
        )
    if url and not reference:
        raise WrongUsage("a URL can only be added by reference", hint="add --reference")
    fs = context.store.fs
    if reference:
        place = str(source) if url else str(fs.realpath(path))
        found = _of_url(place, path.name) if url else _hashed(fs, Path(place), progress)
        document = {
            "schema": _SCHEMA,
            "source": place,
            "files": {n: [each.size, each.hash] for n, each in sorted(found.items())},
        }
        data = json.dumps(document, indent=1).encode() + b"\n"
        with fs.temporary_folder() as folder:
            fs.write_atomic(folder / _REFERENCE, data)
            return _publish(context, name, {_REFERENCE: folder / _REFERENCE}, message, True, None)
    return _publish(context, name, _files(fs, path), message, False, progress)


def _publish(
    context: Context,
    name: str,
    files: Mapping[str, Path],
    message: str,
    reference: bool,
    progress: Progress | None,
) -> DataSet:
    tag, fs = DATA + name, context.store.fs
    request = CommitRequest(
        [Change(n, partial(open_file, fs, path, n)) for n, path in files.items()],
        message or f"data set {name}",
        params={_KIND: "reference" if reference else "stored"},
        tag=tag,
    )
    with suppress(NothingToCommit):
        commit(context, request, progress)
    return data_set(context, name)


def data_set(context: Context, name: str) -> DataSet:
    """The newest version of a data set. Raises UnknownPath."""
    context.fresh()
    found = context.store.ref(TAG + DATA + name)
    if not isinstance(found, CommitId):
        names = ", ".join(each.name.removeprefix(DATA) for each in _tags(context)[:10])
        raise UnknownPath(
            f"there is no data set {printable(name)}",
            hint=f"there is: {names}" if names else "add one with 'mvc data add'",
        )
    return of_version(context, name, found)


def data_sets(context: Context) -> list[DataSet]:
    """The newest version of every data set, by name."""
    return [of_version(context, tag.name.removeprefix(DATA), tag.commit) for tag in _tags(context)]


def _tags(context: Context) -> list[Any]:
    return [tag for tag in tags(context) if tag.name.startswith(DATA)]


def of_version(context: Context, name: str, version: CommitId) -> DataSet:
    """What a version of a data set holds. Raises StateForgotten, DamagedData."""
    if not _is_reference(context, version):
        entries = manifests.of_commit(context, version).entries
        return DataSet(name, version, tuple(e.path for e in entries), sum(e.size for e in entries))
    source, files = _reference(context, version)
    return DataSet(name, version, tuple(files), sum(f.size for f in files.values()), source)


# -- in a training -----------------------------------------------------------------------------


class Used(Struct, frozen=True):
    """The data sets of a training. ``places``: where each lies on this machine, by name.

    ``argument``: what the service is given as ``data``.
    """

    data: tuple[Data, ...]
    places: Mapping[str, Path]
    argument: Any
    seen: Mapping[Path, FileIdentity]
    fs: FileSystem

    def check_unchanged(self) -> None:
        """Raises CannotRecord if a file was written to since ``used``."""
        for path, before in self.seen.items():
            after = self.fs.stat(path)
            if after is None or (after.size, after.mtime_ns) != (before.size, before.mtime_ns):
                raise CannotRecord(
                    f"{printable(str(path))} changed during the training",
                    hint="train again on data that nothing writes to",
                )


def used(context: Context, given: Given) -> Used:
    """Stores what changed of the data sets ``given``, or compares it with its reference."""
    named: dict[str, Path] = {}
    if isinstance(given, Mapping):
        named = {name: Path(path) for name, path in given.items()}
    elif given is not None:
        named = {Path(given).resolve().name: Path(given)}
    if len(named) >= MAX_NEEDS:  # the base is one of them
        raise CannotRecord(
            f"a training has at most {MAX_NEEDS - 1} data sets",
            hint="put the files into one folder: its files are one data set",
        )
    fs, data, seen = context.store.fs, [], dict[Path, FileIdentity]()
    tagged = {tag.name for tag in _tags(context)}
    for name, path in named.items():
        if not is_data_name(name):
            raise CannotRecord(
                f"the data set {printable(name)!r} cannot be called so",
                hint="name it: data={'NAME': PATH}, with letters, digits and . _ + -",
            )
        files = _files(fs, path)
        seen.update((file, before) for file in files.values() if (before := fs.stat(file)))
        old = data_set(context, name) if DATA + name in tagged else None
        if old is not None and old.source is not None:
            try:
                _compare(fs, name, _reference(context, old.version)[1], files)
            except CannotRetrain as error:
                hint = f"mvc data add --reference --name {name} {path}"
                raise CannotRecord(error.message, hint=hint) from error
            version = old.version
        else:
            version = _publish(context, name, files, "", False, None).version
        file = path.name if set(files.values()) == {path} else ""
        data.append(Data(name, version, file))
    argument: Any = named if isinstance(given, Mapping) else next(iter(named.values()), None)
    return Used(tuple(data), named, argument, seen, fs)


def place(context: Context, data: Data, folder: Path) -> Path:
    """Where a recorded data set lies now: written into ``folder``, or where its reference leads.

    Everything is compared with its hash. Raises CannotRetrain, which names the file that is gone or
    has changed.
    """
    fs = context.store.fs
    if not _is_reference(context, data.version):
        manifest = manifests.of_commit(context, data.version)
        fs.make_dirs(folder)
        write_files(
            context, None, folder, {e.path: e for e in manifest.entries}, None, planned=False
        )
        return folder / data.file if data.file else folder
    source, files = _reference(context, data.version)
    if _URL.fullmatch(source):
        fs.make_dirs(folder)
        ((file, wanted),) = files.items()
        _download(fs, data.name, source, folder / file, wanted)
        return folder / data.file if data.file else folder
    if fs.stat(Path(source)) is None:
        raise CannotRetrain(
            f"the data set {data.name} is gone: there is no {printable(source)}",
            hint="put it back there",
        )
    _compare(fs, data.name, files, _files(fs, Path(source)))
    return Path(source)


# -- files and their hashes --------------------------------------------------------------------


def _files(fs: FileSystem, path: Path) -> dict[str, Path]:
    """The files of a folder, or one file, by their names in the data set."""
    identity = fs.stat(path)
    if identity is None:
        raise UnknownPath(f"there is no file or folder {printable(str(path))}")
    if not identity.is_dir:
        return {check_path(path.name): path}
    found = {check_path(f.name): path / f.name for f in sound_files_in(fs, path)}
    if not found:
        raise WrongUsage(f"{printable(str(path))} holds no files")
    return found


def _hashed(fs: FileSystem, path: Path, progress: Progress | None) -> dict[str, _File]:
    files, done = _files(fs, path), 0
    found = {}
    for name, file in files.items():
        found[name] = _hash(fs, file)
        done += found[name].size
        if progress is not None:
            progress(done, 0, name)
    return found


def _hash(fs: FileSystem, path: Path) -> _File:
    with fs.open_read(path) as file:
        return _digest(lambda at: file.read(at, min(MIB, max(file.size() - at, 0))))


def _digest(read: Callable[[int], bytes]) -> _File:
    hasher, at = blake3(), 0
    while part := read(at):
        hasher.update(part)
        at += len(part)
    return _File(at, hasher.hexdigest())


def _compare(
    fs: FileSystem, name: str, wanted: Mapping[str, _File], files: Mapping[str, Path]
) -> None:
    def changed(file: str, how: str) -> CannotRetrain:
        return CannotRetrain(
            f"the data set {name} has changed: {printable(file)} {how}",
            hint="put back the files that the reference names",
        )

    for file, before in wanted.items():
        if file not in files:
            raise changed(file, "is gone")
        if _hash(fs, files[file]) != before:
            raise changed(file, "is another one")
    for file in files.keys() - wanted.keys():
        raise changed(file, "is new")


def _of_url(url: str, name: str) -> dict[str, _File]:
    parts = _parts(url)
    return {check_path(name or "data"): _digest(lambda _: next(parts, b""))}


def _download(fs: FileSystem, name: str, url: str, path: Path, wanted: _File) -> None:
    hasher, size = blake3(), 0
    with fs.open_write(path, create=True) as file:
        for part in _parts(url):
            size += len(part)
            if size > wanted.size:
                break
            hasher.update(part)
            file.write(part)
    if size != wanted.size or hasher.hexdigest() != wanted.hash:
        raise CannotRetrain(
            f"the data set {name} has changed: {url} is another file",
            hint="find the file as it was, and add it again",
        )


def _parts(url: str) -> Iterator[bytes]:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=60) as answer:  # noqa: S310 - http or https, by _URL
            while part := answer.read(MIB):
                yield part
    except (URLError, OSError) as error:
        raise CannotRetrain(f"{url} cannot be read: {error}") from error


def outside(context: Context, data: Iterable[Data]) -> list[str]:
    """The names of those data sets of a recipe that are references: mvc does not hold them."""
    return [each.name for each in data if _is_reference(context, each.version)]


def _is_reference(context: Context, version: CommitId) -> bool:
    return commits.get(context, version).params.get(_KIND) == "reference"


def _reference(context: Context, version: CommitId) -> tuple[str, dict[str, _File]]:
    """Where a reference leads, and the files there."""
    entry = manifests.of_commit(context, version).by_path.get(_REFERENCE)
    wrong = DamagedData(f"the version {version.short} is no reference to a data set")
    if entry is None or entry.format != "opaque" or entry.size > _MOST:
        raise wrong
    try:
        found = json.loads(b"".join(in_memory(context, entry).values()))
        if set(found) != {"schema", "source", "files"} or found["schema"] != _SCHEMA:
            raise wrong
        files = {check_path(name): _File(*each) for name, each in found["files"].items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, InvalidName):
        raise wrong from None
    sound = all(
        type(f.size) is int and f.size >= 0 and isinstance(f.hash, str) and _HEX.fullmatch(f.hash)
        for f in files.values()
    )
    source = found["source"]
    absolute = isinstance(source, str) and (_URL.fullmatch(source) or Path(source).is_absolute())
    if not (sound and files and absolute) or (_URL.fullmatch(source) and len(files) != 1):
        raise wrong
    return source, files
