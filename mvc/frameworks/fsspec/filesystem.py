"""Repositories as an fsspec file system: ``mvc://REPOSITORY@REVISION/PATH``.

REPOSITORY is a folder, absolute (``mvc:///home/me/models``) or relative to the current folder; it
ends at the first ``@`` or ``/`` to whose left a repository is. REVISION is anything that
``mvc rev-parse`` takes, a ``/`` in it written as ``%2F``; without one HEAD is meant.

Any revision can be read; a branch can be written, and what is written becomes a commit: a
file when it is closed, everything in ``with fs.transaction`` at its end. Until then it is in a
temporary file without a name, so nothing is left of it when the process dies. Checkpoints of
torch.distributed.checkpoint are refused: ``mvc.frameworks.dcp`` is for them.
"""

# ruff: noqa: ARG002 (fsspec prescribes what its methods take)

from __future__ import annotations

import io
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from fsspec import AbstractFileSystem
from fsspec.transaction import Transaction
from fsspec.utils import stringify_path
from msgspec import Struct, field

from mvc.adapters.files.detect import parse_file, suspicion
from mvc.adapters.parsed import ParsedContent, ParsedFile, ParsedTensor
from mvc.api.repository import Repository
from mvc.errors import (
    BadModelFile,
    InvalidName,
    NotARepository,
    NothingToCommit,
    UnknownPath,
    UnknownRevision,
    WrongUsage,
)
from mvc.frameworks.common.staging import Readable, check_new_path, scratch
from mvc.frameworks.fsspec.parts import PartsFile, entry_parts, place
from mvc.ids import CommitId
from mvc.io.files import FileSystem, WriteFile
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.names import check_path, printable
from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import Change, CommitRequest
from mvc.repo.content.contents import skeleton_of
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.refs import BRANCH, HEAD, head
from mvc.repo.queries import note
from mvc.store.store import FOLDER

__all__ = ["MvcFileSystem"]

_BLOCK = 1 << 20
_CHECKPOINT = re.compile(r"__[0-9]+_[0-9]+\.distcp|(__[0-9]+)?\.metadata(\.tmp)?")
"""What torch.distributed.checkpoint calls its files."""
_FORM = "write mvc://REPOSITORY@REVISION/PATH, for example mvc://models@main/model.safetensors"


class NoSuchFile(UnknownPath, FileNotFoundError):
    """A version does not hold this path. A FileNotFoundError, as file systems raise."""


class NotABranch(WrongUsage, PermissionError):
    """Only a branch can be written to."""


class Location(Struct, frozen=True):
    """``path`` is empty for the version, ``rev`` None if unwritten; names begin with ``prefix``."""

    root: Path
    rev: str | None
    path: str
    prefix: str

    def name(self, path: str) -> str:
        """The full name of a path of the same version."""
        return f"{self.prefix}/{path}" if path else self.prefix


class Opened(Struct):
    """A repository that stays open until the process ends. Writers hold ``lock``."""

    repo: Repository
    lock: threading.RLock = field(default_factory=threading.RLock)


_opened: dict[tuple[Path, int, int], Opened] = {}
_opening = threading.Lock()


def opened(root: Path) -> Opened:
    """The repository in ``root``. It is opened once a process, and again if it was replaced."""
    fs = FileSystem()
    real = fs.realpath(root)
    identity = fs.stat(real / FOLDER)
    if identity is None:
        raise NotARepository(f"not a repository: {printable(str(root))}", hint=_FORM)
    key = real, identity.device, identity.inode
    with _opening:
        if key not in _opened:
            _opened[key] = Opened(Repository.open(real, discover=False))
        return _opened[key]


def absolute(path: str) -> str:
    """``path`` as an absolute path."""
    return (path if path.startswith("/") else f"{FileSystem().cwd()}/{path}").rstrip("/") or "/"


def locate(text: str) -> Location:
    """Takes an absolute path apart. Raises NotARepository, InvalidName."""
    fs = FileSystem()
    signs = [i for i, char in enumerate(text) if char == "@"]
    slashes = [i for i, char in enumerate(text) if char == "/" and i]
    for end in [*signs, *slashes, len(text)]:
        if fs.stat(Path(text[:end]) / FOLDER) is None:
            continue
        root, rest = text[:end], text[end + 1 :]
        rev, _, path = rest.partition("/") if end in signs else ("", "", rest)
        if end in signs and not rev:
            raise InvalidName(f"no revision behind '@' in {printable(text)}", hint=_FORM)
        path = check_path(path.strip("/")) if path.strip("/") else ""
        prefix = f"{root}@{rev}" if rev else root
        return Location(Path(root), unquote(rev) if rev else None, path, prefix)
    raise NotARepository(f"no repository in the path {printable(text)}", hint=_FORM)


def version_of(here: Opened, location: Location) -> tuple[CommitId | None, Manifest]:
    """The version that a location names; none on a branch without versions.

    Raises UnknownRevision, AmbiguousRevision, InvalidTime, StateForgotten.
    """
    at = head(here.repo.context)
    if at.commit is None and location.rev in {None, HEAD, at.branch}:
        return None, manifests.EMPTY
    commit = here.repo.find(location.rev or HEAD)
    return commit, manifests.of_commit(here.repo.context, commit)


def branch_of(here: Opened, location: Location) -> str:
    """The branch that writing to a location moves. Raises NotABranch, UnknownRevision."""
    at = head(here.repo.context)
    if location.rev in {None, HEAD}:
        if at.branch is None:
            raise NotABranch(
                "HEAD is at a version and on no branch, so there is nothing to write to",
                hint="name a branch: mvc://REPOSITORY@BRANCH/PATH",
            )
        return at.branch
    rev = str(location.rev)
    name = rev.removeprefix(BRANCH)
    if name == at.branch or isinstance(here.repo.context.store.ref(BRANCH + name), CommitId):
        return name
    try:
        here.repo.find(rev)
    except UnknownRevision as error:
        raise UnknownRevision(
            f"there is no branch {printable(name[:100])} to write to",
            hint="make it with 'mvc branch NAME'",
        ) from error
    raise NotABranch(
        f"{printable(rev)} is not a branch: versions do not change",
        hint="write to a branch, for example mvc://REPOSITORY@main/PATH",
    )


class _Planned(Struct, frozen=True):
    """Changes of one branch that go into one commit, and its message."""

    opened: Opened
    branch: str
    changes: tuple[Change, ...]
    message: str


def _commit_plans(plans: Iterable[_Planned]) -> None:
    """One commit for each branch of each repository; none where nothing would change.

    Of several changes of a path the last one counts.
    """
    groups: dict[tuple[int, str], list[_Planned]] = {}
    for plan in plans:
        groups.setdefault((id(plan.opened), plan.branch), []).append(plan)
    for group in groups.values():
        here, branch = group[0].opened, group[0].branch
        changes = {change.path: change for plan in group for change in plan.changes}
        _check_apart({path for path, change in changes.items() if change.open is not None})
        said = {plan.message for plan in group}
        message = said.pop() if len(said) == 1 else f"change {len(changes)} paths"
        request = CommitRequest(tuple(changes.values()), message, branch=branch)
        with here.lock, suppress(NothingToCommit):
            commit(here.repo.context, request)


def _check_apart(paths: set[str]) -> None:
    """Raises WrongUsage if one of the paths would be a folder above another."""
    for path in paths:
        for above in paths.intersection(map(str, PurePosixPath(path).parents)):
            raise WrongUsage(f"{above} is to be a file, and a folder for {path}")


class Spool(io.RawIOBase):
    """A file that is being written. When it is closed, ``plan`` is committed.

    With a ``transaction`` the end of that commits it; what was written stays there until
    ``discard``. An exception that leaves the ``with`` block, or under which the file is closed,
    discards it.
    """

    mode = "wb"

    def __init__(
        self, file: WriteFile, name: str, plan: _Planned, transaction: OneCommit | None
    ) -> None:
        super().__init__()
        self._file = file
        self._plan = plan
        self._transaction = transaction
        self._outside = sys.exception()
        self.path = self.name = name
        if transaction is not None:
            transaction.spools.append(self)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._file.position = place(offset, whence, self._file.position, self._file.size())
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
        # fsspec closes files at the end of a block without saying that the block failed.
        if sys.exception() not in (None, self._outside):
            self.discard()
            return
        super().close()
        if self._transaction is not None:
            self._transaction.plans.append(self._plan)
            return
        try:
            _commit_plans([self._plan])
        finally:
            self._file.close()

    def discard(self) -> None:
        """Discards what was written."""
        super().close()
        self._file.close()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            text = f"{self.name} was never closed, so it was not committed"
            warnings.warn(text, ResourceWarning, 2)
            self.discard()


class OneCommit(Transaction):
    """``with fs.transaction``: everything until its end is one commit, or nothing is kept."""

    def __init__(self, fs: Any, **options: Any) -> None:
        super().__init__(fs, **options)
        self.spools: list[Spool] = []
        self.plans: list[_Planned] = []

    def complete(self, commit: bool = True) -> None:
        """Makes the commit, or discards everything."""
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
    """fsspec's interface to versions; names are absolute, ``/models@main/model.safetensors``.

    Errors are ``mvc.MvcError``; a path that a version lacks is FileNotFoundError as well, and
    writing to what is no branch PermissionError.
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
        return absolute(text)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Size in bytes, type (``file`` or ``directory``), commit; of files the content's id."""
        at, _, commit, manifest = self._look(path)
        entry = manifest.by_path.get(at.path)
        if entry is not None:
            return _file(at, commit, entry)
        if not _is_folder(manifest, at.path):
            raise _absent(at)
        return _folder(at.name(at.path), commit)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The entries of a folder of a version, by name. For a file, its own entry."""
        at, _, commit, manifest = self._look(path)
        found = _listed(at, commit, manifest)
        if not found and at.path:
            raise _absent(at)
        return found if detail else [entry["name"] for entry in found]

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether the version has this path. False also if there is no such version."""
        try:
            at, _, _, manifest = self._look(path)
        except (NotARepository, UnknownRevision):
            return False
        return at.path in manifest.by_path or _is_folder(manifest, at.path)

    def ukey(self, path: str) -> str:
        """A text that changes when the content changes."""
        found = self.info(path)
        return str(found.get("id") or found["commit"])

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **_: Any
    ) -> io.RawIOBase:
        if mode == "rb":
            return self._open_read(path)
        if mode not in {"wb", "xb"}:
            raise WrongUsage(f"files of a version are written as a whole, not in mode {mode!r}")
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        return self._open_write(path, autocommit)

    def _open_read(self, path: str) -> PartsFile:
        at, here, commit, manifest = self._look(path)
        entry = manifest.by_path.get(at.path)
        if entry is not None:
            id_ = CommitId.parse(str(commit))
            check_available(here.repo.context, id_, [entry])
            file = PartsFile(entry_parts(here.repo.context, entry), at.name(at.path))
            note(here.repo.context, [id_])
            return file
        if _is_folder(manifest, at.path):
            raise IsADirectoryError(f"a folder: {at.name(at.path)}")
        _refuse_checkpoint(at.path)
        raise _absent(at)

    def _open_write(self, path: str, autocommit: bool) -> Spool:
        at, here, branch, manifest = self._target(path)
        _refuse_checkpoint(at.path)
        check_new_path(manifest, at.path)
        file = scratch(here.repo.context)
        change = Change(at.path, partial(_parsed, file, at.path))
        plan = _Planned(here, branch, (change,), f"write {at.path}")
        transaction = None if autocommit else self.transaction
        return Spool(file, at.name(at.path), plan, transaction)

    def rm_file(self, path: str) -> None:
        """A commit that removes this path."""
        self.rm(path)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: Any = None) -> None:
        """One commit that removes these paths. ``recursive`` removes folders as well."""
        names = [path] if isinstance(path, str) else path
        self._keep([p for name in names for p in self._removals(name, recursive, maxdepth)])

    def _removals(self, path: str, recursive: bool, maxdepth: int | None) -> Iterator[_Planned]:
        message = f"remove {locate(self._strip_protocol(path)).path or 'everything'}"
        for name in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            at, here, branch, manifest = self._target(name)
            if at.path in manifest.by_path:
                yield _Planned(here, branch, (Change(at.path, None),), message)
            elif not _is_folder(manifest, at.path):
                raise _absent(at)
            elif not recursive:
                raise IsADirectoryError(f"a folder: {at.name(at.path)}")

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: Any = None, **kwargs: Any
    ) -> None:
        """One commit that renames a file or folder."""
        source, here, branch, _ = self._target(path1)
        target, there, other, manifest = self._target(path2)
        if here is not there or branch != other:
            self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
            self.rm(path1, recursive=recursive, maxdepth=maxdepth)
            return
        moved = {
            entry.path: target.path + entry.path.removeprefix(source.path)
            for entry in manifest.entries
            if source.path and f"{entry.path}/".startswith(f"{source.path}/")
        }
        if not moved:
            raise _absent(source)
        check_new_path(Manifest(()), target.path)
        check_available(
            here.repo.context,
            CommitId.parse(str(self._look(path2)[2])),
            [manifest.by_path[name] for name in moved],
        )
        changes = [Change(name, None) for name in moved if name not in moved.values()]
        others = Manifest(e for e in manifest.entries if e.path not in moved)
        for name, new in moved.items():
            check_new_path(others, new)
            changes.append(_stored(here.repo.context, manifest.by_path[name], new))
        message = f"move {source.path} to {target.path}"
        self._keep([_Planned(here, branch, tuple(changes), message)])

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """A commit with a copy of a file, which may come from any version."""
        source, here, commit, manifest = self._look(path1)
        entry = manifest.by_path.get(source.path)
        target, there, branch, onto = self._target(path2)
        if entry is None and _is_folder(manifest, source.path):
            return  # folders exist by their files
        if entry is None or here is not there:
            with self.open(path1, "rb") as old, self.open(path2, "wb") as new:
                while data := old.read(_BLOCK):
                    new.write(data)
            return
        check_new_path(onto, target.path)
        check_available(here.repo.context, CommitId.parse(str(commit)), [entry])
        change = _stored(here.repo.context, entry, target.path)
        message = f"copy {source.path} to {target.path}"
        self._keep([_Planned(there, branch, (change,), message)])

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Creates nothing: a folder exists if it has files. Checks that it could be written."""
        self.makedirs(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """As ``mkdir``."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        self._target(path)

    def _look(self, path: str) -> tuple[Location, Opened, str | None, Manifest]:
        """The location of a path, and the version that it names."""
        at = locate(self._strip_protocol(path))
        here = opened(at.root)
        commit, manifest = version_of(here, at)
        return at, here, None if commit is None else str(commit), manifest

    def _target(self, path: str) -> tuple[Location, Opened, str, Manifest]:
        """The location of a path, and the branch that a commit there moves."""
        at = locate(self._strip_protocol(path))
        here = opened(at.root)
        branch = branch_of(here, at)
        return at, here, branch, version_of(here, at)[1]

    def _keep(self, plans: Iterable[_Planned]) -> None:
        self.transaction.plans.extend(plans) if self._intrans else _commit_plans(plans)


def _refuse_checkpoint(path: str) -> None:
    if _CHECKPOINT.fullmatch(path.rpartition("/")[2]):
        raise WrongUsage(
            "torch.distributed.checkpoint does not go through mvc:// paths: "
            "use MvcWriter and MvcReader of mvc.frameworks.dcp",
            hint="dcp.save(state, storage_writer=MvcWriter(repo)), "
            "dcp.load(state, storage_reader=MvcReader(repo, rev))",
        )


def _parsed(file: WriteFile, path: str) -> AbstractContextManager[ParsedFile]:
    """The model file written so far. Raises BadModelFile if it claims to be one but is cut off."""
    written = Readable(file.size, file.read)
    parsed = parse_file(written, path)
    if parsed.format == "opaque" and (why := suspicion(written, path)):
        raise BadModelFile(
            f"{path} is no sound model file: {why}",
            hint="write it again; to keep it as it is: mvc commit --opaque",
        )
    return nullcontext(parsed)


def _stored(context: Context, entry: FileEntry, path: str) -> Change:
    """The change that stores a file of a version under another name."""
    return Change(path, lambda: nullcontext(_Stored(context, entry)))


class _Stored(ParsedFile):
    """A file of a version as input of a commit. It keeps its format and its tensors."""

    def __init__(self, context: Context, entry: FileEntry) -> None:
        self._context, self._entry = context, entry
        self._parts = entry_parts(context, entry)
        self.format, self.size, self.checks = entry.format, entry.size, entry.checks
        self.contents = tuple(ParsedContent(c.offset, c.spec) for c in entry.contents)
        self.tensors = tuple(ParsedTensor(t.key, t.spec, t.content, t.view) for t in entry.tensors)

    def read(self, content: int, start: int, out: memoryview) -> None:
        self._parts.read_into(self.contents[content].offset + start, out)

    def skeleton(self) -> bytes:
        return skeleton_of(self._context, self._entry)


def _is_folder(manifest: Manifest, path: str) -> bool:
    """Whether there are files below ``path``. The version itself is always a folder."""
    return not path or any(e.path.startswith(f"{path}/") for e in manifest.entries)


def _listed(at: Location, commit: str | None, manifest: Manifest) -> list[dict[str, Any]]:
    """The entries of a folder, by name. For a file, its own entry."""
    start = f"{at.path}/" if at.path else ""
    found: dict[str, dict[str, Any]] = {}
    for entry in manifest.entries:
        if entry.path == at.path:
            found[at.name(at.path)] = _file(at, commit, entry)
        elif entry.path.startswith(start):
            first, slash, _ = entry.path[len(start) :].partition("/")
            name = at.name(start + first)
            found[name] = _folder(name, commit) if slash else _file(at, commit, entry)
    return [found[name] for name in sorted(found)]


def _absent(at: Location) -> NoSuchFile:
    """The error for a path that a version does not hold."""
    return NoSuchFile(
        f"{printable(at.prefix)} has no path {printable(at.path)}",
        hint="'mvc ls REVISION' lists what a version holds",
    )


def _file(at: Location, commit: str | None, entry: FileEntry) -> dict[str, Any]:
    return {
        "name": at.name(entry.path),
        "size": entry.size,
        "type": "file",
        "commit": commit,
        "id": entry.content_id.hex(),
        "format": entry.format,
    }


def _folder(name: str, commit: str | None) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory", "commit": commit}
