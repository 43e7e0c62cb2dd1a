"""The transport to a repository that is open in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.io.process import user_name
from mvc.remote.places import leads_on, place_of
from mvc.remote.remotes import Remote
from mvc.remote.transport import BROUGHT, Place, Received, RemoteHead, Slice, Wanted
from mvc.repo.context import Context
from mvc.repo.lookup.refs import HEAD, head_refs
from mvc.repo.opening import open_context
from mvc.repo.statements.live import live_now
from mvc.repo.statements.protection import protecting
from mvc.store.journal.entries import RefValue

if TYPE_CHECKING:
    from mvc.remote.sending.live import LiveMark


_LOOK = 0.5  # seconds between two looks at what is live


class FolderTransport:
    """``scopes``: what a caller may do; ``sender``: the token or account that is recorded with
    what it sends, by default the account of this process.
    """

    def __init__(
        self, url: str, context: Context, *, scopes: tuple[str, ...] = (), sender: str | None = None
    ) -> None:
        self.url = url
        self.context = context
        self._scopes = scopes
        self._sender = account() if sender is None else sender
        self._marks: dict[str, LiveMark] = {}

    def head(self, after: Place | None = None) -> RemoteHead:
        store, snapshot = self.context.store, self.context.fresh()
        refs: dict[str, RefValue] = {HEAD: store.ref(HEAD), **head_refs(snapshot)}
        return RemoteHead(
            identity=snapshot.identity,
            place=place_of(snapshot),
            refs=refs,
            time_ns=store.now_ns(),
            bare=self.context.bare,
            scopes=self._scopes,
            unnamed=_unnamed(self.context),
            protected=protecting(self.context),
            leads_on=leads_on(snapshot, after),
        )

    def send(self, wanted: Wanted) -> Generator[Slice]:
        from mvc.remote.sending.sender import send  # more than a question needs

        return send(self.context, wanted)

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        from mvc.remote.sending.live import LiveMark  # as above

        if target not in self._marks:
            self._marks = {target: LiveMark(self.context, target)}
        return once_other(self._marks[target].now, mark, seconds, pause=_LOOK)

    def receive(self, given: Slice) -> Received:
        """As ``receiver.receive``: the rules of a push apply."""
        from mvc.remote.receiving.receiver import receive  # more than a question needs

        return receive(self.context, given, scopes=self._scopes, sender=self._sender)

    def close(self) -> None:
        self.context.store.close()


def once_other(
    look: Callable[[], str | None], mark: str, seconds: float, *, pause: float
) -> str | None:
    """What is seen once it is not ``mark`` any more; None if it is for so many seconds."""
    deadline = time.monotonic() + seconds
    while (now := look()) == mark:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(pause, left))
    return now


def account() -> str:
    """The account of this process, as a sender."""
    return f"account {user_name()}"


def _unnamed(context: Context) -> tuple[CommitId, ...]:
    """What is live, and the newest versions of a push that was interrupted before its refs moved,
    if it came last.
    """
    found, behind = set[CommitId](), set[CommitId]()
    for recorded in context.store.snapshot.newest_first():
        entry = recorded.entry
        if entry.operation != BROUGHT or entry.refs:
            break
        for commit in entry.commits:
            found.add(commit.id)
            behind.update((*commit.parents, *commit.needs))
    unnamed = found - behind
    with suppress(DamagedData):  # what is live may be lost
        unnamed.update(live_now(context))
    return tuple(sorted(unnamed))


def open_transport(remote: Remote, context: Context | None) -> FolderTransport:
    """The repository in a folder, opened as any other one."""
    del context
    return FolderTransport(remote.url, open_context(Path(remote.url), discover=False))
