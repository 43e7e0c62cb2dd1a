"""Opens the repositories that a server serves, by name, and limits their sizes.

A server serves one folder. The folder is a repository, or has repositories in its subfolders.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import suppress
from pathlib import Path

from mvc.api import Repository
from mvc.errors import MvcError, NotARepository, RemoteRefused, StorageFull
from mvc.names import FOLDER
from mvc.server.authority import Caller
from mvc.server.uploads import Uploads
from mvc.system import FileSystem
from mvc.text import size as in_units
from mvc.transport import Received, Slice, Wanted, serve

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}", re.ASCII)
RESERVE = 1 << 30
"""Uploads leave this many bytes of the disk free, or a quarter of the free bytes if less."""
_DEEPEST = 8
_FOLDERS = 1000  # maximum number of folders that are searched for repositories
_OPEN = 64
"""Maximum number of open repositories."""


class Served:
    """An open repository, and its uploads. ``transport`` has all permissions."""

    def __init__(self, fs: FileSystem, name: str, root: Path, quota: int | None) -> None:
        self.name = name
        self._fs, self._quota = fs, quota
        self._repo = Repository.open(root, discover=False, fs=fs)
        self.transport = serve(self._repo, sender="")
        self.folder = self._repo.root / FOLDER
        self.uploads = Uploads(self.transport.fs, self.folder)
        with suppress(MvcError):
            self.uploads.clear()
        self._lock = threading.Lock()
        self._reserved: dict[str, int] = {}

    def receive(self, incoming: Slice, caller: Caller) -> Received:
        """Receives a part of a push, and checks that the caller's scopes allow its changes."""
        return serve(self._repo, caller.scopes, sender=caller.sender).receive(incoming)

    def cache_key(self, wanted: Wanted) -> Hashable:
        """The key under which the server caches its answer to ``wanted``.

        Requests with equal keys have equal answers. The key changes if a state is forgotten, so
        that the server does not send a cached copy.
        """
        return self, wanted, self.transport.mark(wanted.live)

    def reserve(self, upload: str, size: int) -> None:
        """Reserves ``size`` bytes for an upload. Raises StorageFull.

        The size of the repository and all reservations together must not exceed the quota.
        ``RESERVE`` bytes of the disk must stay free.
        """
        with self._lock:
            self._reserved.pop(upload, None)
            reserved = sum(self._reserved.values())
            if self._quota is not None:
                used = _size(self._fs, self.folder) + reserved
                if used + size > self._quota:
                    raise StorageFull(
                        f"the quota of this repository is used up: {in_units(used)} of "
                        f"{in_units(self._quota)} are used, {in_units(size)} do not fit",
                        hint="ask the server's administrator to run 'mvc forget' and 'mvc gc', or "
                        "to raise --quota",
                    )
            free = self._fs.free_bytes(self.folder)
            if reserved + size > free - min(free // 4, RESERVE):
                raise StorageFull(
                    f"the server's disk is nearly full: {in_units(size)} do not fit",
                    hint="ask the server's administrator to free some space",
                )
            self._reserved[upload] = size

    def release(self, upload: str) -> None:
        """Ends a reservation, because the bytes are stored or will not arrive."""
        with self._lock:
            self._reserved.pop(upload, None)

    def close(self) -> None:
        self._repo.close()


class Repositories:
    """The repositories in a served folder.

    The name of a repository is its path below the folder. The folder itself has the name ''.
    """

    def __init__(
        self, fs: FileSystem, folder: Path, quota: int | None = None, *, shown: str = "at this URL"
    ) -> None:
        """``shown``: replaces the path of the folder in messages to clients."""
        self.fs = fs
        self._shown = shown
        self.folder = fs.realpath(folder)
        self._quota = quota
        self._open = OrderedDict[str, Served]()
        self._lock = threading.Lock()

    @property
    def opened(self) -> int:
        return len(self._open)

    def find(self, name: str) -> Served:
        """The repository of this name. Raises RemoteRefused if there is none.

        Raises the errors of ``Repository.open``, too.
        """
        with self._lock:
            served = self._open.get(name)
            with suppress(NotARepository):
                if served is not None and served.transport.is_in_place():
                    self._open.move_to_end(name)
                    return served
            served = self._open[name] = Served(self.fs, name, self._root(name), self._quota)
            while len(self._open) > _OPEN:
                # The removed repository stays open while a running request has a reference to it.
                self._open.popitem(last=False)
            return served

    def _root(self, name: str) -> Path:
        parts = name.split("/") if name else []
        if len(parts) > _DEEPEST or not all(_PART.fullmatch(part) for part in parts):
            raise RemoteRefused(
                "this is not a valid repository name", hint="use https://HOST/NAME or https://HOST"
            )
        root = self.folder.joinpath(*parts)
        inside = root / FOLDER  # a symbolic link could point anywhere
        if self.fs.realpath(inside) != inside or self.fs.stat(inside) is None:
            raise RemoteRefused(
                f"there is no repository {name or self._shown}",
                hint="check the URL; the server's administrator can create one with "
                "'mvc init --bare'",
            )
        return root

    def close(self) -> None:
        for served in self._open.values():
            with suppress(MvcError):
                served.close()


def names_in(fs: FileSystem, folder: Path, limit: float = _FOLDERS) -> Iterator[str]:
    """The names of the repositories in a served folder. At most ``limit`` folders are searched."""
    top = fs.realpath(folder)
    waiting = [top]
    while waiting and limit:
        current, limit = waiting.pop(0), limit - 1
        if fs.stat(current / FOLDER) is not None:
            yield "/".join(current.relative_to(top).parts)
        with suppress(MvcError):
            below = [current / name for name in fs.list(current) if _PART.fullmatch(name)]
            stats = ((path, fs.stat(path, follow=False)) for path in below)
            waiting += (path for path, facts in stats if facts is not None and facts.is_dir)


def _size(fs: FileSystem, folder: Path) -> int:
    total = 0
    for name in fs.list(folder):
        facts = fs.stat(folder / name, follow=False)
        if facts is not None and facts.is_dir:
            with suppress(MvcError):  # the folder may be deleted meanwhile
                total += _size(fs, folder / name)
        elif facts is not None:
            total += facts.size
    return total
