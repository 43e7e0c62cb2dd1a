"""A replica: a file or folder that ``mvc follow`` keeps equal to the live version of a target.

The folder ``.NAME.mvc`` next to a replica ``NAME`` has the file ``note``, which says which version
the replica has, and caches received records (encoded contents). The folder can be deleted without
loss, but a folder of files that is updated in place is then refused. An update copies unchanged
contents from the old files, and decodes new contents from received records. The hashes of new
contents are checked before a file is replaced.
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
from mvc.remote.replicas.contents import contents_in
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
from mvc.remote.replicas.versions import EarlierVersion, FollowedVersion, Identity, Update
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
# Cached records may have ``_CACHED`` bytes, or, if this is more, this share of the bytes of the
# replica's files.
_CACHED, _CACHED_SHARE = 16 * MIB, 0.5
_MOST_EARLIER, _MOST_NAMED = 20, 10_000
SOON = 1.0  # if an update took more seconds, the live version is checked again
Prepare = Callable[[Update], object]
"""A function that is called before a new version becomes visible.

At this time, the files of the version are verified and durable.
"""


class Replica:
    """A file, or a ``folder``. Only one process at a time can open and update a replica.

    ``in_place``: an update overwrites the old files, and no process may read the files during the
    update. ``undo``: an update in place stores the old bytes, so that ``go_back`` is possible.
    Raises WrongUsage, WouldOverwrite, IoFailed, Busy.
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
        self.folder = _note_folder(place)
        self._place: InPlace | LinkedFolder | OneFile
        if (
            folder
            and not in_place
            and fs.stat(place, follow=False)
            and any(not version.link for version in self.noted(fs, place))
        ):
            raise WouldOverwrite(
                f"{self.shown} was created with --in-place",
                hint="add --in-place; or move the folder away to create a new one",
            )
        if in_place:
            self._place = InPlace(fs, place, self.folder, folder=folder, undo=undo)
        else:
            self._place = LinkedFolder(fs, place) if folder else OneFile(fs, place, self.folder)
        self._at = place
        refuse_link(fs, self.folder, "another path")
        refuse_foreign(fs, self.folder)  # the note in this folder is trusted
        fs.make_dir(self.folder, exist_ok=True)
        lock = fs.lock(self.folder / _LOCK, block=False)
        if lock is None:
            raise Busy(
                f"another process follows into {self.shown}",
                hint="stop that process: a replica has one follower",
            )
        self._lock = lock
        if fs.stat(self.folder / _IGNORED) is None:
            fs.write_atomic(self.folder / _IGNORED, b"*\n")
        self._known = self.noted(fs, place)
        self._changed: list[Path] = []
        self._foreign = ""  # a file of the replica that another program wrote, if any
        if not in_place:
            remove(fs, self.folder / "redo")  # left by an interrupted update in place
        self._place.tidy(self._known)

    check = staticmethod(check_file)

    @staticmethod
    def noted(fs: FileSystem, file: Path) -> list[FollowedVersion]:
        """The versions in the note next to a replica. Empty if there is no readable note.

        During an update, the note has the new and the old version.
        """
        with suppress(IoFailed, msgspec.MsgspecError, ValueError, RecursionError):
            data = fs.read_bytes(_note_folder(file) / _NOTE, _LONGEST_NOTE)
            versions = msgspec.json.decode(data, type=list[FollowedVersion])
            return [version for version in versions if version.is_sound()]
        return []

    def close(self) -> None:
        """Allows another process to update the replica.

        Removes the note's folder if there is no note, and the replica is not a folder with files.
        Without the note's folder, these files would look like files of another program.
        """
        with self._lock, suppress(MvcError):
            followed = self._known or (self._is_folder and self._place.is_taken())
            if not followed and self._fs.stat(self.folder / _NOTE) is None:
                remove(self._fs, self.folder)

    # -- the present version ---------------------------------------------------------------

    def current(self) -> FollowedVersion | None:
        """The version in the replica.

        None if files are missing, or if another program changed files. Only files that may have
        changed are read and hashed.
        """
        for version in self._known:
            if self._identities(version) == version.identities:
                return version
        self._foreign = self.shown
        for at, version in enumerate(self._known):
            present = self._identities(version)
            if present is None:
                continue
            known = version.identities or (None,) * len(present)
            files = self._files(version.entries)
            self._foreign = next(
                (
                    printable(str(file))
                    for file, one, other in zip(files, present, known, strict=True)
                    if one != other and not self._matches(file, files[file])
                ),
                "",
            )
            if not self._foreign:
                before = self._known[1:] if at == 0 else []
                return self.note(replace(version, identities=present), *before)
        return None

    def _matches(self, file: Path, entry: FileEntry) -> bool:
        """Whether a file can be read and has the content of ``entry``."""
        present = self._fs.stat(file, follow=False)
        if present is None or not present.is_file or present.size != entry.size:
            return False
        with suppress(MvcError), open_file(self._fs, file, entry.path, like=entry) as opened:
            return opened.entry.content_id == entry.content_id
        return False

    def _files(self, entries: Sequence[FileEntry]) -> dict[Path, FileEntry]:
        """Maps the paths of visible files to the entries of a version."""
        places = self._place.files([entry.path for entry in entries])
        return dict(zip(places, entries, strict=True))

    def _identities(
        self, version: FollowedVersion, at: Path | None = None
    ) -> tuple[Identity, ...] | None:
        """The identities (inode, size, times) of a version's files. None if a file is missing.

        ``at``: the path of new files that are not yet visible. By default, the visible files.
        """
        if at is None and self._place.link() != version.link:
            return None
        identities = list[Identity]()
        for file in self._place.files(version.paths, at):
            facts = self._fs.stat(file, follow=False)
            if facts is None:
                return None
            # In folders and for new files, ctime is not compared: hard links and renames change it.
            changed_ns = 0 if self._is_folder or at else facts.ctime_ns
            identities.append((facts.inode, facts.device, facts.size, facts.mtime_ns, changed_ns))
        return tuple(identities)

    def note(
        self, version: FollowedVersion, before: FollowedVersion | None = None
    ) -> FollowedVersion:
        """Durably writes the note: the present or next version, and the version ``before`` it."""
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
        """Updates the replica to the live version of a target. The update is durable on return.

        ``paths``: for a folder, the wanted files and folders, by default all files but training
        states; for a file, at most one path. ``prepare`` is called before the new version becomes
        visible. ``full``: hashes all present files first. If an error is raised, even by
        ``prepare``, the old version stays. Raises NoDeployment if no version is live, or if the new
        version was rolled back during the update. Raises DamagedData if received records are wrong.
        Raises UnknownTarget, UnknownPath, StateForgotten, WeightsDropped, StorageFull, IoFailed.
        """
        most = MOST_PATHS if self._is_folder else 1
        if len(paths) > most:
            raise WrongUsage(
                f"{len(paths)} paths are too many for {self.shown}: the limit is {most}",
                hint="name folders of the version, or -o DIR/ for several files",
            )
        selected, doubts = tuple(sorted(set(paths))), 0
        self._place.tidy(self._known)
        if full:
            self._distrust()
        begun = time.monotonic()
        while True:
            old = self.current()
            wanted = Wanted(live=target, paths=selected, folder=self._is_folder)
            if old is not None and old.asked == selected and doubts < 2:
                wanted = self._with_present(wanted, old, use_records=not doubts)

            def ready(update: Update, wanted: Wanted = wanted) -> None:
                if prepare is not None:
                    prepare(update)
                if time.monotonic() - begun > SOON:
                    _check_still_live(transport, wanted, update.version)

            try:
                return self._fetch(transport, wanted, old, ready)
            except DamagedData:
                if not wanted.have:
                    raise
                doubts += 1
                self._distrust()

    def _distrust(self) -> None:
        """Makes the next call of ``current`` read all present files."""
        self._known = [replace(version, identities=()) for version in self._known]

    def go_back(self, update: Update) -> None:
        """Makes the version before ``update`` visible again, in one step.

        Raises IoFailed if there was no such version, or if ``settle`` has deleted its files.
        """
        before = update.before
        if before is None:
            raise IoFailed(f"{self.shown} had no version before {update.version.id.short}")
        # Without identities, ``current`` compares hashes. Both versions may have equal timestamps.
        self.note(replace(update.version, identities=()), before)
        if self._identities(before) != before.identities:
            self._place.go_back(before.link)
        if not isinstance(self._place, InPlace):  # in place, ``current`` compares hashes
            before = self._with_identities(before)
        self.note(replace(before, shown_ns=time.time_ns()))

    def settle(self) -> None:
        """Deletes the files of the previous version. Then ``go_back`` is no longer possible.

        Reads changed files into the page cache, because the next update decodes deltas from them.
        """
        self._place.settle()
        self._fs.read_ahead(self._changed)
        self._changed = []

    def _with_present(self, wanted: Wanted, old: FollowedVersion, *, use_records: bool) -> Wanted:
        """Adds to the request the versions from which the remote may send deltas.

        These are the present version, and earlier versions whose records are cached.
        """
        has_records = use_records and self._fs.stat(self.folder / _RECORDS / FOLDER) is not None
        before = old.before if has_records else ()
        return replace(
            wanted,
            have=frozenset((old.id, *(CommitId(version.commit) for version in before))),
            objects=tuple(sorted({id_ for version in before for id_ in version.lacks})),
        )

    def _fetch(
        self,
        transport: Transport,
        wanted: Wanted,
        before: FollowedVersion | None,
        prepare: Prepare | None,
    ) -> Update:
        with closing(transport.send(wanted)) as slices:
            for incoming in slices:
                return self._apply(incoming, wanted, before, prepare)
        raise DamagedData(f"{transport.url} sent an empty answer")

    def _apply(
        self,
        incoming: Slice,
        wanted: Wanted,
        before: FollowedVersion | None,
        prepare: Prepare | None,
    ) -> Update:
        """Updates the files from a slice, and from contents of versions in ``wanted.have``."""
        commit, deployment, named = _answer(incoming, wanted.live)
        old = before if wanted.have else None
        if old is not None and old.commit == commit.id:
            for _ in incoming.records:
                pass
            previous = self._known[1:] if self._known[0] is old else []
            self.note(old, *previous)
            return _update(old, incoming, deployment, *previous)
        if len(wanted.have) <= 1:
            self._drop_records()
        require_room(self._fs, self._at, incoming.size)
        present = {} if old is None else self._files(old.entries)
        with (
            contents_in(self._fs, present) as (contents, copied),
            self._received(incoming) as store,
        ):
            graph = LooseGraph(store.snapshot, Speed())
            earlier = [] if old is None else [EarlierVersion(old.commit, old.manifest, old.paths)]
            earlier += old.before if old is not None and len(wanted.have) > 1 else ()
            for base in earlier:
                graph.know(base.objects)
                contents.setdefault(Manifest.id_of(base.manifest), memoryview(base.manifest))
            named += old.named[:_MOST_NAMED] if old is not None and len(wanted.have) > 1 else ()
            graph.know([commit.manifest, *named])
            recovery = Recovery(store.snapshot.packs, graph, store.pool, contents)
            data = recovery.manifest(commit.manifest)
            manifest = Manifest.decode(data)
            if manifest.root != commit.root:
                raise DamagedData(f"version {commit.id.short}: its root does not match its files")
            entries = entries_of(manifest, wanted)
            objects, size = manifests.objects(entries), sum(entry.size for entry in entries)
            graph.know(objects)
            root = commit.root if self._is_folder else entries[0].state_id
            version = FollowedVersion(
                bytes(commit.id), bytes(root), deployment.time_ns,
                data=commit.encoded, manifest=data, paths=tuple(entry.path for entry in entries),
                before=self._useful(earlier, graph.reached({*objects}), size),
                asked=wanted.paths, named=named,
            )  # fmt: skip
            foreign = self._foreign if before is None and self._place.is_taken() else ""
            update = _update(version, incoming, deployment, before, foreign=foreign)
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
        """Writes the files of the new version, and makes them visible.

        ``old``: the version in the replica. ``present``: the files of ``old``.
        """
        now = {file: entry.content_id for file, entry in present.items()}
        then = {file: entry.content_id for file, entry in self._files(entries).items()}
        with ExitStack() as prepared:
            fresh = None
            if old is None or now != then:
                label = update.version.id.short
                fresh = prepared.enter_context(self._place.next(label, entries, present, fill))
            version = self._with_identities(update.version, fresh)
            if prepare is not None:
                prepare(replace(update, version=version, prepared=fresh or self._at))
            if (old is not None and self._identities(old) != old.identities) or (
                fresh is not None and self._identities(version, fresh) != version.identities
            ):
                raise DamagedData(f"another program changed {self.shown} during the update")
            before = update.before
            if before is not None and isinstance(self._place, InPlace):
                before = replace(before, identities=())  # as in ``go_back``
            version = self.note(replace(version, shown_ns=time.time_ns()), before)
            if fresh is not None:
                self._place.show(fresh)
                self._changed = [file for file in then if then[file] not in now.values()]
        version = self.note(self._with_identities(version), update.before)
        return replace(update, version=version)

    def _with_identities(self, version: FollowedVersion, at: Path | None = None) -> FollowedVersion:
        """The version with the identities that its files have now.

        ``at``: as in ``_identities``.
        """
        version = replace(version, link=self._place.link(at))
        return replace(version, identities=self._identities(version, at) or ())

    def _useful(
        self, earlier: Sequence[EarlierVersion], reached: Set[bytes], size: int
    ) -> tuple[EarlierVersion, ...]:
        """The earlier versions that can be rebuilt from the new files and the cached records.

        Empty if the cached records are too large.
        """
        packs = self.folder / _RECORDS / FOLDER / PACKS
        stats = (self._fs.stat(packs / name) for name in self._fs.list(packs))
        if sum(facts.size for facts in stats if facts is not None) > max(
            size * _CACHED_SHARE, _CACHED
        ):
            return ()
        useful, room = list[EarlierVersion](), _CACHED
        for version in earlier[:_MOST_EARLIER]:
            objects = version.objects
            lacks = objects - reached - {Manifest.id_of(version.manifest)}
            room -= len(version.manifest)
            if room > 0 and 2 * len(lacks) < len(objects):
                useful.append(replace(version, lacks=tuple(sorted(map(bytes, lacks)))))
        return tuple(useful)

    @contextmanager
    def _received(self, incoming: Slice) -> Iterator[Store]:
        """Yields a repository without versions, which has the received and the cached records."""
        fs, place = LateFlushes(), self.folder / _RECORDS
        try:
            if fs.realpath(place / FOLDER) != fs.realpath(self.folder) / _RECORDS / FOLDER:
                self._drop_records()  # a symbolic link could point into another repository
            if fs.stat(place / FOLDER) is None:
                fs.make_dirs(place)
                create(fs, Clock(), place, "main", config=BARE_CONFIG)
            with closing(self._records(fs, place / FOLDER)) as store:
                with store.pack_writer() as packs:
                    regions = take_records(packs, incoming.records, incoming.size)
                    packs.sync()
                    now = store.now_ns()
                    store.publish(lambda: Entry("follow", now, regions=regions))
                yield store
        except BaseException as error:  # the received or cached records may be damaged
            self._drop_records()
            if isinstance(error, HistoryMissing | UnsupportedFormat):
                raise DamagedData(f"the cached records of {self.shown} are damaged") from error
            raise

    def _records(self, fs: FileSystem, folder: Path) -> Store:
        """Opens the repository with the records. Raises DamagedData if it cannot be opened."""
        try:
            return Store(fs, Clock(), folder)
        except MvcError as error:
            raise DamagedData(f"the cached records of {self.shown} are damaged") from error

    def _drop_records(self) -> None:
        remove(self._fs, self.folder / _RECORDS)


def _answer(incoming: Slice, target: str) -> tuple[Commit, Deployment, tuple[bytes, ...]]:
    """The parts of a remote's answer: live version, deployment, and ids of additional contents.

    Raises DamagedData, UnsupportedFormat.
    """
    check_features(incoming.features)
    entries = decode_entries(incoming.head)
    if len(entries) == 1 and entries[0].size == incoming.size and len(entries[0].commits) == 1:
        commit = Commit.decode(entries[0].commits[0])
        deployments = entries[0].deployments
        if [(row.target, row.subject) for row in deployments] == [(target, commit.id)]:
            return commit, deployments[0], tuple(shape.id for shape in entries[0].shapes)
    raise DamagedData("the remote did not send the live version", hint="try again later")


def _check_still_live(transport: Transport, wanted: Wanted, version: FollowedVersion) -> None:
    """Raises NoDeployment if the prepared version was rolled back to an earlier version.

    A newer live version is no error, because frequent deployments must not prevent an update.
    """
    wanted = replace(wanted, have=wanted.have | {version.id})
    with suppress(RemoteUnreachable), closing(transport.send(wanted)) as slices:
        commit, live, _ = _answer(next(slices), wanted.live)
        if commit.id != version.id and (live.returned_to or commit.time_ns < version.made_ns):
            raise NoDeployment(
                f"{version.id.short} was rolled back while it was prepared: "
                f"{commit.id.short} is live on {printable(wanted.live)}",
                hint="repeat the command",
            )


def _update(
    version: FollowedVersion,
    incoming: Slice,
    deployment: Deployment,
    before: FollowedVersion | None = None,
    *,
    foreign: str = "",
) -> Update:
    is_older = before is not None and version.made_ns < before.made_ns
    is_rollback = deployment.returned_to is not None or is_older
    return Update(version, incoming.size, foreign, before=before, is_rollback=is_rollback)


def _note_folder(place: Path) -> Path:
    """The folder with the note and records of a replica. Raises WrongUsage."""
    if not place.name:
        raise WrongUsage(f"{place} is no name of a file or folder", hint="name a file or a folder")
    return place.with_name(f".{place.name}.mvc")
