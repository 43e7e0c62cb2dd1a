"""Publishes an operation, such as a commit: appends its entry to the repository's journal.

A process locks the journal, reads the entries that are new to its snapshot, and writes its entry.
It flushes the journal to disk after releasing the lock, so that waiting processes share one flush.
If the previous entry may not be on disk, the process flushes it before it writes its own entry
(``heal``). So after a crash, only the last entry can be incomplete. If an earlier entry cannot be
read, the journal is damaged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from mvc.errors import DamagedData, MvcError, WrongUsage
from mvc.io.files import WriteFile
from mvc.limits import MAX_ENTRY
from mvc.model.statement import Deployment, Retraction, Statement
from mvc.store.format import add_features
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import (
    Position,
    Recorded,
    complete,
    encode_entry,
    frame_of,
    frames_behind,
)
from mvc.store.journal.high_water_mark import write_high_water_mark
from mvc.store.proving import proof_of, prove_equal
from mvc.store.snapshot import JOURNAL, Snapshot


class ConcurrentRewrite(Exception):
    """Another process has replaced the journal by gc or repack. The caller must try again."""


def publish(
    snapshot: Snapshot,
    make: Callable[[], Entry],
    *,
    sync: bool = True,
    release: Callable[[], None] | None = None,
    stored: frozenset[str] = frozenset(),
) -> Recorded:
    """Appends the entry that ``make`` returns. With ``sync``, the entry is durable on return.

    ``make`` runs under the journal's lock, after the snapshot is refreshed. If ``make`` raises an
    error, nothing is written. The packs (files of encoded objects) that the entry names must be
    durable before the call. ``stored``: the format features of the objects in these packs.
    ``release``: called to unlock a pack, after the entry is written and before it is flushed.
    Raises WrongUsage if readers would refuse the entry, and ReadOnly if a format feature forbids
    writing.
    """
    (recorded,) = publish_all(snapshot, lambda: [make()], sync=sync, release=release, stored=stored)
    return recorded


def publish_all(
    snapshot: Snapshot,
    make: Callable[[], Iterable[Entry]],
    *,
    sync: bool = True,
    release: Callable[[], None] | None = None,
    stored: frozenset[str] = frozenset(),
) -> list[Recorded]:
    """As ``publish``, for several entries under one lock.

    ``make`` yields the entries. It must refresh the snapshot before it yields the next entry.
    """
    path = snapshot.folder / JOURNAL
    snapshot.refresh()  # before locking, because this takes long if the journal was replaced
    done: list[Recorded] = []
    with contextlib.ExitStack() as opened:
        with snapshot.fs.lock(path):
            file = opened.enter_context(snapshot.fs.open_write(path))
            snapshot.refresh()
            snapshot.check_whole()
            heal(snapshot, file)
            generation = snapshot.generation
            for draft in make():
                if done:
                    heal(snapshot, file)
                entry = completed(snapshot, draft)
                at = snapshot.position
                data, after = proven_entry(entry, at, _readable(entry))
                needed = entry.features | stored if entry.regions else entry.features
                add_features(snapshot.fs, snapshot.folder, needed)
                _append(file, at.offset, data)
                done.append(
                    Recorded(entry, at.offset, at.sequence, after, copies=2, check=after.chain)
                )
        if release is not None:
            release()
        if sync and done:
            file.sync()
            end = done[-1].after
            if snapshot.generation == generation:
                snapshot.journal.durable = max(snapshot.journal.durable, end.offset)
            write_high_water_mark(snapshot.fs, snapshot.folder, snapshot.identity, end)
    for recorded in done if sync and snapshot.generation == generation else ():
        snapshot.note_published(recorded)
    snapshot.refresh()
    return done


def _readable(entry: Entry) -> Entry:
    """Encodes an entry, and decodes the result. Raises WrongUsage if readers would refuse it."""
    data = entry.encoded
    try:
        if len(data) > MAX_ENTRY:
            raise WrongUsage(f"the operation has {len(data):,} bytes; at most {MAX_ENTRY:,} fit")
        return Entry.decode(data, "the operation")
    except DamagedData as error:
        raise WrongUsage(f"readers would refuse the operation: {error.message}") from error


def proven_entry(entry: Entry, at: Position, read: Entry | None = None) -> tuple[bytes, Position]:
    """As ``encode_entry``. Then decodes the result and compares it with ``entry``.

    ``read``: the entry decoded from ``entry.encoded``, if the caller has it.
    """
    data, after = encode_entry(entry, at)
    half = data[: len(data) // 2]
    with proof_of("an operation"):
        payload, *rest = frame_of(half) or (b"",)
        prove_equal((rest, half * 2), ([at.sequence, at.chain, after.chain], data))
        if read is None or payload != entry.encoded:
            read = Entry.decode(payload, "the operation")
        prove_equal(_comparable(read), _comparable(entry))
    return data, after


def _comparable(entry: Entry) -> tuple[object, ...]:
    """An entry's fields for a comparison. Metrics are texts, because NaN is not equal to NaN."""
    measured = [
        (replace(commit, metrics={}), {name: value.hex() for name, value in commit.metrics.items()})
        for commit in entry.commits
    ]
    statements = [commit.encoded for commit in entry.statements]
    return replace(entry, commits=(), statements=()), statements, measured


def completed(snapshot: Snapshot, entry: Entry) -> Entry:
    """Sets the fields of an entry that depend on earlier entries. The caller must lock the journal.

    ``previous``: for each statement (such as a deployment), the number of the newest earlier entry
    with a statement on the same topic (for a deployment, its target). A statement without ``node``
    was made here. It gets the id of this repository, the time of recording, and a hybrid time that
    is greater than all earlier hybrid times of its topic.
    """
    if not entry.statements:
        return entry
    newest: dict[str | tuple[int, bytes], int] = {}
    previous: dict[str | tuple[int, bytes], int | None] = {}
    statements = []
    for statement in entry.statements:
        topic = statement.topic
        if topic not in previous:
            previous[topic] = entry_before(snapshot, statement)
        if not statement.node:
            before_ns = max(_newest_hybrid(snapshot, statement), newest.get(topic, 0))
            hybrid_ns = max(entry.time_ns, before_ns + 1)
            statement = replace(
                statement, node=snapshot.node, recorded_ns=entry.time_ns, hybrid_ns=hybrid_ns
            )
        newest[topic] = max(newest.get(topic, 0), statement.hybrid_ns)
        statements.append(statement)
    return replace(
        entry,
        statements=tuple(statements),
        previous=tuple(previous[statement.topic] for statement in statements),
    )


def entry_before(snapshot: Snapshot, statement: Statement) -> int | None:
    """The number of the newest entry with a statement on the topic of ``statement``."""
    newest = snapshot.newest_of_topic(statement)
    return None if newest is None else newest.sequence


def _newest_hybrid(snapshot: Snapshot, statement: Statement) -> int:
    if statement.target:
        times = (snapshot.newest_hybrid(statement.target, k.code) for k in (Deployment, Retraction))
        return max((s for s in times if s is not None), default=0)
    greatest, recorded = 0, snapshot.newest_of_topic(statement)
    while recorded is not None:
        entry = recorded.entry
        alike = (s for s in entry.statements if s.topic == statement.topic)
        greatest = max(greatest, *(s.hybrid_ns for s in alike))
        # An entry that was made here has the greatest hybrid time of its topic so far, so the
        # search can stop. A received entry may have a smaller time than the entry before it.
        number = entry.before(statement) if entry.is_received else None
        recorded = None if number is None else snapshot.by_sequence(number)
    return greatest


def heal(snapshot: Snapshot, file: WriteFile) -> None:
    """Repairs the end of the journal, and flushes the journal.

    Each entry is written twice. If only one copy of the last entry is complete, writes the other
    copy again. If no copy is complete, removes the entry.
    """
    if not snapshot.journal.settled:
        # gc or repack may have been killed before it flushed the folder with its new journal
        snapshot.fs.sync_dir(snapshot.folder)
        snapshot.journal.settled = True
    end = snapshot.position.offset
    size = file.size()
    if size > end:
        _check_unacknowledged(file, snapshot.position, size)
        file.truncate(end)
    if snapshot.journal.durable >= end:
        return
    if snapshot.tip is not None and snapshot.tip.copies < 2:
        complete(file, snapshot.tip)
    file.sync()
    snapshot.journal.durable = end


def _check_unacknowledged(file: WriteFile, end: Position, size: int) -> None:
    """Raises DamagedData if the bytes after ``end``, which will be removed, contain an entry."""
    for _, frame in frames_behind(file.read(end.offset, size - end.offset), 0):
        if frame[1] >= end.sequence:
            raise DamagedData(
                f"the journal is damaged at byte {end.offset}, but has an entry after the damage",
                hint="run 'mvc fsck' to list the affected versions",
            )


def _append(file: WriteFile, offset: int, data: bytes) -> None:
    try:
        file.write_at(offset, data)
    except (MvcError, MemoryError):
        # The journal may end in an incomplete entry now. Remove the entry if possible.
        with contextlib.suppress(MvcError):
            file.truncate(offset)
        raise
