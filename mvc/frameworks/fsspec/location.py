"""Where an ``mvc://`` path leads: repository, revision, path of the version.

The grammar is ``mvc://REPOSITORY@REVISION/PATH``. REPOSITORY is a folder, absolute
(``mvc:///home/me/models``) or relative to the current folder; it ends at the first ``@`` or
``/`` to whose left a repository is. REVISION is anything that ``mvc rev-parse`` takes, a
``/`` in it written as ``%2F``; without one HEAD is meant.
"""

from __future__ import annotations

import threading
from dataclasses import field
from pathlib import Path
from urllib.parse import unquote

from mvc.api import Repository
from mvc.dataclasses import dataclass
from mvc.errors import InvalidName, NotARepository, UnknownPath, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.model.manifest import Manifest
from mvc.model.names import check_path, printable
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import BRANCH, HEAD, head
from mvc.store.store import FOLDER

__all__ = [
    "Location", "NoSuchFile", "Opened", "absolute", "branch_of", "locate", "opened", "version_of",
]  # fmt: skip

_FORM = "write mvc://REPOSITORY@REVISION/PATH, for example mvc://models@main/model.safetensors"


class NoSuchFile(UnknownPath, FileNotFoundError):
    """A version does not hold this path. A FileNotFoundError, as file systems raise."""


class NotABranch(WrongUsage, PermissionError):
    """Only a branch can be written to."""


@dataclass(frozen=True, slots=True)
class Location:
    """``path`` is empty for the version, ``rev`` None if unwritten; names begin with ``prefix``."""

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
