"""The transport to a repository that is open in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mvc.errors import DamagedData, MvcError, NotARepository, RemoteUnreachable
from mvc.ids import CommitId
from mvc.io.files import FileIdentity, FileSystem
from mvc.io.process import user_name
from mvc.names import FOLDER, printable
from mvc.remote.places import leads_on, place_of
from mvc.remote.remotes import Remote
from mvc.remote.transport import BROUGHT, Place, Received, RemoteHead, Slice, Wanted
from mvc.repo.config import Config
from mvc.repo.handle import open_handle
from mvc.repo.lookup.refs import HEAD, head_refs
from mvc.repo.statements.live import live_now
from mvc.repo.statements.protection import protecting
from mvc.store.format import FORMAT
from mvc.store.journal.entries import RefValue
from mvc.store.snapshot import JOURNAL
from mvc.store.store import CONFIG, Store

if TYPE_CHECKING:
    from mvc.remote.sending.live import LiveMark

_LOOK = 0.5  # seconds between two looks at what is live
_MARKS = 256  # targets whose live version is remembered


class FolderTransport:
    """Safe across threads. ``scopes``: what a caller may do; ``sender``: the token or account that
    is recorded with what it sends, by default the account of this process.
    """

    def __init__(
        self,
        url: str,
        store: Store,
        config: Config,
        *,
        scopes: tuple[str, ...] = (),
        sender: str | None = None,
    ) -> None:
        self.url = url
        self.store, self.config = store, config
        self.fs, self.clock = store.fs, store.clock
        self._scopes = scopes
        self._sender = account() if sender is None else sender
        self._lock = Lock()
        self._head: tuple[FileIdentity | None, RemoteHead] | None = None
        self._mark = lru_cache(_MARKS)(partial(_live_mark, store))
        self._opened_as = self._identity()

    def is_in_place(self) -> bool:
        """Whether its folder is still the one that was opened, and has the settings of then.

        Raises NotARepository while there is none in its place.
        """
        return self._identity() == self._opened_as

    def _identity(self) -> tuple[object, ...]:
        folder = self.store.folder
        found = {name: self.fs.stat(folder / name) for name in (FORMAT, JOURNAL, CONFIG)}
        there = self.fs.stat(folder)  # last: what is lacking may just have gone with it
        lacking = [name for name in (FORMAT, JOURNAL) if found[name] is None]
        if there is None or lacking:
            without = "" if there is None else f": its folder has no {lacking[0]}"
            raise NotARepository(
                f"the repository {printable(str(folder.parent))} is away{without}",
                hint="what is served stays as it is; its record is followed once it is back",
            )
        return there.device, there.inode, self.store.snapshot.identity, found[CONFIG]

    def head(self, after: Place | None = None) -> RemoteHead:
        """As of the last change of the journal."""
        store = self.store
        journal = store.fs.stat(store.folder / JOURNAL)
        with self._lock:
            if self._head is None or self._head[0] != journal:
                self._head = journal, self._read_head()
            head = self._head[1]
        is_led_on = after is not None and leads_on(self.store.fresh(), after)
        return replace(head, time_ns=store.clock.now_ns(), leads_on=is_led_on)

    def _read_head(self) -> RemoteHead:
        snapshot = self.store.fresh()
        refs: dict[str, RefValue] = {HEAD: self.store.snapshot.ref(HEAD), **head_refs(snapshot)}
        return RemoteHead(
            identity=snapshot.identity,
            place=place_of(snapshot),
            refs=refs,
            time_ns=self.store.clock.now_ns(),
            bare=self.store.bare,
            scopes=self._scopes,
            unnamed=_unnamed(self.store),
            protected=protecting(self.config),
        )

    def send(self, wanted: Wanted) -> Generator[Slice]:
        from mvc.remote.sending.sender import send  # more than a question needs

        return send(self.store, self.config, wanted)

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        return once_other(lambda: self.mark(target)[0], mark, seconds, pause=_LOOK)

    def mark(self, target: str) -> tuple[str, object]:
        """As ``LiveMark.now``. Raises InvalidName."""
        with self._lock:
            return self._mark(target).now()

    def receive(self, given: Slice) -> Received:
        """As ``receiver.receive``: the rules of a push apply."""
        from mvc.remote.receiving.receiver import receive  # more than a question needs

        return receive(
            self.store,
            self.config,
            given,
            scopes=self._scopes,
            sender=self._sender,
        )

    def close(self) -> None:
        self.store.close()


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


def _live_mark(store: Store, target: str) -> LiveMark:
    from mvc.remote.sending.live import LiveMark  # more than a head needs

    return LiveMark(store, target)


def load_transfers() -> None:
    """Imports what slices need and a question does not, before the first slice comes."""
    import_module("mvc.remote.sending.sender")
    import_module("mvc.remote.receiving.receiver")


def account() -> str:
    """The account of this process, as a sender."""
    return f"account {user_name()}"


def _unnamed(store: Store) -> tuple[CommitId, ...]:
    """What is live, and the newest versions of a push that was interrupted before its refs moved,
    if it came last.
    """
    found, behind = set[CommitId](), set[CommitId]()
    for recorded in store.snapshot.newest_first():
        entry = recorded.entry
        if entry.operation != BROUGHT or entry.refs:
            break
        for commit in entry.commits:
            found.add(commit.id)
            behind.update((*commit.parents, *commit.needs))
    unnamed = found - behind
    with suppress(DamagedData):  # what is live may be lost
        unnamed.update(live_now(store))
    return tuple(sorted(unnamed))


def open_transport(remote: Remote) -> FolderTransport:
    """The repository in a folder, opened as any other one."""
    check_folder(remote)
    opened = open_handle(Path(remote.url), discover=False)
    return FolderTransport(remote.url, opened.store, opened.config)


def check_folder(remote: Remote) -> None:
    """Refuses a folder that cannot be a remote, in words of remotes."""
    fs, folder = FileSystem(), Path(remote.url)
    shown = printable(str(folder))
    if fs.stat(folder) is None:
        raise RemoteUnreachable(f"there is no folder {shown}", hint=_absent(remote, shown))
    if fs.is_network_filesystem(folder):
        raise RemoteUnreachable(
            f"{shown} is on a network file system, where locks and mapped files do not hold",
            hint=f"write bucket:{shown}, or reach the host that has it by ssh://HOST/PATH",
        )
    if fs.stat(folder / FOLDER) is not None:
        return
    if fs.stat(folder / "head") is not None and fs.stat(folder / "packs") is not None:
        raise NotARepository(
            f"{shown} is no repository, but a bucket", hint=f"write bucket:{shown}"
        )
    raise NotARepository(f"{shown} is no repository", hint=_instead(fs, folder))


def _instead(fs: FileSystem, folder: Path) -> str:
    """What to do with a folder that is no repository: it may be one of those that a server has."""
    with suppress(MvcError):
        for name in sorted(fs.list(folder)):
            if fs.stat(folder / name / FOLDER) is not None:
                return f"name the one that is meant, such as {printable(str(folder / name))}"
    return f"make it one with 'mvc init --bare {printable(str(folder))}'"


def _absent(remote: Remote, shown: str) -> str:
    """What to do where there is no folder: a remote may have moved, a URL be mistyped."""
    if remote.name:
        moved = f"'mvc remote add -f {remote.name} PATH' if it has moved"
        return f"is it mounted? {moved}, 'mvc init --bare {shown}' for a new one"
    return (
        "name the remote first: 'mvc push REMOTE REV:NAME'"
        if ":" in Path(remote.url).name
        else f"is the path right? 'mvc init --bare {shown}' makes a new one"
    )
