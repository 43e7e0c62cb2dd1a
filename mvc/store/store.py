"""A store: an open repository folder, with its snapshot, graph, recovery and thread pool."""

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
GITIGNORE = ".gitignore"  # a git repository around the folder then leaves it alone


SharedBy: TypeAlias = Literal["group", "all"]
"""Who may use a repository beside its owner: its group, or its group and all others to read."""
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
    """Makes an empty repository in ``parent``, atomically; AlreadyARepository if there is one."""
    folder = parent / FOLDER
    already = AlreadyARepository(f"there is a repository already: {folder}")
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
            # Another process was faster.
            raise already from error
        fs.sync_dir(parent)
    except BaseException:
        if fs.stat(fresh) is not None:
            fs.remove_tree(fresh)
        raise


def share_new(fs: FileSystem, folder: Path, shared: SharedBy) -> None:
    """Opens a new folder to its group. Raises IoFailed where the system does not do that."""
    if shared not in _SHARES:
        raise WrongUsage(f"shared is {shared!r}", hint=f"it takes {' or '.join(_SHARES)}")
    made = fs.stat(folder)
    assert made is not None
    fs.set_mode(folder, made.permissions | _SHARES[shared])
    if SharedFolder.at(fs, folder) is None:
        raise IoFailed(
            f"what is made in {folder.parent} cannot be shared: its group is none of yours",
            hint="make the repository in a folder of a group that you belong to ('chgrp')",
        )


class DiskUse(Struct, frozen=True):
    """Bytes of the journal, and of each pack by number; without the index, which is derived."""

    journal: int
    packs: dict[int, int]

    @property
    def total(self) -> int:
        return self.journal + sum(self.packs.values())


class Store:
    """An open repository folder. Safe across threads; reopens itself after a fork."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        folder: Path,
        *,
        thresholds: IndexThresholds | None = None,
        pool: Executor | None = None,
    ) -> None:
        """Opens ``folder``. ``pool`` runs hashing, encoding and decoding; by default threads.

        ``thresholds`` says when the tail of the journal is indexed. Raises UnsupportedFormat,
        DamagedData, HistoryMissing, IoFailed.
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
        """Whether the repository has no working files (the setting ``core.bare``)."""
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
        self.made: dict[bytes, memoryview] = {}
        """Objects that were made again, by id: reading takes them from here. See ``with_made``."""
        self._graph: Graph | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The present snapshot; a forked child opens one of its own. Raises WrongUsage."""
        if self.closed:
            raise WrongUsage("this repository is closed", hint="open it again")
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
        """The snapshot, refreshed to the current end of the journal.

        Every verb that reads begins with it, so that an open repository sees the entries that
        other processes published.
        """
        snapshot = self.snapshot
        snapshot.refresh()
        return snapshot

    @property
    def graph(self) -> Graph:
        """The storage graph over the snapshot. Imported here: a look-up decodes nothing."""
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
    def with_made(self, made: Mapping[bytes, memoryview]) -> Iterator[None]:
        """While the block runs, these objects can be read, whether they are stored or not.

        Their bytes are compared with their ids like those of others.
        """
        new = made.keys() - self.made.keys()
        self.made.update(made)
        try:
            yield
        finally:
            for id_ in new:
                del self.made[id_]

    @property
    def recovery(self) -> Recovery:
        """Decodes objects. Imported here: a look-up such as ``mvc log`` need not load numpy."""
        from mvc.store.recovery.recover import Recovery

        return Recovery(self.snapshot.packs, self.graph, self.pool, self.made)

    @property
    def rates(self) -> Rates:
        """What decoding takes, in constants."""
        from mvc.store.recovery.rates import Rates

        return Rates()

    @property
    def arenas(self) -> Arenas:
        """Memory for encoded records, reused from one commit to the next."""
        from mvc.store.packs.arena import Arenas

        if self._arenas is None:
            self._arenas = Arenas(2 * PIECE)
        return self._arenas

    def require(self, features: frozenset[str] = frozenset()) -> None:
        """Names features in ``format``, durably, before anything is written that needs them.

        The caller must not hold the journal's lock. Raises ReadOnly if a feature that is named
        already says that this mvc may not write.
        """
        self._required |= features
        present = read_features(self.fs, self.folder)
        if only_read(present) or not features <= present:
            with self.fs.lock(self.folder / JOURNAL):
                add_features(self.fs, self.folder, features)

    def check_writable(self, done: str) -> None:
        """Raises ReadOnly if the folder cannot be written; ``done``: a verb such as "collected".

        Raises InvalidTime if the time of the operation cannot be recorded.
        """
        self.require()
        if not self.writable:
            raise ReadOnly(
                f"nothing can be {done}: the repository's folder cannot be written",
                hint="check the permissions of the folder, or work on a copy that can be written",
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
        """Appends to packs; with ``fresh`` only to new ones. Imported here, as all that writes."""
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
        """See ``publish``; afterwards the index is brought up to date if it lags."""
        from mvc.store.publishing.publish import publish

        recorded = publish(
            self.snapshot,
            lambda: self._made(make),
            release=release,
            stored=frozenset(self._required),
        )
        self.snapshot.index_tail()
        return recorded

    def publish_all(self, makes: Callable[[], Iterator[Callable[[], Entry]]]) -> list[Recorded]:
        """As ``publish``, but several entries one after the other, under one lock.

        ``makes`` runs under the lock, too; before it goes on, the snapshot knows the entry.
        """
        from mvc.store.publishing.publish import publish_all

        def entries() -> Iterator[Entry]:
            for make in makes():
                yield self._made(make)
                self.snapshot.refresh()

        recorded = publish_all(self.snapshot, entries, stored=frozenset(self._required))
        self.snapshot.index_tail()
        return recorded

    def index_anew(self) -> None:
        """Indexes a journal that was just replaced, so that no other process has to."""
        self.snapshot.index_tail(force=True)

    def sweep(self) -> int:
        """Deletes files that nothing names any more; returns their bytes.

        A pack that another process is writing to is locked, and stays. A reader that still wants
        a deleted pack notices it and looks the object up again.
        """
        ends = PackEnds(self.snapshot)
        freed = 0
        with ExitStack() as held:
            unnamed = self._lock_unnamed(held, ends.all_proven())
            named = (
                ends.all_proven() if unnamed else {}
            )  # read again: some may have been published since
            for number, path in unnamed.items():
                freed += 0 if named.get(number) else self._delete(path)
        for name in self.fs.list(self.folder):
            path = self.folder / name
            there = self.fs.stat(path, follow=False) if name.startswith(TEMPORARY) else None
            if there is not None and there.is_file:
                lock = self.fs.lock(path, block=False)
                if lock is not None:
                    with lock:
                        freed += self._delete(path)
        return freed

    def unnamed_packs(self) -> set[int]:
        """Numbers of packs on disk that no entry names: a process writes to them, or read them."""
        ends = PackEnds(self.snapshot).all_proven()
        return {n for n in pack_numbers(self.fs, self.folder / PACKS) if not ends.get(n)}

    def _lock_unnamed(self, held: ExitStack, ends: dict[int, int]) -> dict[int, Path]:
        """Packs that no entry names and no process writes to; ``held`` keeps them locked."""
        found = {}
        for number in pack_numbers(self.fs, self.folder / PACKS):
            path = pack_path(self.folder / PACKS, number)
            lock = None if ends.get(number) else self.fs.lock(path, block=False)
            if lock is not None:
                held.enter_context(lock)
                found[number] = path
        return found

    def _delete(self, path: Path) -> int:
        """Deletes a file that is locked; returns its bytes."""
        size = self._size_of(path)
        self.fs.unlink(path, missing_ok=True)
        return size

    def now_ns(self) -> int:
        """The clock's time in ns; InvalidTime if no operation of that time can be recorded.

        An operation that writes anything before its entry must call this first.
        """
        return check_now(self.clock.now_ns())

    def _made(self, make: Callable[[], Entry]) -> Entry:
        """The entry to publish; made again if the index lacked what it builds on."""
        entry = make()
        check_now(entry.time_ns)
        if self._hidden(entry):
            self.snapshot.renew_index()
            entry = make()
        self._check_named(entry)
        return entry

    def _hidden(self, entry: Entry) -> bool:
        """Whether the index lacks the newest value of a ref or deployment that an entry names.

        An entry names its predecessors as evidence, so the journal itself is searched.
        """
        prefixes = [(keys.REF + keys.text(change.name), change.name) for change in entry.refs]
        targets = {each.target for each in entry.statements if each.target}
        prefixes += [(keys.on(target), target) for target in targets]
        return any(self._is_hidden(prefix, name) for prefix, name in prefixes)

    def _is_hidden(self, prefix: bytes, name: str) -> bool:
        found = self.snapshot.newest(prefix)
        start = GENESIS if found is None else found.after
        if not self.snapshot.mentions(Writer().text(name).done(), start.offset):
            return False
        later = (keys.entry_keys(recorded) for recorded in self.snapshot.entries(start))
        return any(key.startswith(prefix) for entry_keys in later for key in entry_keys)

    def _check_named(self, entry: Entry) -> None:
        """Raises UnknownRevision if an entry would point to a commit that gc has just deleted."""
        own = {commit.id for commit in entry.commits}
        for value in [*(change.new for change in entry.refs), *entry.about]:
            if isinstance(value, CommitId) and value not in own and not self._proves(value):
                raise UnknownRevision(
                    f"commit {value.short} was collected in the meantime",
                    hint="'mvc log' lists the commits there are",
                )

    def _proves(self, value: CommitId) -> bool:
        """Whether there is this commit; if the index says no, the journal decides."""
        if self.snapshot.has_commit(value):
            return True
        found = (c.id for recorded in self.snapshot.entries() for c in recorded.entry.commits)
        if value not in found:
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
