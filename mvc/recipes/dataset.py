"""Stores each data set of a training as a version with the tag ``data/NAME``.

A *stored* data set is a version that contains the files of the data set. A *reference* is a version
that contains only ``reference.json``: the path of the data set, and the size and hash of each file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from blake3 import blake3
from msgspec import Meta, Struct

from mvc.api import CommitOptions, FileOptions, Repository
from mvc.documents import decoded, encoded
from mvc.errors import (
    CannotRecord,
    CannotRetrain,
    DamagedData,
    InvalidName,
    NothingToCommit,
    UnknownPath,
    WrongUsage,
)
from mvc.files import sorted_files_in
from mvc.ids import CommitId
from mvc.limits import MAX_NEEDS, MIB
from mvc.names import BY_REFERENCE, BY_VALUE, DATA, DATA_SET, check_path, printable
from mvc.recipes.recipe import Data, is_data_name
from mvc.state import StateFile
from mvc.system import FileIdentity, FileSystem
from mvc.types import PathName, Progress

DataArgument: TypeAlias = str | PathLike[str] | Mapping[str, Any] | None
"""The data of a training: a file or folder, or a mapping from names of data sets to files or
folders.
"""

_REFERENCE = "reference.json"
_SCHEMA = "mvc.reference/1"
_MOST = 64 * MIB  # maximum size of reference.json


class DataSet(Struct, frozen=True):
    """A data set. ``nbytes``: total size of its files.

    ``source``: for a reference, the path of the data set; None for a stored data set.
    """

    name: str
    version: CommitId
    files: tuple[str, ...]
    nbytes: int
    source: str | None = None


class _File(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=0)]
    hash: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Reference(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``reference.json``. ``source``: the path of the data set. ``files``: maps the
    name of each file to the file's size and hash.
    """

    source: str
    files: dict[str, _File]

    @classmethod
    def decode(cls, data: bytes) -> _Reference:
        """Raises ValueError, InvalidName."""
        reference = decoded(data, cls, _SCHEMA)
        for name in reference.files:
            check_path(name)
        if not reference.files or not Path(reference.source).is_absolute():
            raise ValueError("a reference needs at least one file and an absolute path")
        return reference


# -- adding and showing ------------------------------------------------------------------------


def add_data(
    repo: Repository,
    source: PathName,
    *,
    name: str | None = None,
    reference: bool = False,
    message: str = "",
    progress: Progress | None = None,
) -> DataSet:
    """Stores a file or a folder as a data set, under the tag ``data/NAME``.

    ``name`` is by default the name of the file or folder. With ``reference``, mvc stores the path
    and the hash of each file, but no content. If the data set has not changed, nothing is stored.
    Raises InvalidName, UnknownPath, WrongUsage.
    """
    path = Path(source)
    name = path.name if name is None else name
    if not is_data_name(name):
        raise InvalidName(
            f"{printable(name)!r} is not a valid name for a data set",
            hint="use letters, digits and . _ + -",
        )
    fs = FileSystem()
    if not reference:
        return _publish(repo, name, _files(fs, path), message=message, progress=progress)
    source_path = fs.realpath(path)
    hashes = dict(sorted(_hashed(fs, source_path, progress).items()))
    recorded = encoded(_Reference(str(source_path), hashes), _SCHEMA)
    return _publish(
        repo, name, {_REFERENCE: StateFile.of_bytes(recorded)}, message=message, kind=BY_REFERENCE
    )


def _publish(
    repo: Repository,
    name: str,
    files: Mapping[str, Path | StateFile],
    *,
    message: str = "",
    kind: str = BY_VALUE,
    progress: Progress | None = None,
) -> DataSet:
    with suppress(NothingToCommit):
        repo.commit(
            states=files,
            message=message or f"data set {name}",
            params={DATA_SET: kind},
            files=FileOptions(opaque=True) if kind == BY_VALUE else None,
            options=CommitOptions(tag=DATA + name, allow_empty=False, progress=progress),
        )
    return data_set(repo, name)


def data_set(repo: Repository, name: str) -> DataSet:
    """The newest version of the data set ``name``. Raises UnknownPath if there is none."""
    known = _versions(repo)
    if name not in known:
        names = ", ".join(list(known)[:10])
        raise UnknownPath(
            f"there is no data set {printable(name)}",
            hint=f"available: {names}" if names else "add one with 'mvc import --data'",
        )
    return of_version(repo, name, known[name])


def data_sets(repo: Repository) -> list[DataSet]:
    """The newest version of every data set, sorted by name."""
    return [of_version(repo, name, version) for name, version in _versions(repo).items()]


def _versions(repo: Repository) -> dict[str, CommitId]:
    tags = (tag for tag in repo.refs("tag") if tag.name.startswith(DATA))
    return {tag.name.removeprefix(DATA): tag.commit for tag in tags}


def of_version(repo: Repository, name: str, version: CommitId) -> DataSet:
    """The files and the size of a data set in a version. Raises StateForgotten, DamagedData."""
    reference = _reference(repo, version)
    if reference is None:
        entries = repo.manifest(version).entries
        files, sizes = [e.path for e in entries], [e.size for e in entries]
    else:
        files, sizes = list(reference.files), [f.size for f in reference.files.values()]
    source = None if reference is None else reference.source
    return DataSet(name, version, tuple(files), nbytes=sum(sizes), source=source)


# -- in a training -----------------------------------------------------------------------------


class Used(Struct, frozen=True):
    """The data sets of a training. ``places``: maps the name of each data set to its path on this
    machine.

    ``argument``: the value that the training function receives as ``data``. ``seen``: the size and
    modification time of each file at the call of ``used``.
    """

    data: tuple[Data, ...]
    places: Mapping[str, Path]
    argument: Any
    seen: Mapping[Path, FileIdentity]
    fs: FileSystem

    def check_unchanged(self) -> None:
        """Raises CannotRecord if a file was modified after the call of ``used``."""
        for path, before in self.seen.items():
            after = self.fs.stat(path)
            if after is None or (after.size, after.mtime_ns) != (before.size, before.mtime_ns):
                raise CannotRecord(
                    f"{printable(str(path))} changed during the training",
                    hint="train again, and do not modify the data meanwhile",
                )


def used(repo: Repository, argument_: DataArgument) -> Used:
    """Stores the new and changed data sets of a training.

    If a data set is a reference, stores nothing, but compares the files with the reference. Raises
    CannotRecord if the files differ.
    """
    named: dict[str, Path] = {}
    if isinstance(argument_, Mapping):
        named = {name: Path(path) for name, path in argument_.items()}
    elif argument_ is not None:
        named = {Path(argument_).resolve().name: Path(argument_)}
    if len(named) >= MAX_NEEDS:  # one of MAX_NEEDS is for the initial weights
        raise CannotRecord(
            f"a training has at most {MAX_NEEDS - 1} data sets",
            hint="put the files into one folder, which is one data set",
        )
    fs, data, seen = FileSystem(), [], dict[Path, FileIdentity]()
    known = _versions(repo)
    for name, path in named.items():
        if not is_data_name(name):
            raise CannotRecord(
                f"{printable(name)!r} is not a valid name for a data set",
                hint="name the data set: data={'NAME': PATH}, with letters, digits and . _ + -",
            )
        files = _files(fs, path)
        seen.update((file, before) for file in files.values() if (before := fs.stat(file)))
        version = known.get(name)
        reference = None if version is None else _reference(repo, version)
        if version is None or reference is None:
            version = _publish(repo, name, files).version
        else:
            try:
                _compare(fs, name, reference.files, files)
            except CannotRetrain as error:
                hint = f"mvc import --data --reference --name {name} {path}"
                raise CannotRecord(error.message, hint=hint) from error
        file = path.name if set(files.values()) == {path} else ""
        data.append(Data(name, version, file))
    argument: Any = named if isinstance(argument_, Mapping) else next(iter(named.values()), None)
    return Used(tuple(data), named, argument, seen=seen, fs=fs)


def place(repo: Repository, data: Data, folder: Path) -> Path:
    """Makes the files of a recorded data set available, and returns the path of the data set.

    A stored data set is checked out to ``folder``. The files of a reference are used in place, and
    are compared with their hashes. Raises CannotRetrain for a missing or changed file.
    """
    fs, reference = FileSystem(), _reference(repo, data.version)
    if reference is None:
        fs.make_dirs(folder)
        repo.checkout(data.version, to=f"{folder}/", everything=True)
        return folder / data.file if data.file else folder
    source = Path(reference.source)
    if fs.stat(source) is None:
        raise CannotRetrain(
            f"the data set {data.name} is missing: there is no {printable(str(source))}",
            hint="restore it at that path",
        )
    _compare(fs, data.name, reference.files, _files(fs, source))
    return source


# -- files and their hashes --------------------------------------------------------------------


def _files(fs: FileSystem, path: Path) -> dict[str, Path]:
    """Maps the name of each file in a data set to the file's path.

    ``path``: the folder or file that is the data set.
    """
    identity = fs.stat(path)
    if identity is None:
        raise UnknownPath(f"there is no file or folder {printable(str(path))}")
    if not identity.is_dir:
        return {check_path(path.name): path}
    files = {check_path(f.name): path / f.name for f in sorted_files_in(fs, path)}
    if not files:
        raise WrongUsage(f"{printable(str(path))} contains no files")
    return files


def _hashed(fs: FileSystem, path: Path, progress: Progress | None) -> dict[str, _File]:
    files, done = _files(fs, path), 0
    hashes = {}
    for name, file in files.items():
        hashes[name] = _hash(fs, file)
        done += hashes[name].size
        if progress is not None:
            progress(done, 0, name)
    return hashes


def _hash(fs: FileSystem, path: Path) -> _File:
    hasher = blake3()
    with fs.open_read(path) as file:
        size = file.size()
        for at in range(0, size, MIB):
            hasher.update(file.read(at, min(MIB, size - at)))
    return _File(size, hasher.hexdigest())


def _compare(
    fs: FileSystem, name: str, recorded: Mapping[str, _File], files: Mapping[str, Path]
) -> None:
    def changed(file: str, problem: str) -> CannotRetrain:
        return CannotRetrain(
            f"the data set {name} has changed: {printable(file)} {problem}",
            hint="restore the files that the reference names",
        )

    for file, before in recorded.items():
        if file not in files:
            raise changed(file, "is missing")
        if _hash(fs, files[file]) != before:
            raise changed(file, "has other content")
    for file in files.keys() - recorded.keys():
        raise changed(file, "is new")


def outside(repo: Repository, data: Iterable[Data]) -> list[str]:
    """The names of the references in ``data``: data sets whose files mvc does not store."""
    return [one.name for one in data if _is_reference(repo, one.version)]


def _is_reference(repo: Repository, version: CommitId) -> bool:
    return repo.version(version).params.get(DATA_SET) == BY_REFERENCE


def _reference(repo: Repository, version: CommitId) -> _Reference | None:
    """The reference in a version; None for a stored data set. Raises DamagedData."""
    if not _is_reference(repo, version):
        return None
    try:
        with repo.open_file(version, _REFERENCE) as file:
            return _Reference.decode(file.read(_MOST))
    except (ValueError, InvalidName, UnknownPath):
        raise DamagedData(f"version {version.short} has no valid reference to a data set") from None
