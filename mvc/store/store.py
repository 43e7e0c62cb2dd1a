"""A store: an open repository folder.

``snapshot`` reads the journal (the list of all changes). ``graph`` finds the records from which an
object, such as a tensor, can be decoded, and ``recovery`` decodes these records. ``publish``
appends an entry to the journal, and ``sweep`` deletes files that no entry names. Methods import the
modules that decode or write, because most commands, such as ``mvc log``, need neither these modules
nor numpy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from mvc.canonical import Writer
from mvc.errors import AlreadyARepository, IoFailed, ReadOnly, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.io.clock import Clock, check_now
from mvc.io.files import TEMPORARY, FileSystem, SharedFolder
from mvc.io.process import cpu_count
from mvc.limits import PIECE
from mvc.names import FOLDER
from mvc.store.format import FORMAT, add_features, format_line, only_read, read_features
from mvc.store.index import keys
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.journal.frames import GENESIS, Recorded, encode_entry
from mvc.store.packs.reader import pack_numbers, pack_path
from mvc.store.snapshot import JOURNAL, PACKS, IndexThresholds, Snapshot
from mvc.store.writing.pack_ends import PackEnds

if TYPE_CHECKING:
    from concurrent.futures import Executor, ThreadPoolExecutor

    from mvc.store.graph.search import Graph
    from mvc.store.packs.arena import Arenas
    from mvc.store.recovery.rates import Rates
    from mvc.store.recovery.recover import Recovery
    from mvc.store.writing.full_or_delta import Policy
    from mvc.store.writing.object_writer import ObjectWriter
    from mvc.store.writing.pack_writer import PackWriter, RecordSink


CONFIG = "config.yaml"
FIRST_CONFIG = b"# See docs/commands/config.md\n"
BARE_CONFIG = FIRST_CONFIG + b"core:\n  bare: true\n"
GITIGNORE = ".gitignore"  # so that a git repository around the folder ignores the folder


SharedBy: TypeAlias = Literal["group", "all"]
"""``group``: a group of users may read and write a repository. ``all``: all may read it, too."""
_SHARES: dict[SharedBy, int] = {"group": 0o2070, "all": 0o2075}


def create(
    fs: FileSystem,
    clock: Clock,
    parent: Path,
    branch: str,
    config: bytes,
    *,
    shared: SharedBy | None = None,
) -> None:
    """Creates an empty repository in ``parent``, atomically. Raises AlreadyARepository."""
    folder = parent / FOLDER
    already = AlreadyARepository(f"this folder has a repository already: {folder}")
    if fs.stat(folder) is not None:
        raise already
    now = check_now(clock.now_ns())
    fresh = parent / f"{FOLDER}.new-{os.urandom(4).hex()}"
    fs.make_dir(fresh)
    try:
        if shared is not None:
            share_new(fs, fresh, shared)
        fs = fs.shared_by(fresh)
        fs.make_dir(fresh / PACKS)
        fs.write_atomic(fresh / CONFIG, config)
        fs.write_atomic(fresh / GITIGNORE, b"*\n")
        first = Entry(
            "init",
            now,
            os.urandom(16).hex(),
            refs=(RefChange("HEAD", None, branch),),
        )
        fs.write_atomic(fresh / JOURNAL, encode_entry(first, GENESIS)[0])
        fs.write_atomic(fresh / FORMAT, format_line())
        fs.sync_dir(fresh)
        try:
            fs.replace(fresh, folder)
        except IoFailed as error:
            if fs.stat(folder / FORMAT) is None:
                raise
            # Another process has created a repository meanwhile.
            raise already from error
        fs.sync_dir(parent)
    except BaseException:
        if fs.stat(fresh) is not None:
            fs.remove_tree(fresh)
        raise


def share_new(fs: FileSystem, folder: Path, shared: SharedBy) -> None:
    """Gives a new folder the permissions of ``shared``. Raises IoFailed if this is not possible."""
    if shared not in _SHARES:
        raise WrongUsage(f"shared is {shared!r}", hint=f"use {' or '.join(_SHARES)}")
    identity = fs.stat(folder)
    assert identity is not None
    fs.set_mode(folder, identity.permissions | _SHARES[shared])
    if SharedFolder.at(fs, folder) is None:
        raise IoFailed(
            f"{folder.parent} cannot be shared: you do not belong to its group",
            hint="create the repository in a folder of a group that you belong to ('chgrp')",
        )


class DiskUse(Struct, frozen=True):
    """The number of bytes on disk, without the index. ``packs``: maps pack numbers to bytes."""

    journal: int
    packs: dict[int, int]

    @property
    def total(self) -> int:
        return self.journal + sum(self.packs.values())


class Store:
    """An open repository folder. Safe across threads. Opens itself again after a fork."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        folder: Path,
        *,
        thresholds: IndexThresholds | None = None,
        pool: Executor | None = None,
    ) -> None:
        """Opens ``folder``. ``pool`` runs hashing, encoding and decoding. None: a new thread pool.

        ``thresholds``: when entries at the end of the journal are indexed. Raises
        UnsupportedFormat, DamagedData, HistoryMissing and IoFailed.
        """
        self.fs = fs
        self.clock = clock
        self.folder = folder
        features = read_features(fs, folder)
        self._required: set[str] = set()
        self.writable = fs.is_writable_dir(folder) and not only_read(features)
        self._lock = threading.RLock()
        self._pid = -1
        self._thresholds = thresholds
        self._given_pool = pool
        self._arenas: Arenas | None = None
        self.closed = False
        self.bare = False
        """Whether the repository has no working folder (the setting ``core.bare``)."""
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._snapshot = Snapshot(
            self.fs,
            self.folder,
            writable=self.writable,
            thresholds=self._thresholds,
        )
        self._pool: ThreadPoolExecutor | None = None
        self.provided: dict[bytes, memoryview] = {}
        """Maps ids to objects that can be read although they are not stored (``providing``)."""
        self._graph: Graph | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The present snapshot. After a fork, the child process opens its own snapshot.

        Raises WrongUsage if the repository is closed.
        """
        if self.closed:
            raise WrongUsage("this repository is closed", hint="open the repository again")
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._open()
        return self._snapshot

    @property
    def root(self) -> Path:
        """The folder that contains ``.mvc``."""
        return self.folder.parent

    def fresh(self) -> Snapshot:
        """The snapshot, refreshed to the end of the journal.

        Every operation that reads calls this method first, to include entries of other processes.
        """
        snapshot = self.snapshot
        snapshot.refresh()
        return snapshot

    @property
    def graph(self) -> Graph:
        """The storage graph, which finds the records to decode for an object."""
        from mvc.store.graph.search import Graph, Speed

        with self._lock:
            snapshot = self.snapshot
            if self._graph is None:
                self._graph = Graph(snapshot, Speed())
            return self._graph

    @property
    def pool(self) -> Executor:
        """Threads for hashing, encoding and decoding."""
        if self._given_pool is not None:
            return self._given_pool
        if self._pool is None or self._pid != os.getpid():
            with self._lock:
                _ = self.snapshot
                if self._pool is None:
                    from concurrent.futures import ThreadPoolExecutor

                    self._pool = ThreadPoolExecutor(cpu_count(), thread_name_prefix="mvc")
        return self._pool

    @contextmanager
    def providing(self, contents: Mapping[bytes, memoryview]) -> Iterator[None]:
        """While the ``with`` block runs, these objects can be read even if they are not stored.

        Their bytes are checked against their ids, like those of stored objects.
        """
        new = contents.keys() - self.provided.keys()
        self.provided.update(contents)
        try:
            yield
        finally:
            for id_ in new:
                del self.provided[id_]

    @property
    def recovery(self) -> Recovery:
        """Decodes objects."""
        from mvc.store.recovery.recover import Recovery

        return Recovery(self.snapshot.packs, self.graph, self.pool, self.provided)

    @property
    def rates(self) -> Rates:
        """Estimates recovery times from constants."""
        from mvc.store.recovery.rates import Rates

        return Rates()

    @property
    def arenas(self) -> Arenas:
        """Memory for encoded records. Later commits use this memory again."""
        from mvc.store.packs.arena import Arenas

        if self._arenas is None:
            self._arenas = Arenas(2 * PIECE)
        return self._arenas

    def require(self, features: frozenset[str] = frozenset()) -> None:
        """Records format features durably in the file ``format``.

        Call it before bytes that need these features are written, and not under the journal's lock.
        Raises ReadOnly if this release may not write because of a recorded feature.
        """
        self._required |= features
        present = read_features(self.fs, self.folder)
        if only_read(present) or not features <= present:
            with self.fs.lock(self.folder / JOURNAL):
                add_features(self.fs, self.folder, features)

    def check_writable(self, done: str) -> None:
        """Raises ReadOnly if the folder cannot be written, and InvalidTime if the clock is invalid.

        ``done``: the participle in the message "nothing can be collected".
        """
        self.require()
        if not self.writable:
            raise ReadOnly(
                f"nothing can be {done}: the repository's folder cannot be written",
                hint="check the permissions of the folder, or work on a writable copy",
            )
        self.now_ns()

    def disk_use(self) -> DiskUse:
        numbers = pack_numbers(self.fs, self.folder / PACKS)
        packs = {n: self._size_of(pack_path(self.folder / PACKS, n)) for n in numbers}
        return DiskUse(self._size_of(self.folder / JOURNAL), packs)

    def _size_of(self, path: Path) -> int:
        identity = self.fs.stat(path)
        return 0 if identity is None else identity.size

    def pack_writer(self, *, fresh: bool = False) -> PackWriter:
        """Appends records to packs; with ``fresh``, only to new packs."""
        from mvc.store.writing.pack_writer import PackWriter

        return PackWriter(
            self.fs, self.folder / PACKS, PackEnds(self.snapshot), fresh=fresh,
            features=self._required,
        )  # fmt: skip

    def object_writer(self, packs: RecordSink, policy: Policy) -> ObjectWriter:
        from mvc.store.writing.object_writer import ObjectWriter

        return ObjectWriter(
            packs, policy, graph=self.graph, recovery=self.recovery, pool=self.pool,
            arenas=self.arenas,
        )  # fmt: skip

    def publish(
        self, make: Callable[[], Entry], *, release: Callable[[], None] | None = None
    ) -> Recorded:
        """Appends the entry that ``make`` returns (``mvc.store.publishing.publish``).

        Then indexes new entries if there are many.
        """
        from mvc.store.publishing.publish import publish

        recorded = publish(
            self.snapshot,
            lambda: self._checked(make),
            release=release,
            stored=frozenset(self._required),
        )
        self.snapshot.index_tail()
        return recorded

    def publish_all(self, makes: Callable[[], Iterator[Callable[[], Entry]]]) -> list[Recorded]:
        """As ``publish``, for several entries in a row under one lock.

        ``makes`` runs under the lock, too. For each entry, it yields a function that returns the
        entry. After each ``yield`` of ``makes``, the snapshot includes the entry.
        """
        from mvc.store.publishing.publish import publish_all

        def entries() -> Iterator[Entry]:
            for make in makes():
                yield self._checked(make)
                self.snapshot.refresh()

        recorded = publish_all(self.snapshot, entries, stored=frozenset(self._required))
        self.snapshot.index_tail()
        return recorded

    def index_anew(self) -> None:
        """Indexes a journal that was just replaced, so that no other process has to index it."""
        self.snapshot.index_tail(force=True)

    def sweep(self) -> int:
        """Deletes packs that no journal entry names, and temporary files. Returns the freed bytes.

        A pack that another process writes to is locked and not deleted. A reader that needs a
        deleted pack detects this and searches again.
        """
        ends = PackEnds(self.snapshot)
        freed = 0
        with ExitStack() as locks:
            unnamed = self._lock_unnamed(locks, ends.all_proven())
            # An entry may have named a pack before the pack was locked, so read the entries again.
            named = ends.all_proven() if unnamed else {}
            for number, path in unnamed.items():
                freed += 0 if named.get(number) else self._delete(path)
        for name in self.fs.list(self.folder):
            path = self.folder / name
            identity = self.fs.stat(path, follow=False) if name.startswith(TEMPORARY) else None
            if identity is not None and identity.is_file:
                lock = self.fs.lock(path, block=False)
                if lock is not None:
                    with lock:
                        freed += self._delete(path)
        return freed

    def unnamed_packs(self) -> set[int]:
        """Numbers of packs on disk that no entry names. Other processes may be writing to them."""
        ends = PackEnds(self.snapshot).all_proven()
        return {n for n in pack_numbers(self.fs, self.folder / PACKS) if not ends.get(n)}

    def _lock_unnamed(self, locks: ExitStack, ends: dict[int, int]) -> dict[int, Path]:
        """Locks the packs that no entry names and no process writes to.

        The locks end when ``locks`` is closed.
        """
        paths = {}
        for number in pack_numbers(self.fs, self.folder / PACKS):
            path = pack_path(self.folder / PACKS, number)
            lock = None if ends.get(number) else self.fs.lock(path, block=False)
            if lock is not None:
                locks.enter_context(lock)
                paths[number] = path
        return paths

    def _delete(self, path: Path) -> int:
        """Deletes a locked file. Returns its size in bytes."""
        size = self._size_of(path)
        self.fs.unlink(path, missing_ok=True)
        return size

    def now_ns(self) -> int:
        """The clock's time in ns. Raises InvalidTime if this time cannot be recorded.

        Call it before an operation writes anything.
        """
        return check_now(self.clock.now_ns())

    def _checked(self, make: Callable[[], Entry]) -> Entry:
        """The entry to publish. If ``make`` read an incomplete index, ``make`` is called again."""
        entry = make()
        check_now(entry.time_ns)
        if self._hidden(entry):
            self.snapshot.renew_index()
            entry = make()
        self._check_named(entry)
        return entry

    def _hidden(self, entry: Entry) -> bool:
        """Whether the index lacks the newest value of a ref or target that ``entry`` changes.

        The journal itself is searched for this value, because the index may be outdated or damaged.
        """
        prefixes = [(keys.REF + keys.text(change.name), change.name) for change in entry.refs]
        targets = {s.target for s in entry.statements if s.target}
        prefixes += [(keys.on(target), target) for target in targets]
        return any(self._is_hidden(prefix, name) for prefix, name in prefixes)

    def _is_hidden(self, prefix: bytes, name: str) -> bool:
        newest = self.snapshot.newest(prefix)
        start = GENESIS if newest is None else newest.after
        if not self.snapshot.mentions(Writer().text(name).done(), start.offset):
            return False
        later = (keys.entry_keys(recorded) for recorded in self.snapshot.entries(start))
        return any(key.startswith(prefix) for entry_keys in later for key in entry_keys)

    def _check_named(self, entry: Entry) -> None:
        """Raises UnknownRevision if ``entry`` would name a commit that gc has just deleted."""
        own = {commit.id for commit in entry.commits}
        for value in [*(change.new for change in entry.refs), *entry.about]:
            if isinstance(value, CommitId) and value not in own and not self._proves(value):
                raise UnknownRevision(
                    f"gc has just deleted commit {value.short}",
                    hint="'mvc log' lists the commits of this repository",
                )

    def _proves(self, value: CommitId) -> bool:
        """Whether this commit exists. If the index lacks it, the whole journal is searched."""
        if self.snapshot.has_commit(value):
            return True
        ids = (c.id for recorded in self.snapshot.entries() for c in recorded.entry.commits)
        if value not in ids:
            return False
        self.snapshot.renew_index()
        return True

    def close(self) -> None:
        self.closed = True
        if self._pid != os.getpid():
            return
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._snapshot.close()
