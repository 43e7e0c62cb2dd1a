"""The repository that a caller gives: an open one, or its folder."""

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


def opened(given: Repository | PathName) -> tuple[Repository, bool]:
    """The repository, and whether this call opened it, so that the caller must close it.

    ``given`` is an open repository, or the folder of one. Raises WrongUsage for anything else and
    for a closed repository, NotARepository for a folder without one.
    """
    if isinstance(given, Repository):
        if given.closed:
            raise WrongUsage("this repository is closed", hint="open it again")
        return given, False
    if not isinstance(given, str | PathLike):
        kind = type(given).__name__
        raise WrongUsage(
            f"repo is of type {kind}: it must be an open mvc.Repository, or the path of one"
        )
    try:
        return Repository.open(given, discover=False), True
    except NotARepository as error:
        make = "make it with mvc.Repository.init(...) or 'mvc init'"
        remote = "mvc.clone(URL, FOLDER) copies a remote, mvc.ReplicaSink follows one"
        raise NotARepository(
            f"not a repository: {fspath(given)}", hint=remote if "://" in fspath(given) else make
        ) from error


def serve(
    repo: Repository, scopes: tuple[str, ...] = (), *, sender: str | None = None
) -> FolderTransport:
    """The transport to an open repository, for one who has these scopes; none allow everything.

    ``sender``: the token or account that is recorded with what it sends, by default the account of
    this process.
    """
    from mvc.remote.transports.folder import FolderTransport  # which 'mvc commit' does without

    return FolderTransport(
        str(repo.root), repo.handle.store, repo.handle.config, scopes=scopes, sender=sender
    )


def version_with(
    repo: Repository, entry: FileEntry, *, besides: CommitId | None = None
) -> CommitId | None:
    """The newest stored version that introduced this state at this path; None without one."""
    return earlier(repo.handle.store, entry, besides=besides)
