"""The repositories below a served folder: found by name, opened once, their sizes limited."""

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
"""Bytes of a disk that no upload takes; a quarter of what is free, if that is less."""
_DEEPEST = 8
_LOOKS = 1000  # folders in which a repository is looked for
_OPEN = 64
"""Repositories that stay open."""


class Served:
    """An open repository with its uploads; ``transport`` may do everything."""

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
        self._promised: dict[str, int] = {}

    def receive(self, given: Slice, caller: Caller) -> Received:
        """Takes a slice, as far as its sender may give it."""
        return serve(self._repo, caller.scopes, sender=caller.sender).receive(given)

    def question(self, wanted: Wanted) -> Hashable:
        """What an answer about a live version depends on: while this is the same, so is it.

        None that was made before a state was forgotten, here or elsewhere, is given again.
        """
        return self, wanted, self.transport.mark(wanted.live)

    def reserve(self, upload: str, size: int) -> None:
        """Takes ``size`` bytes for an upload that is to come. Raises StorageFull.

        What it has, and what other uploads have reserved, is counted. The last of the disk is left
        to those who use it otherwise.
        """
        with self._lock:
            self._promised.pop(upload, None)
            promised = sum(self._promised.values())
            if self._quota is not None:
                used = _size(self._fs, self.folder) + promised
                if used + size > self._quota:
                    raise StorageFull(
                        f"the quota of {in_units(self._quota)} of this repository is used up: "
                        f"it has {in_units(used)}, and {in_units(size)} do not fit",
                        hint="its owner can run 'mvc forget' and 'mvc gc' there, or raise --quota",
                    )
            free = self._fs.free_bytes(self.folder)
            if promised + size > free - min(free // 4, RESERVE):
                raise StorageFull(
                    f"the server's disk is nearly full: {in_units(size)} do not fit",
                    hint="its owner makes room there",
                )
            self._promised[upload] = size

    def release(self, upload: str) -> None:
        """What was reserved for an upload is there now, or will not come."""
        with self._lock:
            self._promised.pop(upload, None)

    def close(self) -> None:
        self._repo.close()


class Repositories:
    """Those of a folder: the folder itself under the name '', or those below it."""

    def __init__(
        self, fs: FileSystem, folder: Path, quota: int | None = None, *, shown: str = "here"
    ) -> None:
        """``shown``: how the folder itself is called; strangers need not know where it is."""
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
        """The repository of this name. Raises RemoteRefused for none, and the errors of opening."""
        with self._lock:
            served = self._open.get(name)
            with suppress(NotARepository):
                if served is not None and served.transport.is_in_place():
                    self._open.move_to_end(name)
                    return served
            served = self._open[name] = Served(self.fs, name, self._root(name), self._quota)
            while len(self._open) > _OPEN:
                # Requests that still use it keep it open by what they hold.
                self._open.popitem(last=False)
            return served

    def _root(self, name: str) -> Path:
        parts = name.split("/") if name else []
        if len(parts) > _DEEPEST or not all(_PART.fullmatch(part) for part in parts):
            raise RemoteRefused(
                "no repository has this name", hint="the URL is https://HOST/NAME, or https://HOST"
            )
        root = self.folder.joinpath(*parts)
        inside = root / FOLDER  # a link could lead anywhere
        if self.fs.realpath(inside) != inside or self.fs.stat(inside) is None:
            raise RemoteRefused(
                f"there is no repository {name or self._shown}",
                hint="its owner makes one there with 'mvc init --bare'",
            )
        return root

    def close(self) -> None:
        for served in self._open.values():
            with suppress(MvcError):
                served.close()


def names_in(fs: FileSystem, folder: Path, looks: float = _LOOKS) -> Iterator[str]:
    """Names of the repositories that would be served, among the first folders; '' is the folder."""
    top = fs.realpath(folder)
    waiting = [top]
    while waiting and looks:
        here, looks = waiting.pop(0), looks - 1
        if fs.stat(here / FOLDER) is not None:
            yield "/".join(here.relative_to(top).parts)
        with suppress(MvcError):
            below = [here / name for name in fs.list(here) if _PART.fullmatch(name)]
            facts = ((path, fs.stat(path, follow=False)) for path in below)
            waiting += (path for path, each in facts if each is not None and each.is_dir)


def _size(fs: FileSystem, folder: Path) -> int:
    total = 0
    for name in fs.list(folder):
        facts = fs.stat(folder / name, follow=False)
        if facts is not None and facts.is_dir:
            with suppress(MvcError):  # it was deleted a moment ago
                total += _size(fs, folder / name)
        elif facts is not None:
            total += facts.size
    return total
