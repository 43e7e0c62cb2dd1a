"""``repo.remotes``: the repositories that this one pushes to and fetches from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

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
    """What a remote has: ``head`` is its current branch, or a version, ``refs`` by full name."""

    url: str
    head: RefValue
    branches: dict[str, CommitId]
    tags: dict[str, CommitId]
    bare: bool


class Tracking(Struct, frozen=True):
    """How a branch stands to that of its remote, as of the last fetch or push."""

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
        """Every remote, by name."""
        return sorted(remotes.remotes(self._store).values(), key=lambda each: each.name)

    def find(self, name: str | None = None) -> Remote:
        """The remote of this name; without one ``origin``, or the only one there is."""
        return remotes.find_remote(self._store, name)

    def add(
        self, name: str, url: PathName, *, force: bool = False, **options: str | bool
    ) -> Remote:
        """Names a repository elsewhere; nothing is fetched yet. With ``force`` one is changed.

        ``options``: fields of ``Remote``, such as ``lazy``. Of a bucket it is tried out whether it
        keeps what pushes at once rely on. Raises InvalidName, WrongUsage, RefConflict, and for a
        bucket RemoteRefused, RemoteUnreachable, NotInstalled.
        """
        made = remotes.remote_of(name, fspath(url), options)
        made = replace(made, url=remotes.normalised(made.url, self._store.fs.cwd()))
        if made.is_bucket:
            from mvc.remote.transports.bucket.transport import check_bucket

            check_bucket(made)
        return remotes.add_remote(self._store, made, force=force)

    def remove(self, name: str) -> Remote:
        """Forgets a remote and what is known of its refs; versions that came stay until gc."""
        return remotes.remove_remote(self._store, name)

    def show(self, name: str | None = None) -> RemoteRefs:
        """The branches and tags of a remote, or of the repository at a URL, as they are now.

        Raises HistoryMissing for another repository than at the last fetch.
        """
        return refs_of(self.find(name), self._store, self._config)

    def holding(self, commit: CommitId) -> Sequence[str]:
        """The branches of remotes that lead to a version, as ``REMOTE/BRANCH``."""
        snapshot = self._store.fresh()
        return tuple(
            ref.name for ref in remote_refs(snapshot) if commit in Ancestors(snapshot, [ref.commit])
        )

    def folder(self, name: str) -> Path | None:
        """The folder of a remote that is one. Raises RemoteUnreachable, NotARepository."""
        remote = self.find(name)
        if remote.scheme != "file":
            return None
        check_folder(remote)
        return Path(remote.url)

    def run(self, name: str, arguments: Sequence[str]) -> int:
        """Runs ``mvc`` with these arguments on a remote behind ssh; returns its exit code."""
        remote = self.find(name)
        run: Callable[[Remote, Sequence[str]], int] = remote.kind.load().run
        return run(remote, arguments)

    def maintain(self, name: str, act: Callable[[_R], _T], *, changes: bool = True) -> _T:
        """Has ``act`` work on the repository of a remote: in a folder, or in a bucket.

        In a bucket it may be called again, after another process has changed the bucket; without
        ``changes`` it reads what the bucket itself holds, and nothing is published. Raises
        RemoteRefused for a remote that only its owner can maintain.
        """
        remote = self.find(name)
        if (folder := self.folder(name)) is not None:
            with self._repository(open_handle(folder, discover=False)) as opened:
                return act(opened)
        if remote.is_bucket:
            from mvc.remote.transports.bucket.transport import open_bucket

            with closing(open_bucket(remote, self._store, self._config)) as transport:
                run = transport.maintain if changes else transport.inspect
                done: _T = run(lambda store, config: act(self._repository(Handle(store, config))))
                return done
        raise RemoteRefused(
            f"{remote.url} is maintained by its owner",
            hint="who runs it calls 'mvc gc', 'mvc forget --list' and the like in its folder; in a "
            "clone 'mvc forget --list' says what was forgotten there",
        )

    def unsent(self, target: str | None = None) -> tuple[Unsent, ...]:
        """Deployments and retractions of this repository that remotes lack, as far as known here.

        By remote and target; none for a target whose record is in step with the remote's.
        """
        from mvc.remote.unsent import unsent

        return unsent(self._store, target)

    def tracking(self, branch: str | None = None, remote: str | None = None) -> Tracking | None:
        """How a branch, by default the current one, stands to that of a remote, without asking.

        None if the remote has no such branch, as far as is known.
        """
        store, snapshot = self._store, self._store.fresh()
        name = branch or head(snapshot).branch
        if name is None or not remotes.remotes(store):
            return None
        try:
            found = remotes.find_remote(store, remote)
        except MvcError:
            return None
        theirs = snapshot.ref(f"{REMOTE}{found.name}/{name}")
        mine = snapshot.ref(BRANCH + name)
        if not isinstance(theirs, CommitId) or not isinstance(mine, CommitId):
            return None
        ahead, behind = apart(snapshot, mine, theirs)
        return Tracking(found.name, name, theirs, ahead, behind=behind)


def refs_of(
    remote: Remote | str, store: Store | None = None, config: Config | None = None
) -> RemoteRefs:
    """What ``Remotes.show`` returns, also without a repository here."""
    with closing(open_transport(remote, store, config)) as transport:
        answer = (
            ask(transport, store, remote).head
            if store is not None and isinstance(remote, Remote)
            else transport.head()
        )
    commits = {name: value for name, value in answer.refs.items() if isinstance(value, CommitId)}

    def under(prefix: str) -> dict[str, CommitId]:
        found = {n.removeprefix(prefix): c for n, c in commits.items() if n.startswith(prefix)}
        return dict(sorted(found.items()))

    return RemoteRefs(
        transport.url, answer.refs.get(HEAD), under(BRANCH), under(TAG), bare=answer.bare
    )
