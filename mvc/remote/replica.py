"""One file kept equal to what is live on a target: from the version it holds to the next one.

Beside ``FILE`` lies the folder ``.FILE.mvc``: the note that says which version the file holds, and
the records that came last. All of it is disposable. The objects of the old version are read from
the file itself; what comes of them is compared with its hash before the file is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mvc.adapters.opening import open_file
from mvc.adapters.parsed import FileParts, ParsedContent, SourceFile
from mvc.adapters.served_version import NotedVersion
from mvc.errors import (
    Busy,
    DamagedData,
    HistoryMissing,
    IoFailed,
    MvcError,
    StorageFull,
    UnsupportedFormat,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem, LateFlushes
from mvc.io.handles import ReadFile
from mvc.limits import MAX_MANIFEST, MIB
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.names import FOLDER, printable
from mvc.remote.receiving.receiver import take_records
from mvc.remote.sending.live import objects_of
from mvc.remote.slices import decode_entries
from mvc.remote.transport import Slice, Transport, Wanted
from mvc.repo.checkout.checkout import fill_file
from mvc.repo.checkout.outputs import names_folder, refuse_store
from mvc.repo.ownership import refuse_foreign
from mvc.store.format import check_features
from mvc.store.graph.memory import LooseGraph
from mvc.store.graph.search import Speed
from mvc.store.journal.entries import Entry
from mvc.store.packs.reader import PACKS
from mvc.store.recovery.recover import Held, Recovery
from mvc.store.store import BARE_CONFIG, Store, create

_NOTE, _RECORDS, _LOCK, _NEXT, _IGNORED = "note", "records", "lock", "next", ".gitignore"
_LONGEST_NOTE = 4 * MAX_MANIFEST
_KEPT, _KEPT_SHARE = 16 * MIB, 0.5  # bytes of kept records, and of the file at most
_MOST_KEPT = 20
_Identity = tuple[int, int, int, int, int]


class KeptVersion(Struct, frozen=True):
    """A version whose file can be made of the present one, by the records that were kept.

    All but the objects that it ``lacks``, which nothing leads to any more.
    """

    commit: bytes
    manifest: bytes
    path: str
    lacks: tuple[bytes, ...] = ()

    @property
    def objects(self) -> set[bytes]:
        """Of the file, and the manifest."""
        entry = Manifest.decode(self.manifest).by_path[self.path]
        return {*objects_of(entry), Manifest.id_of(self.manifest)}


class FollowedVersion(NotedVersion, frozen=True, kw_only=True):
    """A version of which ``path`` is the file. ``identity`` tells the file from others.

    ``data`` and ``manifest`` are canonical bytes. ``before``: versions that lead to the next one
    as well, the newest first. ``asked``: the path that was asked for, if one was. ``told``: what
    was to happen after the swap has.
    """

    data: bytes
    manifest: bytes
    path: str
    before: tuple[KeptVersion, ...] = ()
    asked: str = ""
    identity: _Identity | None = None
    told: bool = False

    @property
    def id(self) -> CommitId:
        return CommitId(self.commit)

    @property
    def written_ns(self) -> int:
        """When the file was written; 0 if that is not known."""
        return 0 if self.identity is None else self.identity[3]

    @property
    def entry(self) -> FileEntry:
        """What the file is. Raises DamagedData, KeyError."""
        return Manifest.decode(self.manifest).by_path[self.path]

    def is_sound(self) -> bool:
        """Whether the parts belong together."""
        with suppress(MvcError, KeyError, ValueError):
            commit = Commit.decode(self.data)
            named = commit.id == self.commit and Manifest.id_of(self.manifest) == commit.manifest
            return named and bool(self.entry.path) and all(each.objects for each in self.before)
        return False


class Update(Struct, frozen=True):
    """The file holds ``version``, for which ``received`` bytes of records came.

    ``foreign``: something else had written the file.
    """

    version: FollowedVersion
    received: int
    foreign: bool


class Replica:
    """A file that one process at a time keeps. Raises WrongUsage, IoFailed, Busy."""

    def __init__(self, fs: FileSystem, place: Path) -> None:
        self._fs, self._place = fs, place
        self.shown = printable(str(place))
        self.check(fs, place, with_suffix=True)
        self.folder = _folder_beside(place)
        for each, what in ((place, "the file itself"), (self.folder, "another file")):
            present = fs.stat(each, follow=False)
            if present is not None and present.is_symlink:
                raise WrongUsage(f"{printable(str(each))} is a symbolic link", hint=f"name {what}")
        refuse_foreign(fs, self.folder)  # its note says what the file holds
        fs.make_dir(self.folder, exist_ok=True)
        lock = fs.lock(self.folder / _LOCK, block=False)
        if lock is None:
            raise Busy(
                f"another process keeps {self.shown}",
                hint="one file has one follower: end the other",
            )
        self._lock = lock
        fs.unlink(self.folder / _NEXT, missing_ok=True)
        if fs.stat(self.folder / _IGNORED) is None:
            fs.write_atomic(self.folder / _IGNORED, b"*\n")
        self._known = self.noted(fs, place)

    @staticmethod
    def check(fs: FileSystem, place: Path, *, with_suffix: bool = False) -> None:
        """Raises WrongUsage for a place in a repository's store, or where a folder, a pipe or a
        device stands, IoFailed where its folder does not exist.

        ``with_suffix``: also for the name of a folder.
        """
        refuse_store(fs, place)
        shown, folder = printable(str(place)), fs.stat(place.parent)
        if folder is None or not folder.is_dir:
            raise IoFailed(f"there is no folder for {shown}", hint="make it first")
        present = fs.stat(place, follow=False)
        if present is not None and not present.is_file and fs.read_link(place) is None:
            what = "a folder" if present.is_dir else "a pipe, a socket or a device"
            raise WrongUsage(f"{shown} is {what}", hint="name a file, or a place where nothing is")
        if with_suffix and names_folder(fs, place):
            raise WrongUsage(f"{shown} names a folder", hint="give the file a suffix")

    @staticmethod
    def holds(fs: FileSystem, file: Path, entry: FileEntry) -> bool:
        """Whether a file has all bytes of an entry, by its hash; not if it cannot be read."""
        present = fs.stat(file, follow=False)
        if present is None or not present.is_file or present.size != entry.size:
            return False
        with suppress(MvcError), open_file(fs, file, entry.path) as there:
            return there.entry.content_id == entry.content_id
        return False

    @staticmethod
    def noted(fs: FileSystem, file: Path) -> list[FollowedVersion]:
        """What the note beside a file says that it holds; while it is replaced the new version and
        the one before. Empty where there is no note, or none that can be read.
        """
        with suppress(IoFailed, msgspec.MsgspecError, ValueError, RecursionError):
            data = fs.read_bytes(_folder_beside(file) / _NOTE, _LONGEST_NOTE)
            found = msgspec.json.decode(data, type=list[FollowedVersion])
            return [version for version in found if version.is_sound()]
        return []

    def close(self) -> None:
        """Lets another process keep the file."""
        self._lock.release()

    # -- what the file holds ---------------------------------------------------------------

    def current(self) -> FollowedVersion | None:
        """The version that the file holds; None if there is no file, or something else wrote it.

        Reads the file only if it is not known to be untouched.
        """
        there = self._identity(self._place)
        if there is None:
            return None
        for version in self._known:
            if version.identity == there:
                return version
        for version in self._known:
            if self.holds(self._fs, self._place, version.entry):
                return self.note(replace(version, identity=self._identity(self._place)))
        return None

    def _identity(self, place: Path) -> _Identity | None:
        there = self._fs.stat(place, follow=False)
        if there is None:
            return None
        return there.inode, there.device, there.size, there.mtime_ns, there.ctime_ns

    def note(
        self, version: FollowedVersion, before: FollowedVersion | None = None
    ) -> FollowedVersion:
        """Remembers what the file holds, or holds soon; ``before`` until then. Durable."""
        self._known = [version] if before is None else [version, before]
        self._fs.write_atomic(self.folder / _NOTE, msgspec.json.encode(self._known))
        return version

    # -- the next version ------------------------------------------------------------------

    def update(self, transport: Transport, target: str, path: str = "") -> Update:
        """Makes the file what is live on a target; durable on return.

        ``path`` names a file of the version where it has several. Raises UnknownTarget,
        NoDeployment, UnknownPath, StateForgotten, WeightsDropped, StorageFull, IoFailed, and
        DamagedData for records that do not lead there; the old file then stays.
        """
        doubts = 0
        while True:
            old = self.current()
            wanted = Wanted(live=target, path=path)
            if old is not None and old.asked == path and doubts < 2:
                wanted = self._from_here(wanted, old, with_kept=not doubts)
            try:
                return self._taken(transport, wanted, old)
            except DamagedData:
                if not wanted.have:
                    raise
                doubts += 1  # and the whole file is read before it is counted on again
                self._known = [replace(each, identity=None) for each in self._known]

    def _from_here(self, wanted: Wanted, old: FollowedVersion, *, with_kept: bool) -> Wanted:
        """The question of one who has the file, and, with what was kept, versions before it."""
        kept = with_kept and self._fs.stat(self.folder / _RECORDS / FOLDER) is not None
        before = old.before if kept else ()
        return replace(
            wanted,
            have=frozenset((old.id, *(CommitId(each.commit) for each in before))),
            objects=tuple(sorted({id_ for each in before for id_ in each.lacks})),
        )

    def _taken(
        self, transport: Transport, wanted: Wanted, before: FollowedVersion | None
    ) -> Update:
        foreign = before is None and self._fs.stat(self._place, follow=False) is not None
        with closing(transport.send(wanted)) as slices:
            for given in slices:
                return Update(self._take(given, wanted, before), given.size, foreign)
        raise DamagedData(f"{transport.url} does not say what is live")

    def _take(
        self, given: Slice, wanted: Wanted, before: FollowedVersion | None
    ) -> FollowedVersion:
        """Makes the file what was sent, counting on what the question said."""
        commit, time_ns = _answer(given, wanted.live)
        old = before if wanted.have else None
        if old is not None and old.commit == commit.id:
            for _ in given.records:
                pass
            return self.note(old)
        if len(wanted.have) <= 1:
            self._drop_records()
        self._require(given.size)
        with self._held(old) as held, self._received(given) as store:
            graph = LooseGraph(store.snapshot, Speed())
            kept = [] if old is None else [KeptVersion(old.commit, old.manifest, old.path)]
            kept += old.before if old is not None and len(wanted.have) > 1 else ()
            for each in kept:
                graph.know(each.objects)
                held.setdefault(Manifest.id_of(each.manifest), memoryview(each.manifest))
            graph.know([commit.manifest])
            recovery = Recovery(store.snapshot.packs, graph, store.pool, held)
            data = recovery.manifest(commit.manifest)
            manifest = Manifest.decode(data)
            if manifest.root != commit.root:
                raise DamagedData(f"version {commit.id.short} has another root than its files")
            entry = manifest.file(wanted.path or None)
            graph.know(objects_of(entry))
            version = FollowedVersion(
                bytes(commit.id), bytes(entry.state_id), time_ns,
                data=commit.encoded, manifest=data, path=entry.path, asked=wanted.path,
                before=self._leading(kept, graph.reached({*objects_of(entry)}), entry.size),
            )  # fmt: skip
            if old is None or old.entry.content_id != entry.content_id:
                self._write(recovery, entry, version, before)
        if not version.before:
            self._drop_records()
        return self.note(replace(version, identity=self._identity(self._place)))

    def _leading(
        self, kept: Sequence[KeptVersion], reached: Set[bytes], size: int
    ) -> tuple[KeptVersion, ...]:
        """Those of the versions that can be made of the new file, if the records are not many."""
        packs = self.folder / _RECORDS / FOLDER / PACKS
        found = (self._fs.stat(packs / name) for name in self._fs.list(packs))
        if sum(each.size for each in found if each is not None) > max(size * _KEPT_SHARE, _KEPT):
            return ()
        leading, room = list[KeptVersion](), _KEPT
        for each in kept[:_MOST_KEPT]:
            objects = each.objects
            lacks = objects - reached - {Manifest.id_of(each.manifest)}
            room -= len(each.manifest)
            if room > 0 and 2 * len(lacks) < len(objects):
                leading.append(replace(each, lacks=tuple(sorted(map(bytes, lacks)))))
        return tuple(leading)

    def _write(
        self,
        recovery: Recovery,
        entry: FileEntry,
        version: FollowedVersion,
        before: FollowedVersion | None,
    ) -> None:
        """Writes the new file beside the old one, and puts it in its place."""
        self._require(entry.size)
        fs, fresh = self._fs, self.folder / _NEXT
        present = fs.stat(self._place, follow=False)
        mode = None if present is None else present.permissions
        fs.unlink(fresh, missing_ok=True)
        try:
            with fs.open_write(
                fresh, create=True, exclusive=True, mode=0o666 if mode is None else mode
            ) as file:
                if mode is not None:
                    file.set_mode(mode)
                fill_file(recovery, entry, file)
                file.sync()
            self.note(replace(version, identity=self._identity(fresh)), before)
            fs.replace(fresh, self._place)
        except BaseException:
            with suppress(MvcError):
                fs.unlink(fresh, missing_ok=True)
            raise
        fs.sync_dir(self._place.parent)

    def _require(self, size: int) -> None:
        if (free := self._fs.free_bytes(self.folder)) < size:
            raise StorageFull(
                f"there is no room for a second {self.shown}: it takes {size} bytes, and {free} "
                "are free",
                hint="the old file stays; what is live is taken once there is room",
            )

    @contextmanager
    def _held(self, old: FollowedVersion | None) -> Iterator[dict[bytes, Held]]:
        """The objects that the file has, read when they are asked for."""
        if old is None:
            yield {}
            return
        entry = old.entry
        with self._fs.open_read(self._place) as file:
            held: dict[bytes, Held] = {
                content.id: _InFile(file, content.offset, content.spec.nbytes)
                for content in entry.contents
            }
            if entry.skeleton is not None:
                contents = tuple(ParsedContent(c.offset, c.spec) for c in entry.contents)
                parts = FileParts(entry.format, contents, (), entry.checks)
                parsed = SourceFile(file, self.shown, entry.size, parts)
                held[entry.skeleton] = memoryview(parsed.skeleton())
            held[Manifest.id_of(old.manifest)] = memoryview(old.manifest)
            yield held

    @contextmanager
    def _received(self, given: Slice) -> Iterator[Store]:
        """A repository of no versions, with the records that came, and those that were kept."""
        fs, place = LateFlushes(), self.folder / _RECORDS
        try:
            if fs.realpath(place / FOLDER) != fs.realpath(self.folder) / _RECORDS / FOLDER:
                self._drop_records()  # a link: nothing is written to another repository
            if fs.stat(place / FOLDER) is None:
                fs.make_dirs(place)
                create(fs, Clock(), place, "main", config=BARE_CONFIG)
            with closing(self._records(fs, place / FOLDER)) as store:
                with store.pack_writer() as packs:
                    regions = take_records(packs, given.records, given.size)
                    packs.sync()
                    now = store.now_ns()
                    store.publish(lambda: Entry("follow", now, regions=regions))
                yield store
        except BaseException as error:  # what came may be false, what was kept be damaged
            self._drop_records()
            if isinstance(error, HistoryMissing | UnsupportedFormat):
                raise DamagedData(f"the records beside {self.shown} are damaged") from error
            raise

    def _records(self, fs: FileSystem, folder: Path) -> Store:
        """Raises DamagedData for a folder that lacks files, or that another program wrote."""
        try:
            return Store(fs, Clock(), folder)
        except MvcError as error:
            raise DamagedData(f"the records beside {self.shown} are damaged") from error

    def _drop_records(self) -> None:
        place = self.folder / _RECORDS
        present = self._fs.stat(place, follow=False)
        if present is not None and present.is_dir:
            self._fs.remove_tree(place)
        elif present is not None:
            self._fs.unlink(place)


class _InFile(Struct, frozen=True):
    file: ReadFile
    offset: int
    nbytes: int

    def __getitem__(self, part: slice, /) -> memoryview:
        start, stop, _ = part.indices(self.nbytes)
        data = memoryview(bytearray(max(0, stop - start)))
        if self.file.read_into(self.offset + start, data) != len(data):
            raise DamagedData(f"{printable(str(self.file.path))} became shorter")
        return data


def _answer(given: Slice, target: str) -> tuple[Commit, int]:
    """The version that a remote says is live, and since when.

    Raises DamagedData, UnsupportedFormat.
    """
    check_features(given.features)
    entries = decode_entries(given.head)
    if len(entries) == 1 and entries[0].size == given.size and len(entries[0].commits) == 1:
        commit = Commit.decode(entries[0].commits[0])
        made = [(each.target, each.subject, each.time_ns) for each in entries[0].deployments]
        if len(made) == 1 and made[0][:2] == (target, commit.id):
            return commit, made[0][2]
    raise DamagedData("the remote sent something else than what is live", hint="try again later")


def _folder_beside(file: Path) -> Path:
    """The folder of all that is remembered of a followed file."""
    return file.with_name(f".{file.name}.mvc")
