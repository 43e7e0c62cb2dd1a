"""``repo.remotes``: the repositories to which this repository pushes and from which it fetches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mvc.api import lazy
from mvc.errors import MvcError, RemoteRefused
from mvc.ids import CommitId
from mvc.names import REMOTE
from mvc.remote import remotes
from mvc.remote.places import ask
from mvc.remote.remotes import Remote
from mvc.remote.transports.folder import check_folder
from mvc.remote.transports.opening import open_transport
from mvc.repo.config import Config
from mvc.repo.handle import Handle, open_handle
from mvc.repo.lookup.commits import Ancestors, apart
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, head, remote_refs
from mvc.store.journal.entries import RefValue
from mvc.store.store import Store
from mvc.types import PathName

if TYPE_CHECKING:
    from mvc.remote.unsent import Unsent


_T = TypeVar("_T")
_R = TypeVar("_R", bound=AbstractContextManager[Any])


class RemoteRefs(Struct, frozen=True):
    """The refs of a remote. ``head``: the current branch, or a commit if HEAD is detached."""

    url: str
    head: RefValue
    branches: dict[str, CommitId]
    tags: dict[str, CommitId]
    bare: bool


class Tracking(Struct, frozen=True):
    """How far a branch is ahead of and behind its remote branch, as of the last fetch or push."""

    remote: str
    branch: str
    commit: CommitId
    ahead: int
    behind: int


class Remotes(Generic[_R]):
    """Names, URLs and options of remotes; ``repo.remotes``."""

    def __init__(self, handle: Handle, repository: Callable[[Handle], _R]) -> None:
        self._store, self._config = handle.store, handle.config
        self._repository = repository

    def list(self) -> list[Remote]:
        """All remotes, sorted by name."""
        return sorted(remotes.remotes(self._store).values(), key=lambda remote: remote.name)

    def find(self, name: str | None = None) -> Remote:
        """The remote with this name; by default ``origin``, or the only remote."""
        return remotes.find_remote(self._store, name)

    def add(
        self, name: str, url: PathName, *, force: bool = False, **options: str | bool
    ) -> Remote:
        """Adds a remote, but fetches nothing. ``force``: replace a remote of this name.

        ``options``: fields of ``Remote``, such as ``lazy``. Raises InvalidName, WrongUsage and
        RefConflict. For a bucket, checks that the bucket's server gives the guarantees that
        concurrent pushes need, and raises RemoteRefused, RemoteUnreachable and NotInstalled, too.
        """
        remote = remotes.remote_of(name, fspath(url), options)
        remote = replace(remote, url=remotes.normalised(remote.url, self._store.fs.cwd()))
        if remote.is_bucket:
            lazy.transport.check_bucket(remote)
        return remotes.add_remote(self._store, remote, force=force)

    def remove(self, name: str) -> Remote:
        """Removes a remote and its tracking refs. Fetched versions remain until gc."""
        return remotes.remove_remote(self._store, name)

    def show(self, name: str | None = None) -> RemoteRefs:
        """The branches and tags that a remote has now.

        Raises HistoryMissing if the repository at the URL was replaced since the last fetch.
        """
        return refs_of(self.find(name), self._store, self._config)

    def holding(self, commit: CommitId) -> Sequence[str]:
        """Tracking refs from which a version is reachable, as ``REMOTE/BRANCH``."""
        snapshot = self._store.fresh()
        return tuple(
            ref.name for ref in remote_refs(snapshot) if commit in Ancestors(snapshot, [ref.commit])
        )

    def folder(self, name: str) -> Path | None:
        """The path of a remote that is a local folder, else None.

        Raises RemoteUnreachable, NotARepository.
        """
        remote = self.find(name)
        if remote.scheme != "file":
            return None
        check_folder(remote)
        return Path(remote.url)

    def run(self, name: str, arguments: Sequence[str]) -> int:
        """Runs ``mvc`` with these arguments on an ssh remote; returns its exit code."""
        remote = self.find(name)
        run: Callable[[Remote, Sequence[str]], int] = remote.kind.load().run
        return run(remote, arguments)

    def maintain(self, name: str, act: Callable[[_R], _T], *, changes: bool = True) -> _T:
        """Calls ``act`` with the repository of a remote in a folder or bucket.

        If another process changes the bucket while ``act`` runs, ``act`` runs again. ``changes``:
        pass False if ``act`` only reads. Then nothing is written to a bucket. Raises RemoteRefused
        if the remote is neither a folder nor a bucket: only its owner can maintain it.
        """
        remote = self.find(name)
        if (folder := self.folder(name)) is not None:
            with self._repository(open_handle(folder, discover=False)) as opened:
                return act(opened)
        if remote.is_bucket:
            with closing(
                lazy.transport.open_bucket(remote, self._store, self._config)
            ) as transport:
                run = transport.maintain if changes else transport.inspect
                done: _T = run(lambda store, config: act(self._repository(Handle(store, config))))
                return done
        raise RemoteRefused(
            f"{remote.url} is maintained by its owner",
            hint="the owner runs 'mvc gc', 'mvc forget --list' etc. in the remote's folder; in a "
            "clone, 'mvc forget --list' lists the versions that were forgotten in the clone",
        )

    def unsent(self, target: str | None = None) -> tuple[Unsent, ...]:
        """Deployments and retractions that remotes lack, as of the last fetch or push.

        The result is sorted by remote and target.
        """
        return lazy.unsent.unsent(self._store, target)

    def tracking(self, branch: str | None = None, remote: str | None = None) -> Tracking | None:
        """Compares a branch (default: the current branch) with the remote branch of the same name.

        Uses the commit that the remote branch had at the last fetch or push. None if the remote
        branch is unknown.
        """
        store, snapshot = self._store, self._store.fresh()
        name = branch or head(snapshot).branch
        if name is None or not remotes.remotes(store):
            return None
        try:
            known_remote = remotes.find_remote(store, remote)
        except MvcError:
            return None
        theirs = snapshot.ref(f"{REMOTE}{known_remote.name}/{name}")
        mine = snapshot.ref(BRANCH + name)
        if not isinstance(theirs, CommitId) or not isinstance(mine, CommitId):
            return None
        ahead, behind = apart(snapshot, mine, theirs)
        return Tracking(known_remote.name, name, theirs, ahead, behind=behind)


def refs_of(
    remote: Remote | str, store: Store | None = None, config: Config | None = None
) -> RemoteRefs:
    """The branches and tags of a remote, as ``Remotes.show`` returns them.

    The local repository (``store``, ``config``) is optional.
    """
    with closing(open_transport(remote, store, config)) as transport:
        answer = (
            ask(transport, store, remote).head
            if store is not None and isinstance(remote, Remote)
            else transport.head()
        )
    commits = {name: value for name, value in answer.refs.items() if isinstance(value, CommitId)}

    def under(prefix: str) -> dict[str, CommitId]:
        selected = {n.removeprefix(prefix): c for n, c in commits.items() if n.startswith(prefix)}
        return dict(sorted(selected.items()))

    return RemoteRefs(
        transport.url, answer.refs.get(HEAD), under(BRANCH), under(TAG), bare=answer.bare
    )
