"""Changing how versions are stored: the plan as a value, and its execution.

A plan names codings to drop, codings to make and packs to delete. Execution writes the rest
of those packs and the new codings into new packs, entry by entry, and replaces the journal
in one step (``mvc.store.publishing.rewrite``). Ids do not change, and an object stays with
the operation that first published it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mvc.errors import Busy, DamagedData, ReadOnly
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context, Progress
from mvc.repo.maintenance.encode import Encoder, EncodeRequest, ObjectSource
from mvc.repo.maintenance.inventory import CodingPlace, Inventory, StoredRecord
from mvc.store.journal.entries import Entry, Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.records import BLOB, MANIFEST, Member, encode_header
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.publishing.rewrite import Rewrite

__all__ = ["RewritePlan", "check_writable", "execute", "retry_on_rewrite"]

_TRIES = 8


@dataclass
class RewritePlan:
    """``leave``: codings to drop. ``add``: codings to make. ``packs``: packs to delete; the
    codings of them that are not dropped move to new packs. ``records`` (pack, offset) move as
    well although their packs stay, so that no entry names the dropped codings in them.

    ``edits``: the new entries by position in the inventory, None to drop an entry. ``specs``:
    every blob to encode or to take as a base. ``source`` gives their bytes, by default the
    repository itself.
    """

    leave: set[CodingPlace] = field(default_factory=set)
    add: list[EncodeRequest] = field(default_factory=list)
    packs: set[int] = field(default_factory=set)
    edits: dict[int, Entry | None] = field(default_factory=dict)
    specs: Mapping[bytes, TensorSpec] = field(default_factory=dict)
    source: ObjectSource | None = None
    records: set[tuple[int, int]] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.leave or self.add or self.packs or self.records or self.edits)


def check_writable(context: Context, what: str) -> None:
    """Raises ReadOnly if the folder cannot be written; ``what``: a verb such as "collected".

    Raises InvalidTime if the time of the operation cannot be recorded.
    """
    if not context.store.writable:
        raise ReadOnly(
            f"nothing can be {what}: the repository's folder cannot be written",
            hint="check the permissions of the folder, or work on a copy that can be written",
        )
    context.store.now_ns()


def retry_on_rewrite(context: Context, attempt: Callable[[], Recorded | None]) -> Recorded | None:
    """Runs ``attempt`` again while other operations rewrite the repository meanwhile.

    Damage found meanwhile may be data that others have moved, so it is retried as well.
    Raises Busy after 8 tries, DamagedData for real damage.
    """
    snapshot = context.store.snapshot
    for _ in range(_TRIES):
        generation = snapshot.generation
        try:
            return attempt()
        except ConcurrentRewrite:
            continue
        except DamagedData as error:
            snapshot.refresh()
            if snapshot.generation == generation:
                raise _to_repair(error) from error
    raise Busy(
        "other operations changed the repository again and again while this one ran",
        hint="run it again when fewer commits are made",
    )


def _to_repair(error: DamagedData) -> DamagedData:
    """The same error with the hint for maintenance verbs: repair first."""
    hint = error.hint
    if hint is None or "--repair" not in hint:
        hint = "run 'mvc fsck --repair' first"
    return DamagedData(error.message, hint=hint)


def execute(
    context: Context,
    found: Inventory,
    plan: RewritePlan,
    last: Callable[[], Entry],
    *,
    admit: Callable[[Recorded], None] | None = None,
    progress: Progress | None = None,
) -> Recorded:
    """Executes a plan; ``last`` makes the entry that records it.

    ``admit`` gets every operation published meanwhile and raises ConcurrentRewrite if the plan
    deletes what that operation needs. Raises DamagedData if something to be moved is damaged; then
    nothing has changed.
    """
    snapshot = context.store.snapshot
    if snapshot.generation != found.generation:
        raise ConcurrentRewrite("the journal was replaced since the plan was made")
    with Rewrite(snapshot, context.store.pack_writer(fresh=True)) as rewrite:
        work = _Work(context, found, plan, rewrite)
        try:
            for entry_index, recorded in enumerate(found.entries):
                rewrite.keep(recorded, work.entry(entry_index))
                if progress is not None:
                    progress(entry_index + 1, len(found.entries), "operations")
        finally:
            work.encoder.close()

        everything = list(found.entries)

        def tail(recorded: Recorded) -> Entry:
            if admit is not None:
                admit(recorded)
            everything.append(recorded)
            return work.moved(recorded)

        recorded = rewrite.publish(tail, lambda: _marked(last(), everything, plan))
    context.store.index_anew()
    context.store.sweep()
    return recorded


def _marked(entry: Entry, everything: Iterable[Recorded], plan: RewritePlan) -> Entry:
    """Adds zero-length regions that record each pack's high-water mark.

    Bytes below it are never written again: after a power loss the old journal may come back
    and still name them. ``everything``: the old journal's entries.
    """
    ends: dict[int, int] = {}
    for recorded in everything:
        for region in recorded.entry.regions:
            ends[region.pack] = max(ends.get(region.pack, 0), region.start + region.length)
    highest = max(ends, default=0)
    marks = [
        Region(pack, 0 if pack in plan.packs else end, 0)
        for pack, end in sorted(ends.items())
        if pack == highest or (end and pack not in plan.packs)
    ]
    return replace(entry, regions=(*entry.regions, *marks))


class _Work:
    """One execution."""

    def __init__(
        self, context: Context, found: Inventory, plan: RewritePlan, rewrite: Rewrite
    ) -> None:
        self._snapshot = context.store.snapshot
        self._found = found
        self._plan = plan
        self._packs = rewrite.packs
        self.encoder = Encoder(context, rewrite.packs, plan.specs, plan.source)
        self._add: dict[int, list[EncodeRequest]] = {}
        for request in plan.add:
            self._add.setdefault(found.entry_of[request.id], []).append(request)

    def entry(self, entry_index: int) -> Entry | None:
        """The new form of an entry, with its moved records and its new codings; None to drop it."""
        recorded = self._found.entries[entry_index]
        entry = self._plan.edits.get(entry_index, recorded.entry)
        regions: list[Region] = []
        requests: list[EncodeRequest] = []
        for record in self._found.records[entry_index]:
            kept = [i for i in range(len(record.header.members)) if self._stays(record, i)]
            at = record.pack, record.offset
            if record.pack in self._plan.packs or at in self._plan.records:
                requests += self._move(record, kept)
                regions += self._packs.cut()
            elif kept:
                regions.append(Region(record.pack, record.offset, record.header.size))
        requests += self._add.get(entry_index, ())
        for each in requests:
            if each.id in self._plan.specs:
                self.encoder.blob(each)
        if requests:
            self.encoder.flush()
        for each in requests:
            if each.id not in self._plan.specs:
                self.encoder.manifest(each)
        regions += self._packs.cut()
        if entry is None:
            if not regions:
                return None
            entry = Entry(recorded.entry.operation, recorded.entry.time_ns)
        return replace(entry, regions=_joined(regions))

    def _stays(self, record: StoredRecord, i: int) -> bool:
        return (record.pack, record.offset, i) not in self._plan.leave

    def _move(self, record: StoredRecord, kept: list[int]) -> list[EncodeRequest]:
        """Copies the kept members of a record; returns those that must be encoded again."""
        members = record.header.members
        if not kept:
            return []
        if len(kept) == len(members):
            head, body = self._snapshot.packs.raw(record.pack, record.offset, record.header)
            self._packs.append(head, [body])
            return []
        if record.header.group:
            return [self._request(members[i]) for i in kept]
        gone = [members[i] for i in range(len(members)) if i not in set(kept)]
        requests: list[EncodeRequest] = []
        if any(member.kind == BLOB for member in gone):
            # The patch of a manifest refers to the ids of the blobs in the same record.
            requests = [self._request(members[i]) for i in kept if members[i].kind == MANIFEST]
            kept = [i for i in kept if members[i].kind != MANIFEST]
        if kept:
            self._append(record, [members[i] for i in kept])
        return requests

    def _request(self, member: Member) -> EncodeRequest:
        base = self._found.resolve_prefix(member.base) if member.base else None
        return EncodeRequest(member.id, base)

    def _append(self, record: StoredRecord, members: list[Member]) -> None:
        """Writes some members as a record of their own; the others may be damaged."""
        packs = self._snapshot.packs
        moved, parts, at = [], [], 0
        for member in members:
            parts.append(packs.payload(record.pack, record.offset, record.header, member))
            moved.append(replace(member, at=at))
            at += member.stored
        self._packs.append(encode_header(moved, group=False, body_size=at), parts)

    def moved(self, recorded: Recorded) -> Entry:
        """An entry published meanwhile, with its records moved out of the packs to delete."""
        regions: list[Region] = []
        for region in recorded.entry.regions:
            if region.pack not in self._plan.packs:
                regions.append(region)
                continue
            for at, header in self._snapshot.packs.records(region):
                head, body = self._snapshot.packs.raw(region.pack, at, header)
                self._packs.append(head, [body])
            regions += self._packs.cut()
        return replace(recorded.entry, regions=_joined(regions))


def _joined(regions: list[Region]) -> tuple[Region, ...]:
    """Merges adjacent regions."""
    joined: list[Region] = []
    for region in regions:
        before = joined[-1] if joined else None
        if (
            before is not None
            and before.pack == region.pack
            and (before.start + before.length == region.start)
        ):
            joined[-1] = Region(region.pack, before.start, before.length + region.length)
        else:
            joined.append(region)
    return tuple(joined)
