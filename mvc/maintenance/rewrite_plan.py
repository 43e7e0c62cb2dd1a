"""A plan to change how versions are stored, and its execution. gc, repack and repair use it.

Objects (tensors and manifests) are stored in pack files. A *coding* stores one object, in full or
as a delta. A record contains one or more codings. The journal has one entry for each operation, and
an entry names the records that the operation wrote.

``rewrite`` goes through the journal entry by entry. It copies codings from packs that will be
deleted into new packs, and adds new codings. Then it replaces the journal in one step
(``mvc.store.publishing.rewrite``). The ids of versions and objects do not change. Every object that
is encoded again is compared with its hash, so damage is never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Protocol, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.errors import Busy, DamagedData
from mvc.maintenance.graph import CodingPlace, StorageGraph, StoredRecord
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.config import Config
from mvc.store.journal.entries import Entry, Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import BLOB, MANIFEST, Member, RecordHeader
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.publishing.rewrite import Rewrite
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.store.writing.bases import Recovers
from mvc.store.writing.full_or_delta import Policy, exactly
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.proof import proven_header
from mvc.types import Bytes, Counted, Progress

_TRIES = 8
_T = TypeVar("_T")


class ObjectSource(Recovers, Protocol):
    """Where ``rewrite`` reads the bytes of objects. A repair also reads from other sources."""

    def manifest(self, id_: bytes) -> bytes:
        """The encoded manifest. Raises DamagedData."""


Encoded: TypeAlias = Callable[[PackReader], tuple[bytes, Sequence[Bytes]]]
"""Makes the header of a record and the parts of its body from stored bytes."""


class EncodeRequest(Struct, frozen=True):
    """A coding to make: a delta from ``base``. Without ``base``, the object is stored in full.

    If the delta saves less than a tenth of the full record, the object is stored in full, too.
    ``entry_index``: the index of the journal entry to which the coding is added; None: the entry
    that first published the object.
    """

    id: bytes
    base: bytes | None
    entry_index: int | None = None


class RewritePlan(Struct):
    """``leave``: codings to remove. ``add``: codings to make.

    ``packs``: packs to delete. Codings in these packs that are not in ``leave`` are copied to new
    packs. ``records``: more records to replace by copies without the codings in ``leave``; a record
    is (pack, offset).
    ``edits``: maps the index of a journal entry to its new form, or to None to delete the entry.
    ``joint``: maps the index of a journal entry to functions that make new records from codings in
    ``leave``. ``specs``: dtype and shape of every tensor to encode or to use as a base.
    ``source``: reads the bytes of objects; None: the repository itself.
    """

    graph: StorageGraph
    leave: set[CodingPlace] = field(default_factory=set)
    add: list[EncodeRequest] = field(default_factory=list)
    packs: set[int] = field(default_factory=set)
    edits: dict[int, Entry | None] = field(default_factory=dict)
    specs: Mapping[bytes, TensorSpec] = field(default_factory=dict)
    source: ObjectSource | None = None
    records: set[tuple[int, int]] = field(default_factory=set)
    joint: Mapping[int, Sequence[Encoded]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        changed = self.leave or self.add or self.packs or self.records or self.edits
        return bool(changed or self.joint)


def encoding_policy(config: Config) -> Policy:
    """How maintenance encodes objects: with the pipeline in the setting ``commit.pipeline``.

    The number of deltas to decode for an object is not limited.
    """
    return Policy(exactly(Pipeline.parse(config.get("commit.pipeline")).coding()))


def retry_on_rewrite(snapshot: Snapshot, attempt: Callable[[], _T]) -> _T:
    """Calls ``attempt`` and returns its result.

    If another operation rewrites the repository during the call, calls ``attempt`` again. Raises
    Busy after 8 calls. Raises a DamagedData of ``attempt`` only if the repository was not rewritten
    during the call.
    """
    for _ in range(_TRIES):
        generation = snapshot.generation
        try:
            return attempt()
        except ConcurrentRewrite:
            continue
        except DamagedData as error:
            snapshot.refresh()
            if snapshot.generation == generation:
                hint = error.hint if "--repair" in (error.hint or "") else None
                raise DamagedData(
                    error.message, hint=hint or "run 'mvc fsck --repair' first"
                ) from error
    raise Busy(
        "other operations rewrote the repository during each of 8 tries",
        hint="run the command again when no other operation rewrites the repository",
    )


def rewrite(
    store: Store,
    policy: Policy,
    plan: RewritePlan,
    *,
    operation: Callable[[], Entry],
    allows: Callable[[Recorded, Iterator[RecordHeader]], bool] | None = None,
    progress: Progress | None = None,
) -> Recorded:
    """Executes a plan. ``operation`` makes the last entry of the new journal.

    ``allows(operation, headers)`` is called for each operation that was published after the graph
    was read. ``headers`` are those of the operation's records. Pass ``allows`` if the plan deletes
    objects. Raises ConcurrentRewrite if ``allows`` returns False, or if the journal was replaced
    after the graph was read. Raises DamagedData if bytes to copy are damaged. After these errors
    nothing has changed.
    """
    snapshot = store.snapshot
    if snapshot.generation != plan.graph.generation:
        raise ConcurrentRewrite("the journal was replaced after the plan was made")
    with Rewrite(snapshot, store.pack_writer(fresh=True)) as journal:
        writer = store.object_writer(journal.packs, policy)
        source = plan.source or store.recovery
        work = _Execution(plan, journal, writer=writer, source=source)
        work.write(progress)
        for recorded in journal.meanwhile():
            if allows is not None and not allows(recorded, work.headers_of(recorded)):
                raise ConcurrentRewrite("a new operation needs an object that was to be deleted")
            work.include(recorded)
        done = work.publish(operation())
    store.index_anew()
    store.sweep()
    return done


class _Execution:
    def __init__(
        self,
        plan: RewritePlan,
        rewrite: Rewrite,
        *,
        writer: ObjectWriter,
        source: ObjectSource,
    ) -> None:
        graph = plan.graph
        self._old, self._graph, self._plan = graph.pack_reader, graph, plan
        self._new = rewrite.packs
        self._rewrite = rewrite
        self._writer = writer
        self._source = source
        self._ends: dict[int, int] = {}  # for each pack: the end of its last known region
        self._add: dict[int, list[EncodeRequest]] = {}
        for request in plan.add:
            position = request.entry_index
            position = graph.entry_of(request.id) if position is None else position
            self._add.setdefault(position, []).append(request)

    def write(self, progress: Progress | None) -> None:
        """Writes the new form of all entries of the graph."""
        entries = self._graph.entries
        with closing(self._writer):
            counted = Counted(progress, len(entries)).iterate(entries, "operations")
            for entry_index, recorded in enumerate(counted):
                self._raise_ends(recorded)
                self._rewrite.keep(recorded, self._entry(entry_index, recorded))

    def include(self, recorded: Recorded) -> None:
        """Includes an operation that was published after the graph was read."""
        self._raise_ends(recorded)
        self._rewrite.keep(recorded, self._moved(recorded))

    def headers_of(self, recorded: Recorded) -> Iterator[RecordHeader]:
        regions = recorded.entry.regions
        return (header for region in regions for _, header in self._old.records(region))

    def publish(self, last: Entry) -> Recorded:
        """Replaces the journal. ``last``: the entry for this operation. The journal must be locked.

        After a power loss, the old journal may return. So no process may overwrite bytes that the
        old journal names. ``last`` gets regions of length zero, which record where these bytes end
        in each pack.
        """
        deleted, highest = self._plan.packs, max(self._ends, default=0)
        marks = [
            Region(pack, 0 if pack in deleted else end, 0)
            for pack, end in sorted(self._ends.items())
            if pack == highest or (end and pack not in deleted)
        ]
        return self._rewrite.publish(replace(last, regions=(*last.regions, *marks)))

    def _raise_ends(self, recorded: Recorded) -> None:
        """Updates ``_ends`` with the regions of an entry."""
        for region in recorded.entry.regions:
            self._ends[region.pack] = max(self._ends.get(region.pack, 0), region.end)

    def _entry(self, entry_index: int, recorded: Recorded) -> Entry | None:
        """Writes the copied records and new codings of an entry. Returns the new form of the entry.

        None if the entry is to be deleted.
        """
        plan = self._plan
        entry = plan.edits.get(entry_index, recorded.entry)
        regions: list[Region] = []
        requests: list[EncodeRequest] = []
        for record in self._graph.records_of(entry_index):
            if record.pack in plan.packs or (record.pack, record.offset) in plan.records:
                requests += self._move(record)
                regions += self._new.cut()
            elif any(place not in plan.leave for place, _ in record.members()):
                regions.append(Region(record.pack, record.offset, record.header.size))
        requests += self._add.get(entry_index, ())
        if requests:
            self._encode(requests)
        for encoded in plan.joint.get(entry_index, ()):
            self._new.append(*encoded(self._old))
        regions += self._new.cut()
        if entry is None:
            if not regions:
                return None
            entry = Entry(recorded.entry.operation, recorded.entry.time_ns)
        return replace(entry, regions=_joined(regions))

    def _move(self, record: StoredRecord) -> list[EncodeRequest]:
        """Copies the members (codings) of a record that are not removed.

        Returns requests for the members that cannot be copied and must be encoded again.
        """
        members = list(record.members())
        retained = [member for place, member in members if place not in self._plan.leave]
        if not retained:
            return []
        if len(retained) == len(members):
            self._copy(record.pack, record.offset, record.header)
            return []
        if record.header.group:
            return [self._request(member) for member in retained]
        encode_again: list[Member] = []
        if any(m.kind == BLOB for place, m in members if place in self._plan.leave):
            # A manifest is stored as a patch. The patch refers to the ids of all tensors in the
            # same record, and one of these tensors is removed.
            encode_again = [member for member in retained if member.kind == MANIFEST]
            retained = [member for member in retained if member.kind != MANIFEST]
        # Makes a new record without the removed members, which may be damaged.
        moved, parts, at = [], [], 0
        for member in retained:
            parts.append(self._old.payload(record.pack, record.offset, record.header, member))
            moved.append(member._replace(at=at))
            at += member.stored
        if retained:
            self._new.append(proven_header(moved, group=False, body_size=at), parts)
        return [self._request(member) for member in encode_again]

    def _request(self, member: Member) -> EncodeRequest:
        return EncodeRequest(member.id, self._graph.base_of(member))

    def _copy(self, pack: int, offset: int, header: RecordHeader) -> None:
        head, body = self._old.raw(pack, offset, header)
        self._new.append(head, [body])

    def _moved(self, recorded: Recorded) -> Entry:
        """Copies the records of a new entry that are in packs to delete. Returns its new form."""
        regions: list[Region] = []
        for region in recorded.entry.regions:
            stays = region.pack not in self._plan.packs
            if stays:
                regions.append(region)
            for at, header in () if stays else self._old.records(region):
                self._copy(region.pack, at, header)
            regions += self._new.cut()
        return replace(recorded.entry, regions=_joined(regions))

    def _encode(self, requests: Sequence[EncodeRequest]) -> None:
        """Encodes objects: first the tensors, then each manifest in a separate record.

        Raises DamagedData if an object cannot be recovered.
        """
        specs = self._plan.specs
        for request in requests:
            if request.id in specs:
                base = None
                if request.base is not None and request.base in specs:
                    base = (request.base, specs[request.base])
                self._writer.put_recovered(request.id, specs[request.id], self._source, base)
        self._flush()
        for request in requests:
            if request.id in specs:
                continue
            data, old = self._source.manifest(request.id), None
            if request.base is not None:
                with suppress(DamagedData):  # if the base is lost: a full record
                    old = (request.base, self._source.manifest(request.base))
            self._writer.put_bytes(MANIFEST, request.id, data, old)
            self._flush()

    def _flush(self) -> None:
        self._writer.drain()
        self._writer.flush()


def _joined(regions: list[Region]) -> tuple[Region, ...]:
    joined: list[Region] = []
    for region in regions:
        last = joined[-1] if joined else Region(-1, 0, 0)
        if (last.pack, last.end) == (region.pack, region.start):
            joined[-1] = replace(last, length=last.length + region.length)
        else:
            joined.append(region)
    return tuple(joined)
