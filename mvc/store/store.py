"""A store: the folder of a repository, opened. Wires view, graph, recovery and pool."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import AlreadyARepository
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.io.process import cpu_count
from mvc.limits import SLAB
from mvc.store import keys
from mvc.store.entries import Entry, RefChange, RefValue
from mvc.store.format import FORMAT, format_line, read_features
from mvc.store.graph import Graph
from mvc.store.journal import GENESIS, Recorded, encode_entry
from mvc.store.packs import PackWriter
from mvc.store.publish import publish
from mvc.store.speed import Speed
from mvc.store.view import JOURNAL, PACKS, View

if TYPE_CHECKING:
    from mvc.store.arena import Arenas
    from mvc.store.recover import Recovery

__all__ = ["CONFIG", "FOLDER", "Store", "create"]

FOLDER = ".mvc"
CONFIG = "config.yaml"


def create(fs: FileSystem, clock: Clock, parent: Path, branch: str, config: bytes) -> None:
    """Makes an empty repository in ``parent``: all of it or nothing."""
    folder = parent / FOLDER
    if fs.stat(folder) is not None:
        raise AlreadyARepository(f"there is a repository already: {folder}")
    fresh = parent / f"{FOLDER}.new-{os.urandom(4).hex()}"
    fs.make_dir(fresh)
    try:
        fs.make_dir(fresh / PACKS)
        fs.write_atomic(fresh / CONFIG, config)
        first = Entry(
            "init",
            clock.now_ns(),
            os.urandom(16).hex(),
            refs=(RefChange("HEAD", None, branch),),
        )
        fs.write_atomic(fresh / JOURNAL, encode_entry(first, GENESIS)[0])
        fs.write_atomic(fresh / FORMAT, format_line())
        fs.sync_dir(fresh)
        fs.replace(fresh, folder)
        fs.sync_dir(parent)
    except BaseException:
        for name in (FORMAT, JOURNAL, CONFIG):
            fs.unlink(fresh / name, missing_ok=True)
        if fs.stat(fresh) is not None:
            if fs.stat(fresh / PACKS) is not None:
                fs.remove_dir(fresh / PACKS)
            fs.remove_dir(fresh)
        raise


class Store:
    """An open repository folder. Safe across threads; reopens itself after a fork."""

    def __init__(self, fs: FileSystem, clock: Clock, folder: Path) -> None:
        self.fs = fs
        self.clock = clock
        self.folder = folder
        read_features(fs, folder)
        self.writable = fs.is_writable_dir(folder)
        self._lock = threading.RLock()
        self._pid = -1
        self._speed = Speed()
        self._arenas: Arenas | None = None
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._view = View(self.fs, self.folder, writable=self.writable)
        self._pool: ThreadPoolExecutor | None = None
        self._graph = Graph(self._view, self._speed)

    @property
    def view(self) -> View:
        """The view; a forked child gets one of its own."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._open()
        return self._view

    @property
    def graph(self) -> Graph:
        """The storage graph over the view."""
        _ = self.view
        return self._graph

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for hashing, encoding and decoding."""
        if self._pool is None or self._pid != os.getpid():
            with self._lock:
                _ = self.view
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(cpu_count(), thread_name_prefix="mvc")
        return self._pool

    @property
    def recovery(self) -> Recovery:
        """Decoding needs numpy, which a look-up such as ``mvc log`` must not pay for."""
        from mvc.store.recover import Recovery

        return Recovery(self.view, self.graph, self.pool)

    @property
    def arenas(self) -> Arenas:
        """Memory for encoded records, kept from one commit to the next."""
        from mvc.store.arena import Arenas

        if self._arenas is None:
            self._arenas = Arenas(2 * SLAB)
        return self._arenas

    def pack_writer(self) -> PackWriter:
        return PackWriter(self.fs, self.folder / PACKS, self._committed_end)

    def _committed_end(self, pack: int) -> int:
        """Where a pack's committed bytes end; 0 for a pack no entry names."""
        self.view.refresh()
        found = self.view.newest(keys.PACK + pack.to_bytes(4, "big"))
        if found is None:
            return 0
        return max(r.start + r.length for r in found.entry.regions if r.pack == pack)

    def publish(
        self, make: Callable[[], Entry], *, release: Callable[[], None] | None = None
    ) -> Recorded:
        """See ``mvc.store.publish``; afterwards the index is brought up to date if it lags."""
        recorded = publish(self.view, make, release=release)
        self.view.index_tail()
        return recorded

    def ref(self, name: str) -> RefValue:
        """A ref's present value."""
        found = self.view.newest(keys.REF + keys.text(name))
        if found is None:
            return None
        return next(c.new for c in reversed(found.entry.refs) if c.name == name)

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._view.close()
