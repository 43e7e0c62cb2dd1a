"""Functions for packages above the API: open a repository from an argument, serve a repository, and
find the version that introduced a file.
"""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING

from mvc.api.repository import Repository
from mvc.errors import NotARepository, WrongUsage
from mvc.ids import CommitId
from mvc.model.manifest import FileEntry
from mvc.repo.worktree.identify import earlier
from mvc.types import PathName

if TYPE_CHECKING:
    from mvc.remote.transports.folder import FolderTransport


def opened(repository: Repository | PathName) -> tuple[Repository, bool]:
    """Opens the repository if ``repository`` is a path.

    Returns the open repository, and whether this call opened it. If so, the caller must close it.
    Raises WrongUsage if ``repository`` is closed or has another type; NotARepository if there is no
    repository at the path.
    """
    if isinstance(repository, Repository):
        if repository.closed:
            raise WrongUsage(
                "this repository is closed", hint="open it again with mvc.Repository.open"
            )
        return repository, False
    if not isinstance(repository, str | PathLike):
        kind = type(repository).__name__
        raise WrongUsage(f"repo must be an open mvc.Repository or its path, not of type {kind}")
    try:
        return Repository.open(repository, discover=False), True
    except NotARepository as error:
        problem, hint = (
            (
                "a URL is not a local repository (mvc.ReplicaSink follows a URL)",
                "use mvc.Follower(URL, TARGET, mvc.ReplicaSink(FILE)), or mvc.clone(URL, FOLDER)",
            )
            if "://" in fspath(repository)
            else ("not a repository", "create it with mvc.Repository.init(...) or 'mvc init'")
        )
        raise NotARepository(f"{problem}: {fspath(repository)}", hint=hint) from error


def serve(
    repo: Repository, scopes: tuple[str, ...] = (), *, sender: str | None = None
) -> FolderTransport:
    """A transport (a connection for fetch and push) to an open repository.

    ``scopes``: the permissions of the client; without scopes, everything is permitted. ``sender``:
    the name of a token or account to record with received changes (default: the account of this
    process).
    """
    from mvc.remote.transports.folder import FolderTransport  # not imported by 'mvc commit'

    return FolderTransport(
        str(repo.root), repo.handle.store, repo.handle.config, scopes=scopes, sender=sender
    )


def version_with(
    repo: Repository, entry: FileEntry, *, besides: CommitId | None = None
) -> CommitId | None:
    """The newest version that introduced the state of ``entry`` at the path of ``entry``, or None.

    Only stored versions that a branch, a tag or HEAD reaches count. ``besides``: a version to
    ignore.
    """
    return earlier(repo.handle.store, entry, besides=besides)
