"""fsck: read every byte of the repository, name what is damaged and what it touches.

In this order: format, journal (``journal``), packs (``packs``), versions (``versions``), index
(against journal and packs).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from mvc.errors import DamagedData, MvcError, ReadOnly
from mvc.ids import CommitId
from mvc.io.files import TEMPORARY, FileSystem
from mvc.maintenance.fsck.journal import JournalCheck
from mvc.maintenance.fsck.packs import PackCheck
from mvc.maintenance.fsck.versions import ObjectCheck, VersionCheck
from mvc.maintenance.graph import StorageGraph
from mvc.maintenance.quarantine import QUARANTINE, bytes_of, files_in
from mvc.maintenance.report import FsckReport, Problem
from mvc.model.commit import Commit
from mvc.names import attached_path, printable
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import dropped
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.format import FORMAT, read_features
from mvc.store.index import keys
from mvc.store.index.folder import CURRENT
from mvc.store.journal.frames import Gap
from mvc.store.journal.high_water_mark import HIGH_WATER_MARK
from mvc.store.snapshot import INDEX, PACKS, Snapshot
from mvc.store.store import Store
from mvc.types import Counted, Progress

__all__ = ["FsckReport", "check", "forget_index", "fsck", "lost_end", "rebuild_index"]

_NOTED = 10  # versions without weights that are named


def fsck(store: Store, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
    """Checks the whole repository and changes nothing.

    Entries that others append after the start are left out. ``full``: every object is
    recovered and hashed as well. ``progress`` counts bytes of packs, and with ``full`` raw bytes
    of objects. If damage is found while others rewrite the repository, or while the writer of the
    last entry takes it back after a failure, the check is repeated. Memory grows with the number
    of objects; ``full`` holds up to 1 GiB of the last versions as well.
    """
    return check(store, full=full, progress=progress)[0]


def check(
    store: Store, *, full: bool = False, progress: Progress | None = None
) -> tuple[FsckReport, JournalCheck]:
    """As ``fsck``; also returns the check of the journal."""
    while True:
        generation = store.fresh().generation
        report, journal = _look(store, full, progress)
        if report.sound or (store.fresh().generation == generation and _stands(journal)):
            return report, journal


def _stands(journal: JournalCheck) -> bool:
    """Whether the last entry that was checked is still there."""
    last = journal.last
    with suppress(DamagedData):
        return last is None or journal.snapshot.entry(last.offset).check == last.check
    return False


def _look(store: Store, full: bool, progress: Progress | None) -> tuple[FsckReport, JournalCheck]:
    snapshot = store.fresh()
    checked = Counted(progress, _bytes_in(snapshot.fs, snapshot.folder / PACKS))
    journal, packs = JournalCheck(snapshot), PackCheck(snapshot, StorageGraph(snapshot))
    commits: dict[bytes, Commit] = {}
    entry_keys: set[bytes] = set()
    for recorded in journal.entries():
        commits.update((commit.id, commit) for commit in recorded.entry.commits)
        entry_keys.update(keys.entry_keys(recorded))
        checked.add(packs.entry(recorded), "packs")
    packs.rest()
    packs.objects.settle()
    history = packs.objects.history
    kept = [commit for id_, commit in commits.items() if id_ not in history.forgotten]
    without = history.dropped
    suspects = {id_ for p in packs.problems if p.kind == "payload" for id_ in p.ids}
    objects = ObjectCheck(store.recovery, packs.objects, suspects, full=full, tell=checked.add)
    versions = VersionCheck(objects, ManifestStream(store))
    versions.check(kept, history.given_up(commit.id for commit in kept))
    problems = [
        *_of_format(snapshot),
        *journal.problems,
        *_merged(packs.problems, versions),
        *_forged(store, kept, without),
    ]
    if not journal.problems and not packs.problems:
        problems += _of_index(snapshot, entry_keys, packs.found_keys, journal.end.offset)
    lost = (commit.id for commit in commits.values() if commit.id in versions.lost)
    report = FsckReport(
        problems=tuple(problems),
        notes=(
            *journal.notes,
            *packs.notes,
            *_retrainable(store, kept, without),
            *_leftovers(snapshot.fs, snapshot.folder),
        ),
        full=full,
        entries=journal.count,
        versions=len(commits) + len(journal.lost),
        records=packs.records,
        objects=len(packs.objects),
        checked_bytes=journal.end.offset + checked.done,
        forgotten=len((history.forgotten.keys() - history.absent) & commits.keys()),
        absent=len(history.absent & commits.keys()),
        lost=(*lost, *journal.lost),
    )
    return report, journal


def _bytes_in(fs: FileSystem, folder: Path) -> int:
    names = () if fs.stat(folder) is None else fs.list(folder)
    return bytes_of(fs, [folder / name for name in names])


# -- problems ------------------------------------------------------------------------------


def _of_format(snapshot: Snapshot) -> Iterator[Problem]:
    try:
        read_features(snapshot.fs, snapshot.folder)
    except MvcError as error:
        yield Problem("format", FORMAT, str(snapshot.folder / FORMAT), error.message)


def _merged(of_packs: Sequence[Problem], versions: VersionCheck) -> list[Problem]:
    """The problems of packs and versions; one for an object whose only payload is damaged."""
    damaged = {id_.hex() for p in of_packs if p.kind == "payload" for id_ in p.ids}
    covered = {
        p.object
        for p in versions.problems
        if p.kind in {"lost", "manifest"} and p.object in damaged
    }
    found = []
    for problem in of_packs:
        if problem.kind == "payload":
            touched, tensors = versions.uses(problem.ids)
            problem = replace(problem, versions=touched, tensors=tensors)
            if any(id_.hex() in covered for id_ in problem.ids):
                message = f"{problem.message}; no other record leads to it"
                problem = replace(problem, message=message)
        found.append(problem)
    others = (p for p in versions.problems if p.kind == "content" or p.object not in covered)
    return [*found, *others]


def _forged(
    store: Store, kept: Iterable[Commit], without: Mapping[CommitId, str]
) -> Iterator[Problem]:
    """Marks of weights that were given up at a path, or by a recipe, that the version lacks."""
    for commit in kept:
        if commit.id in without:
            with suppress(DamagedData):  # the manifest is a problem of its own
                manifest = manifests.load(store, commit.manifest)
                path = without[commit.id]
                recipe = attached_path("recipe.json") in manifest.attached_by_path
                if not recipe or path not in manifest.by_path:
                    what = "no recipe" if not recipe else f"no {printable(path)}"
                    why = f"weights are marked as given up of {commit.id.short}, which has {what}"
                    yield Problem("reference", commit.id.hex(), "", why, versions=(commit.id,))


def _of_index(
    snapshot: Snapshot, entry_keys: set[bytes], objects: dict[int, set[bytes]], end: int
) -> list[Problem]:
    """Checks that index and tail hold exactly the keys that journal and packs imply.

    Only entries before byte ``end`` of the journal count: others may have added more. Keys of
    deltas are left out: they may start from any of several entries that hold the base.
    """
    expected = entry_keys | {
        keys.BLOB + prefix + keys.number(offset)
        for offset, prefixes in objects.items()
        for prefix in prefixes
    }
    try:
        tables = {key[:1] for key in expected} | {keys.BLOB}
        present = {
            key
            for table in sorted(tables)
            for key in snapshot.under(table)
            if keys.offset_of(key) < end
        }
    except DamagedData as error:
        return [Problem("index", INDEX, "", error.message)]
    missing, foreign = len(expected - present), len(present - expected)
    if not missing and not foreign:
        return []
    why = f"the index lacks {missing} keys and has {foreign} that nothing stands behind"
    return [Problem("index", INDEX, str(snapshot.folder / INDEX), why)]


# -- notes ---------------------------------------------------------------------------------


def _retrainable(
    store: Store, kept: Iterable[Commit], without: Container[CommitId]
) -> Iterator[str]:
    """Notes about versions whose weights were given up; that is no damage."""
    found = [dropped(store, commit.id) for commit in kept if commit.id in without]
    yield from (
        f"{each.commit.short} has no weights at {printable(each.path)}: {each}"
        for each in found[:_NOTED]
        if each is not None
    )
    if len(found) > _NOTED:
        yield f"{len(found) - _NOTED} more versions are recoverable by retraining"


def _leftovers(fs: FileSystem, folder: Path) -> Iterator[str]:
    """Notes about leftovers of interrupted work and about the quarantine."""
    files = [name for name in fs.list(folder) if name.startswith(TEMPORARY)]
    if files:
        what = "temporary file" if len(files) == 1 else "temporary files"
        yield f"{len(files)} {what} of interrupted or running work; gc deletes what is left over"
    kept = files_in(fs, folder)
    if kept:
        what = "1 file" if len(kept) == 1 else f"{len(kept)} files"
        yield f"{folder / QUARANTINE} holds {what} of {bytes_of(fs, kept):,} bytes"


# -- the index -----------------------------------------------------------------------------


def rebuild_index(store: Store) -> None:
    """Rebuilds the index from journal and packs.

    Raises ReadOnly if the folder cannot be written, DamagedData if journal entries are lost.
    """
    store.require()
    if not store.writable:
        raise ReadOnly(
            "the index cannot be rebuilt: the repository's folder cannot be written",
            hint="questions are answered without an index there, only slower",
        )
    snapshot = store.snapshot
    snapshot.refresh()
    for _ in snapshot.entries():
        pass  # raises if entries are lost: the old index still has their keys
    snapshot.rebuild_index()


def lost_end(snapshot: Snapshot) -> Gap | None:
    """The lost entries at the end of the journal, if no others are lost; else None.

    Such a loss can be accepted with ``forget_index``.
    """
    gaps: list[Gap] = []
    for _ in snapshot.entries(lost=gaps.append):
        pass
    behind = [gap for gap in snapshot.gaps if gap.start.offset >= snapshot.position.offset]
    return behind[0] if behind and not gaps else None


def forget_index(fs: FileSystem, folder: Path) -> None:
    """Discards the index of the repository folder ``folder`` (``.mvc``) before opening.

    For a journal that is older than its index (HistoryMissing), once the user accepts the
    loss. The next opening makes a new index.
    """
    fs.unlink(folder / INDEX / CURRENT, missing_ok=True)
    fs.unlink(folder / HIGH_WATER_MARK, missing_ok=True)
