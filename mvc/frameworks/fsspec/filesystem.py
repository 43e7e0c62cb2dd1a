"""Repositories as an fsspec file system: ``mvc://REPOSITORY@REVISION/PATH``.

REPOSITORY is the folder of an existing repository, absolute (``mvc:///home/me/models``) or relative
to the current folder. REVISION is a revision as for ``mvc show``, with ``/`` written as ``%2F``.
The default is HEAD.

Any revision can be read. Only branches can be written: closing a file commits it. In a block ``with
fs.transaction``, closing a file does not commit it. The end of the block commits all files in one
commit. If the process dies, uncommitted data is lost. Checkpoints of torch.distributed.checkpoint
are refused: use ``mvc.frameworks.dcp``.
"""

# ruff: noqa: ARG002 (fsspec prescribes the parameters)

from __future__ import annotations

import io
import re
import secrets
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fsspec import AbstractFileSystem
from fsspec.transaction import Transaction
from fsspec.utils import stringify_path
from msgspec import Struct

from mvc.api import CommitOptions, FileEntry, Manifest, Repository, Scratch, VersionFile
from mvc.errors import (
    InvalidName,
    NotARepository,
    NothingToCommit,
    UnknownRevision,
    WrongUsage,
)
from mvc.files import Source, parse
from mvc.frameworks.common.paths import NoSuchFile, check_new_path
from mvc.ids import CommitId
from mvc.names import FOLDER, check_path, printable
from mvc.state import StateFile
from mvc.system import TEMPORARY, FileSystem, WriteFile

_BLOCK = 1 << 20
_CHECKPOINT = re.compile(r"__[0-9]+_[0-9]+\.distcp|(__[0-9]+)?\.metadata(\.tmp)?")
"""File names of torch.distributed.checkpoint."""
_FORM = "write mvc://REPOSITORY@REVISION/PATH, for example mvc://models@main/model.safetensors"


class NotABranch(WrongUsage, PermissionError):
    """The error for writing to a revision that is not a branch."""


@cache
def _opened(root: Path, _device: int, _inode: int) -> Repository:
    """Opens a repository once per process.

    If the folder of a repository is replaced, the new folder has another inode. So the new
    repository is opened, too.
    """
    return Repository.open(root, discover=False)


class VersionPath:
    """A file or folder in a version, parsed from the name ``/REPOSITORY@REVISION/PATH``.

    REPOSITORY ends at the first ``@`` after the path of a repository, or else at the first such
    ``/``. ``path``: empty for the version itself. ``rev``: None if the name has no revision. Raises
    NotARepository, InvalidName.
    """

    def __init__(self, text: str) -> None:
        fs = FileSystem()
        signs = [i for i, char in enumerate(text) if char == "@"]
        slashes = [i for i, char in enumerate(text) if char == "/" and i]
        for end in [*signs, *slashes, len(text)]:
            info = fs.stat(Path(text[:end]) / FOLDER)
            if info is None:
                continue
            root, rest = text[:end], text[end + 1 :]
            rev, _, path = rest.partition("/") if end in signs else ("", "", rest)
            if end in signs and not rev:
                raise InvalidName(f"no revision after '@' in {printable(text)}", hint=_FORM)
            self.version = f"{root}@{rev}" if rev else root
            self.rev = unquote(rev) if rev else None
            self.path = check_path(path.strip("/")) if path.strip("/") else ""
            self.repo = _opened(fs.realpath(Path(root)), info.device, info.inode)
            self._head = self.repo.head()
            return
        raise NotARepository(f"no repository in the path {printable(text)}", hint=_FORM)

    def named(self, path: str) -> str:
        """The full name of another path in the same version."""
        return f"{self.version}/{path}" if path else self.version

    @property
    def name(self) -> str:
        return self.named(self.path)

    @cached_property
    def commit(self) -> CommitId | None:
        """The version; None on a branch without versions.

        Raises UnknownRevision, AmbiguousRevision, InvalidTime, StateForgotten.
        """
        rev = self.rev
        if self._head.commit is None and rev in {None, "HEAD", self._head.branch}:
            return None
        return self.repo.find(rev)

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest(()) if self.commit is None else self.repo.manifest(self.commit)

    @property
    def entry(self) -> FileEntry | None:
        return self.manifest.by_path.get(self.path)

    @property
    def branch(self) -> str:
        """The branch to which a write adds a commit. Raises NotABranch, UnknownRevision."""
        current, rev = self._head.branch, self.rev
        if rev is None or rev == "HEAD":
            if current is None:
                raise NotABranch(
                    "HEAD is detached, so there is no branch to write to",
                    hint="name a branch: mvc://REPOSITORY@BRANCH/PATH",
                )
            return current
        name = rev.removeprefix("heads/")
        if name in {current, *(branch.name for branch in self.repo.refs())}:
            return name
        try:
            self.repo.find(rev)
        except UnknownRevision as error:
            raise UnknownRevision(
                f"there is no branch {printable(name[:100])} to write to",
                hint="create it with 'mvc branch NAME'",
            ) from error
        raise NotABranch(
            f"{printable(rev)} is not a branch, and versions cannot be changed",
            hint="write to a branch, for example mvc://REPOSITORY@main/PATH",
        )

    @property
    def is_folder(self) -> bool:
        """Whether the version has files below this path. The version itself is always a folder."""
        below = f"{self.path}/"
        return not self.path or any(e.path.startswith(below) for e in self.manifest.entries)

    @property
    def absent(self) -> NoSuchFile:
        return NoSuchFile(
            f"{printable(self.version)} has no path {printable(self.path)}",
            hint="'mvc ls REVISION' lists the files of a version",
        )

    def stored(self, path: str) -> FileEntry:
        """The entry of a file in this version, which a commit can record under another path.

        Raises WeightsDropped if the content of the file was dropped.
        """
        assert self.commit is not None, "a version without a commit has no entries"
        return self.repo.open_file(self.commit, path).entry

    def file(self, entry: FileEntry) -> dict[str, Any]:
        content = {"id": entry.content_id.hex(), "format": entry.format}
        return self._info(self.named(entry.path), entry.size, "file") | content

    def folder(self, name: str) -> dict[str, Any]:
        return self._info(name, 0, "directory")

    def _info(self, name: str, size: int, kind: str) -> dict[str, Any]:
        commit = None if self.commit is None else str(self.commit)
        return {"name": name, "size": size, "type": kind, "commit": commit}

    def listed(self) -> list[dict[str, Any]]:
        """The entries of this folder, sorted by name. For a file, only the entry of the file."""
        start = f"{self.path}/" if self.path else ""
        entries: dict[str, dict[str, Any]] = {}
        for entry in self.manifest.entries:
            if entry.path == self.path:
                entries[self.name] = self.file(entry)
            elif entry.path.startswith(start):
                first, slash, _ = entry.path[len(start) :].partition("/")
                name = self.named(start + first)
                entries[name] = self.folder(name) if slash else self.file(entry)
        return [entries[name] for name in sorted(entries)]


class _Planned(Struct, frozen=True):
    """Changes of files on one branch, for one commit.

    ``files``: maps the paths of new files to their contents, and the paths of removed files to
    None. ``message``: the message of the commit.
    """

    repo: Repository
    branch: str
    files: Mapping[str, StateFile | FileEntry | None]
    message: str


def _commit_plans(plans: Iterable[_Planned]) -> None:
    """Makes one commit per branch and repository, unless nothing changes.

    If several plans change a path, the last of these changes is committed.
    """
    groups: dict[tuple[int, str], list[_Planned]] = {}
    for plan in plans:
        groups.setdefault((id(plan.repo), plan.branch), []).append(plan)
    for (_, branch), group in groups.items():
        files = {path: file for plan in group for path, file in plan.files.items()}
        messages = {plan.message for plan in group}
        message = messages.pop() if len(messages) == 1 else f"change {len(files)} paths"
        options = CommitOptions(branch=branch, allow_empty=False)
        with suppress(NothingToCommit):
            group[0].repo.commit(states=files, message=message, options=options)


class Spool(io.RawIOBase):
    """A file that is being written to ``place``. ``close`` commits the file.

    With a ``transaction``, the end of the transaction commits the file instead, and the data remain
    until ``discard``. The file is discarded if an exception leaves its ``with`` block, or if a new
    exception is being handled when the file is closed.
    """

    mode = "wb"

    def __init__(
        self, file: WriteFile, place: VersionPath, branch: str, transaction: OneCommit | None
    ) -> None:
        super().__init__()
        self._file = file
        self._place = place
        self._branch = branch
        self._transaction = transaction
        self._outside = sys.exception()
        self.path = self.name = place.name
        if transaction is not None:
            transaction.spools.append(self)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.position, io.SEEK_END: self._file.size()}
        self._file.position = max(0, start[whence] + offset)
        return self._file.position

    def truncate(self, size: int | None = None, /) -> int:
        at = self._file.position
        self._file.truncate(at if size is None else size)
        self._file.position = at
        return self._file.size()

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        self._file.write(memoryview(data))
        return memoryview(data).nbytes

    def close(self) -> None:
        if self.closed:
            return
        # fsspec closes files without an argument that says whether an error was raised.
        if sys.exception() not in (None, self._outside):
            self.discard()
            return
        super().close()
        path = self._place.path
        with ExitStack() as failed:
            failed.callback(self._file.close)
            files = {path: parse(_Written(self._file), path)}
            plan = _Planned(self._place.repo, self._branch, files, f"write {path}")
            if self._transaction is None:
                _commit_plans([plan])
            else:
                self._transaction.plans.append(plan)
                failed.pop_all()

    def discard(self) -> None:
        super().close()
        self._file.close()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            text = f"{self.name} was not closed, so it was not committed"
            warnings.warn(text, ResourceWarning, 2)
            self.discard()


class OneCommit(Transaction):
    """``with fs.transaction``: the changes in the block become one commit.

    If the block fails, none of the changes is stored.
    """

    def __init__(self, fs: Any, **options: Any) -> None:
        super().__init__(fs, **options)
        self.spools: list[Spool] = []
        self.plans: list[_Planned] = []

    def complete(self, commit: bool = True) -> None:
        """Makes the commit, or discards all changes."""
        self.files.clear()
        spools, plans = self.spools, self.plans
        self.spools, self.plans = [], []
        try:
            if commit:
                _commit_plans(plans)
        finally:
            for spool in spools:
                spool.discard()
            if self.fs is not None:
                super().complete(commit=False)


class MvcFileSystem(AbstractFileSystem):
    """The file system ``mvc://`` for fsspec. File names are absolute, for example
    ``/models@main/a.safetensors``.

    Errors are ``mvc.MvcError``. The error for a missing path is also a FileNotFoundError. The error
    for writing to a revision that is not a branch is also a PermissionError.
    """

    protocol = "mvc"
    root_marker = "/"
    transaction_type = OneCommit

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        text = str(stringify_path(path))
        for start in (f"{cls.protocol}://", f"{cls.protocol}::"):
            text = text.removeprefix(start)
        return (text if text.startswith("/") else f"{FileSystem().cwd()}/{text}").rstrip("/") or "/"

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Size in bytes, type (``file`` or ``directory``) and commit. For a file, also the id of
        the content and the file format.
        """
        place = self._place(path)
        if place.entry is not None:
            return place.file(place.entry)
        if not place.is_folder:
            raise place.absent
        return place.folder(place.name)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The entries of a folder, sorted by name. For a file, only the entry of the file."""
        place = self._place(path)
        entries = place.listed()
        if not entries and place.path:
            raise place.absent
        return entries if detail else [entry["name"] for entry in entries]

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether the version has this path; False if the version does not exist."""
        try:
            place = self._place(path)
            return place.entry is not None or place.is_folder
        except (NotARepository, UnknownRevision):
            return False

    def ukey(self, path: str) -> str:
        """A text that changes whenever the content changes."""
        info_ = self.info(path)
        return str(info_.get("id") or info_["commit"])

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **_: Any
    ) -> io.RawIOBase:
        if mode == "rb":
            return self._open_read(self._place(path))
        if mode not in {"wb", "xb"}:
            raise WrongUsage(
                f"mode is {mode!r}: files of a version can only be replaced", hint="use 'wb'"
            )
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        return self._open_write(self._place(path), autocommit)

    def _open_read(self, place: VersionPath) -> VersionFile:
        if place.commit is None or place.entry is None:
            if place.is_folder:
                raise IsADirectoryError(f"a folder: {place.name}")
            _refuse_checkpoint(place.path)
            raise place.absent
        file = place.repo.open_file(place.commit, place.path)
        file.path = file.name = place.name
        return file

    def _open_write(self, place: VersionPath, autocommit: bool) -> Spool:
        branch = place.branch
        _refuse_checkpoint(place.path)
        check_new_path(place.manifest, place.path)
        file = _unnamed(place.repo.scratch("staging"))
        return Spool(file, place, branch, None if autocommit else self.transaction)

    def rm_file(self, path: str) -> None:
        """Commits the removal of this path."""
        self.rm(path)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: Any = None) -> None:
        """Commits the removal of these paths. With ``recursive``, folders are removed, too."""
        names = [path] if isinstance(path, str) else path
        self._apply([p for name in names for p in self._removals(name, recursive, maxdepth)])

    def _removals(self, path: str, recursive: bool, maxdepth: int | None) -> Iterator[_Planned]:
        message = f"remove {self._place(path).path or 'everything'}"
        for name in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            place = self._place(name)
            branch = place.branch
            if place.entry is not None:
                yield _Planned(place.repo, branch, {place.path: None}, message)
            elif not place.is_folder:
                raise place.absent
            elif not recursive:
                raise IsADirectoryError(f"a folder: {place.name}")

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: Any = None, **kwargs: Any
    ) -> None:
        """Commits the renaming of a file or folder."""
        source, target = self._place(path1), self._place(path2)
        branch = source.branch
        if source.repo is not target.repo or branch != target.branch:
            self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
            self.rm(path1, recursive=recursive, maxdepth=maxdepth)
            return
        moved = {
            entry.path: target.path + entry.path.removeprefix(source.path)
            for entry in source.manifest.entries
            if source.path and f"{entry.path}/".startswith(f"{source.path}/")
        }
        if not moved:
            raise source.absent
        check_new_path(Manifest(()), target.path)
        remaining = Manifest(e for e in source.manifest.entries if e.path not in moved)
        files: dict[str, FileEntry | None] = dict.fromkeys(moved)
        for path, new in moved.items():
            check_new_path(remaining, new)
            files[new] = source.stored(path)
        message = f"move {source.path} to {target.path}"
        self._apply([_Planned(source.repo, branch, files, message)])

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Commits a copy of the file ``path1`` as ``path2``. ``path1`` may be in any version."""
        source, target = self._place(path1), self._place(path2)
        branch = target.branch
        if source.entry is None and source.is_folder:
            return  # a folder exists only if it has files
        if source.entry is None or source.repo is not target.repo:
            with self.open(path1, "rb") as old, self.open(path2, "wb") as new:
                while data := old.read(_BLOCK):
                    new.write(data)
            return
        check_new_path(target.manifest, target.path)
        files = {target.path: source.stored(source.path)}
        message = f"copy {source.path} to {target.path}"
        self._apply([_Planned(target.repo, branch, files, message)])

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Creates nothing, because a folder exists only if it has files.

        Raises FileExistsError if the path exists, and NotABranch if the branch cannot be written.
        """
        self.makedirs(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        _ = self._place(path).branch

    def _place(self, path: str) -> VersionPath:
        return VersionPath(self._strip_protocol(path))

    def _apply(self, plans: Iterable[_Planned]) -> None:
        self.transaction.plans.extend(plans) if self._intrans else _commit_plans(plans)


def _refuse_checkpoint(path: str) -> None:
    if _CHECKPOINT.fullmatch(path.rpartition("/")[2]):
        raise WrongUsage(
            "torch.distributed.checkpoint cannot use mvc:// paths: "
            "use MvcWriter and MvcReader of mvc.frameworks.dcp",
            hint="dcp.save(state, storage_writer=MvcWriter(repo)), "
            "dcp.load(state, storage_reader=MvcReader(repo, rev))",
        )


def _unnamed(scratch: Scratch) -> WriteFile:
    """A new file without a name. It is deleted when it is closed, or when the process dies."""
    fs, folder = scratch.fs, scratch.folder
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    file = fs.open_write(path, create=True, exclusive=True, within=folder)
    fs.unlink(path, missing_ok=True, within=folder)
    return file


class _Written(Source):
    """Reads a file that is still open for writing, so that the file can be parsed."""

    def __init__(self, file: WriteFile) -> None:
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)
