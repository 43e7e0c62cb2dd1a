"""A file or a folder kept equal to what is live on a target: from the version it holds to the next.

Beside ``NAME`` lies the folder ``.NAME.mvc``: the note that says which version is there, and the
records that came last. All of it is disposable. The objects of the old version are read from its
files; what is made of them is compared with its hash before anything is replaced, and contents that
stay are copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from mvc.adapters.opening import open_file
from mvc.errors import (
    Busy,
    DamagedData,
    HistoryMissing,
    IoFailed,
    MvcError,
    NoDeployment,
    RemoteUnreachable,
    UnsupportedFormat,
    WouldOverwrite,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem, LateFlushes
from mvc.limits import MAX_MANIFEST, MIB
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.statement import Deployment
from mvc.names import FOLDER, printable
from mvc.remote.receiving.receiver import take_records
from mvc.remote.replicas.held import held_in
from mvc.remote.replicas.in_place import InPlace
from mvc.remote.replicas.places import (
    Fill,
    LinkedFolder,
    OneFile,
    check_file,
    refuse_link,
    remove,
    require_room,
)
from mvc.remote.replicas.versions import FollowedVersion, Identity, KeptVersion, Update
from mvc.remote.sending.live import entries_of
from mvc.remote.slices import decode_entries
from mvc.remote.transport import MOST_PATHS, Slice, Transport, Wanted
from mvc.repo.checkout.outputs import refuse_nameless
from mvc.repo.lookup import manifests
from mvc.repo.ownership import refuse_foreign
from mvc.store.format import check_features
from mvc.store.graph.memory import LooseGraph
from mvc.store.graph.search import Speed
from mvc.store.journal.entries import Entry
from mvc.store.packs.reader import PACKS
from mvc.store.recovery.recover import Recovery
from mvc.store.store import BARE_CONFIG, Store, create

_NOTE, _RECORDS, _LOCK, _IGNORED = "note", "records", "lock", ".gitignore"
_LONGEST_NOTE = 4 * MAX_MANIFEST
_KEPT, _KEPT_SHARE = 16 * MIB, 0.5  # bytes of kept records, and of the files at most
_MOST_KEPT, _MOST_NAMED = 20, 10_000
SOON = 1.0  # seconds of an update after which it is asked again what is live
Prepare = Callable[[Update], object]
"""What happens when a version is here, proven and durable, before it is visible."""


class Replica:
    """A file, or a ``folder``, that one process at a time keeps.

    ``in_place``: by writing over the old one while nobody reads it; with ``undo``, old values are
    kept for ``go_back``. Raises WrongUsage, WouldOverwrite, IoFailed, Busy.
    """

    def __init__(
        self,
        fs: FileSystem,
        place: Path,
        *,
        folder: bool = False,
        in_place: bool = False,
        undo: bool = False,
    ) -> None:
        refuse_nameless(place)
        self._fs, self._is_folder = fs, folder
        self.shown = printable(str(place))
        self.folder = _folder_beside(place)
        self._place: InPlace | LinkedFolder | OneFile
        if (
            folder
            and not in_place
            and fs.stat(place, follow=False)
            and any(not version.link for version in self.noted(fs, place))
        ):
            raise WouldOverwrite(
                f"{self.shown} is kept with --in-place",
                hint="add that; or move the folder away, and it comes anew",
            )
        if in_place:
            self._place = InPlace(fs, place, self.folder, folder=folder, undo=undo)
        else:
            self._place = LinkedFolder(fs, place) if folder else OneFile(fs, place, self.folder)
        self._at = place
        refuse_link(fs, self.folder, "another place")
        refuse_foreign(fs, self.folder)  # its note says what is there
        fs.make_dir(self.folder, exist_ok=True)
        lock = fs.lock(self.folder / _LOCK, block=False)
        if lock is None:
            raise Busy(
                f"another process keeps {self.shown}",
                hint="one place has one follower: end the other",
            )
        self._lock = lock
        if fs.stat(self.folder / _IGNORED) is None:
            fs.write_atomic(self.folder / _IGNORED, b"*\n")
        self._known = self.noted(fs, place)
        self._changed: list[Path] = []
        self._foreign = ""  # what something else wrote
        if not in_place:
            remove(fs, self.folder / "redo")  # it is older than what comes now
        self._place.tidy(self._known)

    check = staticmethod(check_file)

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
        """Lets another process keep the place."""
        with self._lock, suppress(MvcError):
            if not self._known and self._fs.stat(self.folder / _NOTE) is None:  # all in vain
                remove(self._fs, self.folder)

    # -- what is there ---------------------------------------------------------------------

    def current(self) -> FollowedVersion | None:
        """The version that is there; None if there is none, or something else wrote to it.

        Reads files only if they are not known to be untouched.
        """
        for version in self._known:
            if self._look(version) == version.identities:
                return version
        self._foreign = self.shown
        for at, version in enumerate(self._known):
            there = self._look(version)
            if there is None:
                continue
            known = version.identities or (None,) * len(there)
            files = self._files(version.entries)
            self._foreign = next(
                (
                    printable(str(file))
                    for file, one, other in zip(files, there, known, strict=True)
                    if one != other and not self._holds(file, files[file])
                ),
                "",
            )
            if not self._foreign:
                before = self._known[1:] if at == 0 else []
                return self.note(replace(version, identities=there), *before)
        return None

    def _holds(self, file: Path, entry: FileEntry) -> bool:
        """Whether a file has all bytes of an entry, by its hash; not if it cannot be read."""
        present = self._fs.stat(file, follow=False)
        if present is None or not present.is_file or present.size != entry.size:
            return False
        with suppress(MvcError), open_file(self._fs, file, entry.path, like=entry) as there:
            return there.entry.content_id == entry.content_id
        return False

    def _files(self, entries: Sequence[FileEntry]) -> dict[Path, FileEntry]:
        """Files of a version, by where they are visible."""
        places = self._place.files([entry.path for entry in entries])
        return dict(zip(places, entries, strict=True))

    def _look(
        self, version: FollowedVersion, at: Path | None = None
    ) -> tuple[Identity, ...] | None:
        """What tells the files of a version from others; None if they are not there.

        Looks at those that are visible, or that lie ``at`` a place beside.
        """
        if at is None and self._place.link() != version.link:
            return None
        found = list[Identity]()
        for file in self._place.files(version.paths, at):
            there = self._fs.stat(file, follow=False)
            if there is None:
                return None
            # A hard link changes the time of a change, and a rename does.
            changed_ns = 0 if self._is_folder or at else there.ctime_ns
            found.append((there.inode, there.device, there.size, there.mtime_ns, changed_ns))
        return tuple(found)

    def note(
        self, version: FollowedVersion, before: FollowedVersion | None = None
    ) -> FollowedVersion:
        """Remembers what is there, or is soon; and ``before``, until then or as the way back.

        Durable.
        """
        self._known = [version] if before is None else [version, before]
        self._fs.write_atomic(self.folder / _NOTE, msgspec.json.encode(self._known))
        return version

    # -- the next version ------------------------------------------------------------------

    def update(
        self,
        transport: Transport,
        target: str,
        paths: Sequence[str] = (),
        *,
        prepare: Prepare | None = None,
        full: bool = False,
    ) -> Update:
        """Makes the place what is live on a target; durable on return.

        ``paths``: of a folder these and what lies below, by default all but training states; of a
        file at most one, where the version has several. ``prepare`` is called when all is here,
        proven and durable, before anything visible changes; if it raises, nothing does. ``full``
        reads and compares all that is there first. Raises UnknownTarget, NoDeployment (also for a
        version that was taken back meanwhile), UnknownPath, StateForgotten, WeightsDropped,
        StorageFull, IoFailed, and DamagedData for records that do not lead there; the old version
        then stays.
        """
        most = MOST_PATHS if self._is_folder else 1
        if len(paths) > most:
            raise WrongUsage(
                f"{len(paths)} paths are too many for {self.shown}: it takes {most}",
                hint="name folders of the version, and -o DIR/ for several files",
            )
        asked, doubts = tuple(sorted(set(paths))), 0
        self._place.tidy(self._known)
        if full:
            self._doubt()
        begun = time.monotonic()
        while True:
            old = self.current()
            wanted = Wanted(live=target, paths=asked, folder=self._is_folder)
            if old is not None and old.asked == asked and doubts < 2:
                wanted = self._from_here(wanted, old, with_kept=not doubts)

            def ready(update: Update, wanted: Wanted = wanted) -> None:
                if prepare is not None:
                    prepare(update)
                if time.monotonic() - begun > SOON:
                    _check_not_taken_back(transport, wanted, update.version)

            try:
                return self._taken(transport, wanted, old, ready)
            except DamagedData:
                if not wanted.have:
                    raise
                doubts += 1
                self._doubt()

    def _doubt(self) -> None:
        """All that is there is read before it is counted on again."""
        self._known = [replace(each, identities=()) for each in self._known]

    def go_back(self, update: Update) -> None:
        """Makes the version before the last update visible again, in one step.

        Raises IoFailed if there is none, or what was kept for it is gone (``settle``).
        """
        before = update.before
        if before is None:
            raise IoFailed(f"no version before {update.version.id.short} is known here")
        self.note(replace(update.version, identities=()), before)  # as a clock may not, see _swap
        if self._look(before) != before.identities:
            self._place.go_back(before.link)
        if not isinstance(self._place, InPlace):  # else the next look compares it with its hash
            before = self._seen(before)
        self.note(replace(before, shown_ns=time.time_ns()))

    def settle(self) -> None:
        """What is kept for ``go_back`` may go. Files that changed are read into the cache."""
        self._place.settle()
        self._fs.read_ahead(self._changed)  # the next version is made of them
        self._changed = []

    def _from_here(self, wanted: Wanted, old: FollowedVersion, *, with_kept: bool) -> Wanted:
        """The question of one who has the files, and, with what was kept, versions before."""
        kept = with_kept and self._fs.stat(self.folder / _RECORDS / FOLDER) is not None
        before = old.before if kept else ()
        return replace(
            wanted,
            have=frozenset((old.id, *(CommitId(each.commit) for each in before))),
            objects=tuple(sorted({id_ for each in before for id_ in each.lacks})),
        )

    def _taken(
        self,
        transport: Transport,
        wanted: Wanted,
        before: FollowedVersion | None,
        prepare: Prepare | None,
    ) -> Update:
        with closing(transport.send(wanted)) as slices:
            for given in slices:
                return self._take(given, wanted, before, prepare)
        raise DamagedData(f"{transport.url} does not say what is live")

    def _take(
        self,
        given: Slice,
        wanted: Wanted,
        before: FollowedVersion | None,
        prepare: Prepare | None,
    ) -> Update:
        """Makes the place what was sent, counting on what the question said."""
        commit, made, named = _answer(given, wanted.live)
        old = before if wanted.have else None
        if old is not None and old.commit == commit.id:
            for _ in given.records:
                pass
            earlier = self._known[1:] if self._known[0] is old else []
            self.note(old, *earlier)
            return _update(old, given, made, *earlier)
        if len(wanted.have) <= 1:
            self._drop_records()
        require_room(self._fs, self._at, given.size)
        present = {} if old is None else self._files(old.entries)
        with held_in(self._fs, present) as (held, copied), self._received(given) as store:
            graph = LooseGraph(store.snapshot, Speed())
            kept = [] if old is None else [KeptVersion(old.commit, old.manifest, old.paths)]
            kept += old.before if old is not None and len(wanted.have) > 1 else ()
            for each in kept:
                graph.know(each.objects)
                held.setdefault(Manifest.id_of(each.manifest), memoryview(each.manifest))
            named += old.named[:_MOST_NAMED] if old is not None and len(wanted.have) > 1 else ()
            graph.know([commit.manifest, *named])
            recovery = Recovery(store.snapshot.packs, graph, store.pool, held)
            data = recovery.manifest(commit.manifest)
            manifest = Manifest.decode(data)
            if manifest.root != commit.root:
                raise DamagedData(f"version {commit.id.short} has another root than its files")
            entries = entries_of(manifest, wanted)
            objects, size = manifests.objects(entries), sum(entry.size for entry in entries)
            graph.know(objects)
            root = commit.root if self._is_folder else entries[0].state_id
            version = FollowedVersion(
                bytes(commit.id), bytes(root), made.time_ns,
                data=commit.encoded, manifest=data, paths=tuple(each.path for each in entries),
                before=self._leading(kept, graph.reached({*objects}), size),
                asked=wanted.paths, named=named,
            )  # fmt: skip
            foreign = self._foreign if before is None and self._place.is_taken() else ""
            update = _update(version, given, made, before, foreign=foreign)
            fill = partial(self._place.write, recovery, copied=copied)
            update = self._swap(update, entries, old, present, fill=fill, prepare=prepare)
        if not version.before:
            self._drop_records()
        return update

    def _swap(
        self,
        update: Update,
        entries: Sequence[FileEntry],
        old: FollowedVersion | None,
        present: Mapping[Path, FileEntry],
        *,
        fill: Fill,
        prepare: Prepare | None,
    ) -> Update:
        """Writes what changed beside the files ``present`` of ``old``, and makes it visible."""
        now = {file: each.content_id for file, each in present.items()}
        then = {file: each.content_id for file, each in self._files(entries).items()}
        with ExitStack() as prepared:
            fresh = None
            if old is None or now != then:
                label = update.version.id.short
                fresh = prepared.enter_context(self._place.next(label, entries, present, fill))
            version = self._seen(update.version, fresh)
            if prepare is not None:
                prepare(replace(update, version=version, prepared=fresh or self._at))
            if (old is not None and self._look(old) != old.identities) or (
                fresh is not None and self._look(version, fresh) != version.identities
            ):
                raise DamagedData(f"{self.shown} was changed meanwhile")
            before = update.before
            if before is not None and isinstance(self._place, InPlace):
                before = replace(before, identities=())  # a clock may not tell the writes apart
            version = self.note(replace(version, shown_ns=time.time_ns()), before)
            if fresh is not None:
                self._place.show(fresh)
                self._changed = [file for file in then if then[file] not in now.values()]
        version = self.note(self._seen(version), update.before)
        return replace(update, version=version)

    def _seen(self, version: FollowedVersion, at: Path | None = None) -> FollowedVersion:
        """The version with what its files, which are visible or lie ``at``, are known by."""
        version = replace(version, link=self._place.link(at))
        return replace(version, identities=self._look(version, at) or ())

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
        remove(self._fs, self.folder / _RECORDS)


def _answer(given: Slice, target: str) -> tuple[Commit, Deployment, tuple[bytes, ...]]:
    """The version that a remote says is live, its deployment, and ids of other objects.

    Raises DamagedData, UnsupportedFormat.
    """
    check_features(given.features)
    entries = decode_entries(given.head)
    if len(entries) == 1 and entries[0].size == given.size and len(entries[0].commits) == 1:
        commit = Commit.decode(entries[0].commits[0])
        made = entries[0].deployments
        if [(each.target, each.subject) for each in made] == [(target, commit.id)]:
            return commit, made[0], tuple(each.id for each in entries[0].shapes)
    raise DamagedData("the remote sent something else than what is live", hint="try again later")


def _check_not_taken_back(transport: Transport, wanted: Wanted, version: FollowedVersion) -> None:
    """Raises NoDeployment if an earlier version is live again in place of what was prepared.

    One that is live after it comes next: who publishes fast must not keep a node from swapping.
    """
    wanted = replace(wanted, have=wanted.have | {version.id})
    with suppress(RemoteUnreachable), closing(transport.send(wanted)) as slices:
        commit, made, _ = _answer(next(slices), wanted.live)
        if commit.id != version.id and (made.returned_to or commit.time_ns < version.made_ns):
            raise NoDeployment(
                f"{version.id.short} was taken back while it was prepared: "
                f"{commit.id.short} is live on {printable(wanted.live)}",
                hint="run it again",
            )


def _update(
    version: FollowedVersion,
    given: Slice,
    made: Deployment,
    before: FollowedVersion | None = None,
    *,
    foreign: str = "",
) -> Update:
    """What becomes of a place that held ``before``."""
    is_older = before is not None and version.made_ns < before.made_ns
    is_rollback = made.returned_to is not None or is_older
    return Update(version, given.size, foreign, before=before, is_rollback=is_rollback)


def _folder_beside(place: Path) -> Path:
    """The folder of all that is remembered of a followed place. Raises WrongUsage."""
    if not place.name:
        raise WrongUsage(f"{place} has no name to be kept under", hint="name a file or a folder")
    return place.with_name(f".{place.name}.mvc")
