"""A plan to change how versions are stored, and its execution.

Objects (tensors and manifests) are stored in packs as *codings*: full records and deltas. The
journal has one entry for each operation, which names the records of the operation. Execution goes
entry by entry. It copies the codings to retain from deleted packs into new packs, and adds new
codings. Then it replaces the journal in one step (``mvc.store.publishing.rewrite``). Ids do not
change. An object stays with the operation that first published it. If an object is encoded again,
every piece is compared with the object's hash. So damage is never copied, and memory stays bounded.
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
    """Reads the bytes of objects. Normally, the repository itself is this source."""

    def manifest(self, id_: bytes) -> bytes:
        """The encoded manifest. Raises DamagedData."""


Encoded: TypeAlias = Callable[[PackReader], tuple[bytes, Sequence[Bytes]]]
"""Makes the header of a record and the parts of its body from stored bytes."""


class EncodeRequest(Struct, frozen=True):
    """A coding to make: a delta from ``base``, or a full record if ``base`` is None.

    If the delta saves less than a tenth of the full record, a full record is made. ``entry_index``:
    the position of the journal entry to which the coding is added; None: the entry that first
    published the object.
    """

    id: bytes
    base: bytes | None
    entry_index: int | None = None


class RewritePlan(Struct):
    """``leave``: codings to drop. ``add``: codings to make. ``packs``: packs to delete.

    The retained codings of these packs are copied to new packs. ``records`` (pack, offset): more
    records to copy, so that no entry names their dropped codings. ``joint``: maps the position of
    an entry to records that are made from stored codings in ``leave``. ``edits``: maps the position
    of an entry to its new form, or to None to delete the entry. ``specs``: maps every blob (a
    tensor's bytes) to encode or to use as a base to its dtype and shape. ``source``: reads the
    bytes of objects; None: the repository itself.
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
    """How maintenance encodes objects.

    The pipeline is the setting ``commit.pipeline``. The number of deltas in a row is not limited.
    """
    return Policy(exactly(Pipeline.parse(config.get("commit.pipeline")).coding()))


def retry_on_rewrite(snapshot: Snapshot, attempt: Callable[[], _T]) -> _T:
    """The result of ``attempt``. Repeats it if another operation rewrites the repository meanwhile.

    Raises Busy after 8 tries. Raises DamagedData if the repository was not rewritten during the
    try.
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
        hint="run the command again when fewer commits are made",
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
    """Executes a plan and replaces the journal. ``operation`` makes the last entry of the new
    journal.

    ``allows``: a function of an operation published since the graph was read, and the headers of
    its records. If it returns False, the plan is given up. Pass ``allows`` if the plan deletes
    objects. Raises DamagedData if bytes to copy are damaged, and ConcurrentRewrite. After these
    errors nothing has changed.
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
        self._ends: dict[int, int] = {}  # the end of each pack in the old journal
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
        """Includes an operation published since the graph was read."""
        self._raise_ends(recorded)
        self._rewrite.keep(recorded, self._moved(recorded))

    def headers_of(self, recorded: Recorded) -> Iterator[RecordHeader]:
        regions = recorded.entry.regions
        return (header for region in regions for _, header in self._old.records(region))

    def publish(self, last: Entry) -> Recorded:
        """Replaces the journal. ``last`` records this operation. Call it under the journal's lock.

        ``last`` gets regions of length zero, which record up to where each pack was written. Bytes
        before that position are never written again, because after a power loss the old journal may
        return and name these bytes.
        """
        deleted, highest = self._plan.packs, max(self._ends, default=0)
        marks = [
            Region(pack, 0 if pack in deleted else end, 0)
            for pack, end in sorted(self._ends.items())
            if pack == highest or (end and pack not in deleted)
        ]
        return self._rewrite.publish(replace(last, regions=(*last.regions, *marks)))

    def _raise_ends(self, recorded: Recorded) -> None:
        """Moves the recorded end of each pack to the end of an entry's regions, if that
        is later.
        """
        for region in recorded.entry.regions:
            self._ends[region.pack] = max(self._ends.get(region.pack, 0), region.end)

    def _entry(self, entry_index: int, recorded: Recorded) -> Entry | None:
        """The new form of an entry, with its copied records and its new codings; None to delete the
        entry.
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
        """Copies the retained members of a record. Returns requests for members to encode again."""
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
            # The patch of a manifest refers to the ids of the blobs in the same record.
            encode_again = [member for member in retained if member.kind == MANIFEST]
            retained = [member for member in retained if member.kind != MANIFEST]
        # The retained members become a new record, because the dropped members may be damaged.
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
        """Copies the records of an entry published meanwhile out of the packs to delete."""
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
        """Appends codings: first the blobs, then each manifest in a record of its own.

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
