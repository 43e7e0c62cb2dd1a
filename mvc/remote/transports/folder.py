"""Fetches from and pushes to a repository in a local folder, which this process opens.

``mvc serve`` uses this transport, too, for the repositories that it serves.
"""

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

_POLL = 0.5  # seconds between two checks of the live version
_MARKS = 256  # limit of targets whose live version is cached


class FolderTransport:
    """Reads from and writes to the repository ``store``. Several threads may use it in parallel.

    ``scopes``: the permissions of the caller; empty if everything is permitted. ``sender``: the
    name of the token or account that is recorded with pushed entries, by default the account of
    this process.
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
        """Whether the folder still has the same repository, with the same settings.

        Raises NotARepository while the folder is missing.
        """
        return self._identity() == self._opened_as

    def _identity(self) -> tuple[object, ...]:
        folder = self.store.folder
        files = {name: self.fs.stat(folder / name) for name in (FORMAT, JOURNAL, CONFIG)}
        # After the files, so that a folder that is deleted meanwhile counts as missing.
        facts = self.fs.stat(folder)
        missing = [name for name in (FORMAT, JOURNAL) if files[name] is None]
        if facts is None or missing:
            part = "" if facts is None else f": its folder has no {missing[0]}"
            raise NotARepository(
                f"the repository {printable(str(folder.parent))} is missing{part}",
                hint="the served version stays; updates continue once the repository is back",
            )
        return facts.device, facts.inode, self.store.snapshot.identity, files[CONFIG]

    def head(self, after: Place | None = None) -> RemoteHead:
        """The refs and properties of the repository, cached until the journal changes."""
        store = self.store
        journal = store.fs.stat(store.folder / JOURNAL)
        with self._lock:
            if self._head is None or self._head[0] != journal:
                self._head = journal, self._read_head()
            head = self._head[1]
        continues = after is not None and leads_on(self.store.fresh(), after)
        return replace(head, time_ns=store.clock.now_ns(), leads_on=continues)

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
        from mvc.remote.sending.sender import send  # a slow import, not needed by ``head``

        return send(self.store, self.config, wanted)

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        return wait_for_change(lambda: self.mark(target)[0], mark, seconds, pause=_POLL)

    def mark(self, target: str) -> tuple[str, object]:
        """The mark of the version that is live on ``target``, and a key, as ``LiveMark.now``.

        Raises InvalidName.
        """
        with self._lock:
            return self._mark(target).now()

    def receive(self, incoming: Slice) -> Received:
        """As ``receiver.receive``, with the permissions and the sender of this transport."""
        from mvc.remote.receiving.receiver import receive  # slow, not needed by ``head``

        return receive(
            self.store,
            self.config,
            incoming,
            scopes=self._scopes,
            sender=self._sender,
        )

    def close(self) -> None:
        self.store.close()


def wait_for_change(
    read: Callable[[], str | None], mark: str, seconds: float, *, pause: float
) -> str | None:
    """Waits until the value of ``read`` differs from ``mark``, and returns the value.

    None if the value does not change within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while (now := read()) == mark:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(pause, left))
    return now


def _live_mark(store: Store, target: str) -> LiveMark:
    from mvc.remote.sending.live import LiveMark  # a slow import, not needed by ``head``

    return LiveMark(store, target)


def load_transfers() -> None:
    """Imports the modules for slices (parts of a transfer) before the first slice arrives."""
    import_module("mvc.remote.sending.sender")
    import_module("mvc.remote.receiving.receiver")


def account() -> str:
    """The name of this process's account, as it is recorded with pushed entries."""
    return f"account {user_name()}"


def _unnamed(store: Store) -> tuple[CommitId, ...]:
    """The live versions, and the newest versions of an interrupted push.

    No ref names the versions of an interrupted push. They are found only if the push is the newest
    operation of the journal.
    """
    pushed, ancestors = set[CommitId](), set[CommitId]()
    for recorded in store.snapshot.newest_first():
        entry = recorded.entry
        if entry.operation != BROUGHT or entry.refs:
            break
        for commit in entry.commits:
            pushed.add(commit.id)
            ancestors.update((*commit.parents, *commit.needs))
    unnamed = pushed - ancestors
    with suppress(DamagedData):  # entries with deployments may be damaged
        unnamed.update(live_now(store))
    return tuple(sorted(unnamed))


def open_transport(remote: Remote) -> FolderTransport:
    """Opens the repository in a folder."""
    check_folder(remote)
    opened = open_handle(Path(remote.url), discover=False)
    return FolderTransport(remote.url, opened.store, opened.config)


def check_folder(remote: Remote) -> None:
    """Raises RemoteUnreachable or NotARepository for a folder that cannot be a remote."""
    fs, folder = FileSystem(), Path(remote.url)
    shown = printable(str(folder))
    if fs.stat(folder) is None:
        raise RemoteUnreachable(f"there is no folder {shown}", hint=_absent(remote, shown))
    if fs.is_network_filesystem(folder):
        raise RemoteUnreachable(
            f"{shown} is on a network file system, where locks and mapped files are unreliable",
            hint=f"use bucket:{shown}, or connect to its host: ssh://HOST/PATH",
        )
    if fs.stat(folder / FOLDER) is not None:
        return
    if fs.stat(folder / "head") is not None and fs.stat(folder / "packs") is not None:
        raise NotARepository(f"{shown} is a bucket, not a repository", hint=f"write bucket:{shown}")
    raise NotARepository(f"{shown} is not a repository", hint=_instead(fs, folder))


def _instead(fs: FileSystem, folder: Path) -> str:
    """A hint for a folder that is not a repository. Names a repository inside it, if any."""
    with suppress(MvcError):
        for name in sorted(fs.list(folder)):
            if fs.stat(folder / name / FOLDER) is not None:
                return f"name a repository inside it, such as {printable(str(folder / name))}"
    return f"create a repository in it: 'mvc init --bare {printable(str(folder))}'"


def _absent(remote: Remote, shown: str) -> str:
    """A hint for a missing folder: the folder may have moved, or the URL may be wrong."""
    if remote.name:
        moved = f"if it moved, 'mvc remote add -f {remote.name} PATH'"
        return f"mount it; {moved}; for a new one, 'mvc init --bare {shown}'"
    return (
        "write the whole URL: http://HOST:PORT/NAME, https://HOST/NAME or ssh://HOST/PATH"
        if ":" in remote.url.removeprefix(str(FileSystem().cwd()))
        else "check the path: it is read as a folder, not as the name of a remote; "
        f"'mvc init --bare {shown}' creates a new repository"
    )
