"""fsck: reads every byte of the repository, and lists damage and the versions that it affects.

Checks the format file; the journal, a file with one entry for each operation (module ``journal``);
the packs, the files with stored data (module ``packs``); and the versions (module ``versions``). If
journal and packs are intact, compares the index with journal and packs.
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

_NOTED = 10  # maximum number of versions with dropped weights that the notes list


def fsck(store: Store, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
    """Checks the whole repository and changes nothing.

    ``full``: recovers and hashes every object (tensor or manifest), too, with up to 1 GiB of
    tensors in memory. ``progress`` counts bytes of packs and, with ``full``, of objects. The check
    is repeated if it finds damage, but another process has meanwhile rewritten the repository or
    withdrawn the last journal entry. Ignores journal entries that are appended after the start.
    """
    return check(store, full=full, progress=progress)[0]


def check(
    store: Store, *, full: bool = False, progress: Progress | None = None
) -> tuple[FsckReport, JournalCheck]:
    """As ``fsck``; also returns the check of the journal."""
    while True:
        generation = store.fresh().generation
        report, journal = _check_once(store, full, progress)
        if report.sound or (store.fresh().generation == generation and _has_last(journal)):
            return report, journal


def _has_last(journal: JournalCheck) -> bool:
    """Whether the last entry that was checked is still in the journal."""
    last = journal.last
    with suppress(DamagedData):
        return last is None or journal.snapshot.entry(last.offset).check == last.check
    return False


def _check_once(
    store: Store, full: bool, progress: Progress | None
) -> tuple[FsckReport, JournalCheck]:
    snapshot = store.fresh()
    checked = Counted(progress, _bytes_in(snapshot.fs, snapshot.folder / PACKS))
    journal, packs = JournalCheck(snapshot), PackCheck(snapshot, StorageGraph(snapshot))
    commits: dict[bytes, Commit] = {}
    entry_keys: set[bytes] = set()
    for recorded in journal.entries():
        commits.update((commit.id, commit) for commit in recorded.entry.commits)
        entry_keys.update(keys.entry_keys(recorded))
        checked.add(packs.entry(recorded), "packs")
    packs.finish()
    packs.objects.settle()
    history = packs.objects.history
    commits_ = [commit for id_, commit in commits.items() if id_ not in history.forgotten]
    dropped_ = history.dropped
    suspects = {id_ for p in packs.problems if p.kind == "payload" for id_ in p.ids}
    objects = ObjectCheck(store.recovery, packs.objects, suspects, full=full, report=checked.add)
    versions = VersionCheck(objects, ManifestStream(store))
    versions.check(commits_, history.dropped_paths(commit.id for commit in commits_))
    problems = [
        *_of_format(snapshot),
        *journal.problems,
        *_merged(packs.problems, versions),
        *_forged(store, commits_, dropped_),
    ]
    if not journal.problems and not packs.problems:
        problems += _of_index(snapshot, entry_keys, packs.indexed, journal.end.offset)
    lost = (commit.id for commit in commits.values() if commit.id in versions.lost)
    report = FsckReport(
        problems=tuple(problems),
        notes=(
            *journal.notes,
            *packs.notes,
            *_retrainable(store, commits_, dropped_),
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
    """The problems of packs and versions.

    A damaged payload (stored data) and the object that is lost with this payload are one problem.
    """
    damaged = {id_.hex() for p in of_packs if p.kind == "payload" for id_ in p.ids}
    covered = {
        p.object
        for p in versions.problems
        if p.kind in {"lost", "manifest"} and p.object in damaged
    }
    problems = []
    for problem in of_packs:
        if problem.kind == "payload":
            versions_, tensors = versions.uses(problem.ids)
            problem = replace(problem, versions=versions_, tensors=tensors)
            if any(id_.hex() in covered for id_ in problem.ids):
                message = f"{problem.message}; no other record can recover it"
                problem = replace(problem, message=message)
        problems.append(problem)
    further = (p for p in versions.problems if p.kind == "content" or p.object not in covered)
    return [*problems, *further]


def _forged(
    store: Store, commits: Iterable[Commit], dropped_paths: Mapping[CommitId, str]
) -> Iterator[Problem]:
    """A problem for each version that is wrongly marked as having dropped weights.

    The mark is wrong if it names a path that the version does not have, or if the version has no
    recipe.
    """
    for commit in commits:
        if commit.id in dropped_paths:
            with suppress(DamagedData):  # a damaged manifest is a separate problem
                manifest = manifests.load(store, commit.manifest)
                path = dropped_paths[commit.id]
                recipe = attached_path("recipe.json") in manifest.attached_by_path
                if not recipe or path not in manifest.by_path:
                    lacking = "no recipe" if not recipe else f"no {printable(path)}"
                    why = (
                        f"weights of {commit.id.short} are marked as dropped, but the version has "
                        f"{lacking}"
                    )
                    yield Problem("reference", commit.id.hex(), "", why, versions=(commit.id,))


def _of_index(
    snapshot: Snapshot, entry_keys: set[bytes], objects: dict[int, set[bytes]], end: int
) -> list[Problem]:
    """Checks that the index has exactly the keys that follow from journal and packs.

    Ignores entries after byte ``end`` of the journal. Ignores the keys of deltas, because the base
    of a delta may be in several entries.
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
    why = f"the index lacks {missing} keys and has {foreign} keys without an entry"
    return [Problem("index", INDEX, str(snapshot.folder / INDEX), why)]


# -- notes ---------------------------------------------------------------------------------


def _retrainable(
    store: Store, commits: Iterable[Commit], dropped_ids: Container[CommitId]
) -> Iterator[str]:
    """Notes about versions with dropped weights. Dropped weights are not damage."""
    states = [dropped(store, commit.id) for commit in commits if commit.id in dropped_ids]
    yield from (
        f"{state.commit.short} has no weights at {printable(state.path)}: {state}"
        for state in states[:_NOTED]
        if state is not None
    )
    if len(states) > _NOTED:
        yield f"{len(states) - _NOTED} more versions are recoverable by retraining"


def _leftovers(fs: FileSystem, folder: Path) -> Iterator[str]:
    """Notes about leftovers of interrupted work and about the quarantine."""
    files = [name for name in fs.list(folder) if name.startswith(TEMPORARY)]
    if files:
        noun = "temporary file" if len(files) == 1 else "temporary files"
        yield f"{len(files)} {noun} of interrupted or running work; gc deletes leftovers"
    quarantined = files_in(fs, folder)
    if quarantined:
        noun = "1 file" if len(quarantined) == 1 else f"{len(quarantined)} files"
        yield f"{folder / QUARANTINE} has {noun} of {bytes_of(fs, quarantined):,} bytes"


# -- the index -----------------------------------------------------------------------------


def rebuild_index(store: Store) -> None:
    """Rebuilds the index from journal and packs.

    Raises ReadOnly if the folder cannot be written, DamagedData if journal entries are lost.
    """
    store.require()
    if not store.writable:
        raise ReadOnly(
            "the index cannot be rebuilt: the repository's folder is read-only",
            hint="mvc can read the repository without an index, but more slowly",
        )
    snapshot = store.snapshot
    snapshot.refresh()
    for _ in snapshot.entries():
        pass  # raises DamagedData if entries are lost
    snapshot.rebuild_index()


def lost_end(snapshot: Snapshot) -> Gap | None:
    """The gap (lost entries) at the end of the journal, if it is the only gap; otherwise None."""
    gaps: list[Gap] = []
    for _ in snapshot.entries(lost=gaps.append):
        pass
    at_end = [gap for gap in snapshot.gaps if gap.start.offset >= snapshot.position.offset]
    return at_end[0] if at_end and not gaps else None


def forget_index(fs: FileSystem, folder: Path) -> None:
    """Deletes the index of the closed repository in the folder ``folder`` (``.mvc``).

    Needed if the journal lacks entries that the index has (HistoryMissing), after the user has
    accepted the loss of these entries. When the repository is opened again, a new index is built.
    """
    fs.unlink(folder / INDEX / CURRENT, missing_ok=True)
    fs.unlink(folder / HIGH_WATER_MARK, missing_ok=True)
