"""Where an ``mvc://`` path leads: repository, revision, path of the version.

The grammar is ``mvc://REPOSITORY@REVISION/PATH``. REPOSITORY is a folder, absolute
(``mvc:///home/me/models``) or relative to the current folder; it ends at the first ``@`` or
``/`` to whose left a repository is. REVISION is anything that ``mvc rev-parse`` takes, a
``/`` in it written as ``%2F``; without one HEAD is meant.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from mvc.api import Repository
from mvc.errors import InvalidName, NotARepository, UnknownPath, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.model.manifest import Manifest
from mvc.model.names import check_path, printable
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import BRANCH, HEAD, head
from mvc.store.store import FOLDER

__all__ = [
    "Location",
    "NoSuchFile",
    "NotABranch",
    "Opened",
    "absolute",
    "branch_of",
    "locate",
    "opened",
    "version_of",
]

_FORM = "write mvc://REPOSITORY@REVISION/PATH, for example mvc://models@main/model.safetensors"


class NoSuchFile(UnknownPath, FileNotFoundError):
    """A version does not hold this path. A FileNotFoundError, as file systems raise."""


class NotABranch(WrongUsage, PermissionError):
    """Only a branch can be written to."""


@dataclass(frozen=True, slots=True)
class Location:
    """``path`` is empty for the version itself; ``rev`` None where none was written.

    ``prefix`` is how the names of everything in this version begin.
    """

    root: Path
    rev: str | None
    path: str
    prefix: str

    def name(self, path: str) -> str:
        """The full name of a path of the same version."""
        return f"{self.prefix}/{path}" if path else self.prefix


@dataclass
class Opened:
    """A repository that stays open until the process ends. Writers hold ``lock``."""

    repo: Repository
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def context(self) -> Context:
        return self.repo.context


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
    path = path.rstrip("/")
    return path if path.startswith("/") else f"{FileSystem().cwd()}/{path}".rstrip("/")


def locate(text: str) -> Location:
    """Takes an absolute path apart. Raises NotARepository, InvalidName."""
    fs = FileSystem()
    for at in (i for i, char in enumerate(text) if char == "@"):
        if fs.stat(Path(text[:at]) / FOLDER) is not None:
            rev, _, path = text[at + 1 :].partition("/")
            if not rev:
                raise InvalidName(f"no revision behind '@' in {printable(text)}", hint=_FORM)
            return _location(text[:at], unquote(rev), path, f"{text[:at]}@{rev}")
    ends = [i for i, char in enumerate(text) if char == "/" and i] + [len(text)]
    for end in ends:
        if fs.stat(Path(text[:end]) / FOLDER) is not None:
            return _location(text[:end], None, text[end + 1 :], text[:end])
    raise NotARepository(f"no repository in the path {printable(text)}", hint=_FORM)


def _location(root: str, rev: str | None, path: str, prefix: str) -> Location:
    path = path.strip("/")
    return Location(Path(root), rev, check_path(path) if path else "", prefix)


def version_of(context: Context, location: Location) -> tuple[CommitId | None, Manifest]:
    """The version that a location names; none on a branch without versions.

    Raises UnknownRevision, AmbiguousRevision, InvalidTime, StateForgotten.
    """
    at = head(context)
    if at.commit is None and location.rev in {None, HEAD, at.branch}:
        return None, manifests.EMPTY
    repo = opened(location.root).repo
    commit = repo.find(location.rev or HEAD)
    return commit, manifests.of_commit(context, commit)


def branch_of(context: Context, location: Location) -> str:
    """The branch that writing to a location moves. Raises NotABranch, UnknownRevision."""
    at = head(context)
    if location.rev in {None, HEAD}:
        if at.branch is None:
            raise NotABranch(
                "HEAD is at a version and on no branch, so there is nothing to write to",
                hint="name a branch: mvc://REPOSITORY@BRANCH/PATH",
            )
        return at.branch
    name = str(location.rev).removeprefix(BRANCH)
    if name == at.branch or isinstance(context.store.ref(BRANCH + name), CommitId):
        return name
    try:
        opened(location.root).repo.find(location.rev)
    except UnknownRevision as error:
        raise UnknownRevision(
            f"there is no branch {printable(name[:100])} to write to",
            hint="make it with 'mvc branch NAME'",
        ) from error
    raise NotABranch(
        f"{printable(str(location.rev))} is not a branch: versions do not change",
        hint="write to a branch, for example mvc://REPOSITORY@main/PATH",
    )
