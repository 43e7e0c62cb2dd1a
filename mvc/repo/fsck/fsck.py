"""fsck: read every byte of the repository, name what is damaged and what it touches.

In this order: format, journal (both copies of every entry, the chain, what entries say
about each other), packs (every header and payload), versions (every manifest, every
object they name; ``full``: recovered and hashed), index (against journal and packs).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mvc.errors import DamagedData, MvcError, ReadOnly
from mvc.io.files import TEMPORARY, FileSystem
from mvc.model.commit import Commit
from mvc.repo.context import Context, Progress
from mvc.repo.fsck.journal import JournalCheck
from mvc.repo.maintenance.quarantine import QUARANTINE, files_in
from mvc.repo.maintenance.report import FsckReport, Problem
from mvc.store.format import FORMAT, read_features
from mvc.store.index import keys
from mvc.store.index.folder import CURRENT
from mvc.store.journal.frames import Gap
from mvc.store.journal.high_water_mark import HIGH_WATER_MARK
from mvc.store.snapshot import INDEX, PACKS, Snapshot

__all__ = ["FsckReport", "Problem", "check", "forget_index", "fsck", "lost_end", "rebuild_index"]


def fsck(context: Context, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
    """Checks the whole repository; changes nothing. Memory grows with the number of objects.

    Everything is compared as of the journal's end when the check began; what others append
    meanwhile is left out. ``progress`` counts bytes of packs, and with ``full`` raw bytes of
    objects as well. Where maintenance has moved things meanwhile, or the last entry's writer
    has failed and taken it back, what seemed damaged is looked at once more.
    """
    return check(context, full=full, progress=progress)[0]


def check(
    context: Context, *, full: bool = False, progress: Progress | None = None
) -> tuple[FsckReport, JournalCheck]:
    """As ``fsck``, with what was found out about the journal."""
    while True:
        generation = context.fresh().generation
        report, journal = _look(context, full, progress)
        if report.sound or (context.fresh().generation == generation and _stands(journal)):
            return report, journal


def _stands(journal: JournalCheck) -> bool:
    """Whether the last entry that was checked is still there."""
    last = journal.last
    if last is None:
        return True
    try:
        return journal.snapshot.entry(last.offset).check == last.check
    except DamagedData:
        return False


def _look(
    context: Context, full: bool, progress: Progress | None
) -> tuple[FsckReport, JournalCheck]:
    from mvc.repo.fsck.packs import PackCheck
    from mvc.repo.fsck.versions import VersionCheck
    from mvc.repo.lookup.manifest_stream import ManifestStream

    snapshot = context.fresh()
    meter = _Meter(progress)
    journal = JournalCheck(snapshot)
    packs = PackCheck(snapshot)
    meter.total = _pack_bytes(snapshot)
    commits: dict[bytes, Commit] = {}
    forgotten: set[bytes] = set()
    offsets: set[bytes] = set()
    for recorded in journal.entries():
        commits.update((commit.id, commit) for commit in recorded.entry.commits)
        forgotten.update(each.commit for each in recorded.entry.forgotten)
        offsets.update(keys.entry_keys(recorded))
        packs.entry(recorded)
        meter.to(packs.checked, "packs")
    packs.rest()
    packs.objects.settle()
    stream = ManifestStream(context.store)
    versions = VersionCheck(context.store.recovery, stream, packs.objects, full, meter.more)
    versions.suspects = {
        id_
        for problem in packs.problems
        if problem.kind == "payload"
        for id_ in problem.also or (bytes.fromhex(problem.object),)
    }
    versions.check(commit for id_, commit in commits.items() if id_ not in forgotten)
    found = [versions.touching(p) if p.kind == "payload" else p for p in packs.problems]
    problems = [*_format(context), *journal.problems, *_joined(found, versions.problems)]
    if not journal.problems and not packs.problems:
        problems += _index(snapshot, offsets, packs.found_keys, journal.end.offset)
    notes = (*journal.notes, *packs.notes, *_left(context))
    lost = tuple(commit.id for commit in commits.values() if commit.id in versions.lost)
    report = FsckReport(
        tuple(problems),
        notes,
        full,
        journal.count,
        len(commits) + len(journal.lost),
        packs.records,
        len(packs.objects),
        journal.end.offset + packs.checked + versions.recovered,
        len(forgotten & commits.keys()),
        (*lost, *journal.lost),
    )
    return report, journal


def rebuild_index(context: Context) -> None:
    """Makes the index anew from journal and packs.

    Raises ReadOnly where nothing can be written, DamagedData where entries are lost.
    """
    if not context.store.writable:
        raise ReadOnly(
            "the index cannot be rebuilt: the repository's folder cannot be written",
            hint="questions are answered without an index there, only slower",
        )
    snapshot = context.fresh()
    for _ in snapshot.entries():
        pass  # an index knows of entries that are lost since: it is not given up for a new one
    snapshot.rebuild_index()


def lost_end(context: Context) -> Gap | None:
    """The last entries, if these and no others are lost: the loss of an end can be accepted."""
    snapshot = context.fresh()
    gaps: list[Gap] = []
    for _ in snapshot.entries(lost=gaps.append):
        pass
    behind = [gap for gap in snapshot.gaps if gap.start.offset >= snapshot.position.offset]
    return behind[0] if behind and not gaps else None


def forget_index(fs: FileSystem, folder: Path) -> None:
    """Gives up the index of the repository folder ``folder`` (``.mvc``) before it is opened.

    For a journal that is older than its index (HistoryMissing), once the loss is
    accepted. The next opening makes a new index.
    """
    fs.unlink(folder / INDEX / CURRENT, missing_ok=True)
    fs.unlink(folder / HIGH_WATER_MARK, missing_ok=True)


class _Meter:
    """Adds up what is done for a progress callback."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.total = self._done = 0

    def to(self, done: int, what: str) -> None:
        self._done = done
        self._tell(what)

    def more(self, count: int, what: str) -> None:
        self._done += count
        self._tell(what)

    def _tell(self, what: str) -> None:
        if self._progress is not None:
            self._progress(self._done, max(self._done, self.total), what)


def _joined(damaged: list[Problem], others: list[Problem]) -> list[Problem]:
    """One problem for an object whose payload is damaged and that nothing else leads to."""
    homes = {
        id_.hex(): at
        for at, p in enumerate(damaged)
        if p.kind == "payload"
        for id_ in p.also or (bytes.fromhex(p.object),)
    }
    covered = [p for p in others if p.kind in {"lost", "manifest"} and p.object in homes]
    lost = {homes[p.object] for p in covered}
    joined = [
        replace(p, message=f"{p.message}; no other record leads to it") if at in lost else p
        for at, p in enumerate(damaged)
    ]
    return [*joined, *(p for p in others if p not in covered)]


def _left(context: Context) -> Iterator[str]:
    """Files beside the repository's own: of interrupted work, and what repairs gave up."""
    fs, folder = context.store.fs, context.store.folder
    files = [name for name in fs.list(folder) if name.startswith(TEMPORARY)]
    if files:
        what = "temporary file" if len(files) == 1 else "temporary files"
        yield f"{len(files)} {what} of interrupted or running work; gc deletes what is left over"
    kept = [identity.size for path in files_in(fs, folder) if (identity := fs.stat(path))]
    if kept:
        what = "1 file" if len(kept) == 1 else f"{len(kept)} files"
        yield f"{folder / QUARANTINE} holds {what} of {sum(kept):,} bytes"


def _pack_bytes(snapshot: Snapshot) -> int:
    folder = snapshot.folder / PACKS
    if snapshot.fs.stat(folder) is None:
        return 0
    sizes = (snapshot.fs.stat(folder / name) for name in snapshot.fs.list(folder))
    return sum(identity.size for identity in sizes if identity is not None)


def _format(context: Context) -> list[Problem]:
    path = context.store.folder / FORMAT
    try:
        read_features(context.store.fs, context.store.folder)
    except MvcError as error:
        return [Problem("format", FORMAT, str(path), error.message)]
    return []


def _index(
    snapshot: Snapshot, expected: set[bytes], objects: dict[int, set[bytes]], end: int
) -> list[Problem]:
    """Whether index and tail hold exactly the keys that journal and packs imply, of all entries
    before byte ``end`` of the journal. Others may have added more by now.

    Edges are left out: which of several homes of a base they start from is free.
    """
    expected = expected | {
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
