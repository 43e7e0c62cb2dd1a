"""Plans the repair of a damaged repository: which objects to store again, and from which source.

An *object* is a tensor or a manifest (the list of a version's files). A *record* is a part of a
pack file that stores objects, in full or as deltas from other objects. A record is sound if its
bytes match their checksum. This module only makes the plan. ``repair`` executes the plan.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mvc.ids import ManifestId
from mvc.maintenance.fsck.packs import PackCheck
from mvc.maintenance.graph import Piece, Reachability, StorageGraph
from mvc.maintenance.quarantine import DamagedRange
from mvc.maintenance.repair.damage import SoundGraph, quarantined, shared_records
from mvc.maintenance.repair.sources import ObjectSources
from mvc.maintenance.report import Healed
from mvc.maintenance.rewrite_plan import EncodeRequest, RewritePlan
from mvc.model.hashing import pieces
from mvc.model.tensor import TensorSpec
from mvc.repo.lookup.manifests import objects
from mvc.store.packs.records import BASE_BYTES, MANIFEST, Member


class Need(Struct, frozen=True):
    """Why an object is needed: a version contains it.

    ``spec``: dtype and shape of a tensor; None for a manifest. ``entry_index``: the index of the
    journal entry that recorded the first version with the object.
    """

    spec: TensorSpec | None
    entry_index: int


class RepairPlan(Struct):
    """``rewrite``: the records to remove and the objects to store again.

    ``healed``: the objects that the repair recovers. ``ranges``: damaged bytes to move into the
    quarantine. A plan with ``ranges`` is executed even without other changes, so that the new
    journal does not name these bytes. ``lost``: objects that versions need, but that no source has.
    """

    rewrite: RewritePlan
    healed: list[Healed]
    ranges: list[DamagedRange]
    lost: set[bytes]


def needs_of(stored: StorageGraph, graph: SoundGraph, sources: ObjectSources) -> dict[bytes, Need]:
    """Maps each object of each version to its ``Need``, in the order of versions.

    Leaves out versions whose state is forgotten, and the tensors of manifests that cannot be
    recovered. Adds the id of every object to ``graph``.
    """
    history = stored.history
    first_entry: dict[ManifestId, int] = {}
    for entry_index, recorded in enumerate(stored.entries):
        for commit in recorded.entry.commits:
            if commit.id not in history.forgotten:
                graph.name(commit.manifest)
                first_entry.setdefault(commit.manifest, entry_index)
    dropped = history.dropped_paths(history.states())
    needs: dict[bytes, Need] = {}
    for id_, entry_index in first_entry.items():
        manifest = sources.load(id_)
        if manifest is not None:
            for blob, spec in objects(manifest.all_entries, dropped.get(id_, ())).items():
                graph.name(blob)
                needs.setdefault(blob, Need(spec, entry_index))
        needs.setdefault(id_, Need(None, entry_index))
    return needs


def plan_repair(
    survey: PackCheck, graph: SoundGraph, needs: dict[bytes, Need], sources: ObjectSources
) -> RepairPlan:
    """Makes the plan. ``survey``: the result of reading all records."""
    stored = _SoundRecords(survey, graph, needs)
    restored, lost = _settle(stored, sources)
    leave, encode_again, ranges = set(survey.damaged), set[bytes](), list(survey.ranges)
    shared = shared_records(survey)
    for record, place, member in survey.objects.all_members():
        if place in survey.damaged:
            encode_again.add(member.id)
        elif member.id in lost or not stored.has_needs(member, lost):
            leave.add(place)
            why = f"object {member.id.hex()[:10]} cannot be recovered"
            ranges.append(quarantined(record, why))
    recoded = dict.fromkeys(
        sorted(encode_again - restored.keys() - lost), "another record of the object"
    )
    manifests = {id_ for id_, need in needs.items() if need.spec is None}
    healed = [
        Healed("manifest" if id_ in manifests else "object", id_.hex(), source)
        for id_, source in (restored | recoded).items()
    ]
    for pack in sorted({pack for pack, _ in shared}):
        healed.append(Healed("region", f"pack {pack}", "the records in the shared bytes"))
    rewrite = RewritePlan(
        survey.objects,
        leave=leave,
        add=[
            EncodeRequest(id_, stored.earlier_base(id_, lost), stored.entry_for(id_))
            for id_ in restored
        ],
        specs={id_: need.spec for id_, need in needs.items() if need.spec is not None},
        source=sources,
        records={place[:2] for place in leave} | shared,
    )
    return RepairPlan(rewrite, healed, ranges, lost & needs.keys())


def _settle(stored: _SoundRecords, sources: ObjectSources) -> tuple[dict[bytes, str], set[bytes]]:
    """Maps each object to store again to the name of its source. Also returns the lost objects.

    If an object is lost, deltas from this object cannot be decoded. So more objects may be lost.
    The search is repeated until no more objects are lost.
    """
    restored: dict[bytes, str] = {}
    lost: set[bytes] = set()
    while True:
        restored_now, missing = _restore_round(stored, sources, restored, lost)
        restored |= restored_now
        missing |= stored.stranded(lost | missing)
        if missing <= lost:
            return restored, lost
        lost |= missing


def _restore_round(
    stored: _SoundRecords, sources: ObjectSources, restored: dict[bytes, str], lost: set[bytes]
) -> tuple[dict[bytes, str], set[bytes]]:
    """Finds sources of the objects that sound records cannot recover.

    Also returns the objects without a source. The oldest objects come first, because a restored
    object may be the base of later objects. An object in ``encoded_again`` must be readable from
    sound records alone, without restored objects. If it is not, it may count as lost until the next
    round of the repair, which reads its record in the quarantine.
    """
    restored_now: dict[bytes, str] = {}
    missing: set[bytes] = set()
    by_records = stored.readable(lost)
    by_restored = by_records.copy()
    by_restored.reach(stored.all_pieces(restored))
    for id_ in stored.oldest_first:
        pieces_ = stored.all_pieces([id_])
        reached = by_records if id_ in stored.encoded_again else by_restored
        if id_ in lost or id_ in restored or reached.has_all(pieces_):
            continue
        need = stored.needs.get(id_)
        source = None if need is None else sources.find(id_, need.spec)
        if source is None:
            missing.add(id_)
        else:
            restored_now[id_] = source
            by_restored.reach(pieces_)
    return restored_now, missing


class _SoundRecords:
    """The objects in sound records, and the objects that versions need.

    ``pieces``: maps each object to the offsets of its pieces (large tensors are stored in pieces).
    ``encoded_again``: objects that are encoded again if another object of their record is removed,
    because the record cannot be copied in part. ``oldest_first``: all objects, sorted by the
    journal entry to which a new record of the object would be added.
    """

    def __init__(self, survey: PackCheck, graph: SoundGraph, needs: dict[bytes, Need]) -> None:
        self.needs = needs
        self.pieces: dict[bytes, set[int]] = {}
        self.encoded_again: set[bytes] = set()
        self._survey = survey
        self._graph = graph
        # Maps the first bytes of an object's id to the index of the earliest journal entry that
        # stores the object, or a delta from the object.
        self._first_entry: dict[bytes, int] = {}
        self._sound = []
        for record, place, member in survey.objects.all_members():
            header = record.header
            if header.group or (member.kind == MANIFEST and len(header.members) > 1):
                self.encoded_again.add(member.id)
            for prefix in (member.id[:BASE_BYTES], *member.needs):
                self._first_entry.setdefault(prefix, record.entry_index)
            if place not in survey.damaged:
                self._sound.append(member)
                self.pieces.setdefault(member.id, set()).add(member.start)
        for id_, need in needs.items():
            starts = [0] if need.spec is None else [start for start, _ in pieces(need.spec)]
            self.pieces.setdefault(id_, set()).update(starts)
        self.oldest_first = sorted(self.pieces, key=self.entry_for)

    def all_pieces(self, ids: Iterable[bytes]) -> list[Piece]:
        return [(id_, start) for id_ in ids for start in self.pieces[id_]]

    def entry_for(self, id_: bytes) -> int:
        """The index of the journal entry to which a new record of an object is added.

        This is the earliest entry that needs the object or stores a delta from the object.
        """
        last = len(self._survey.objects.entries) - 1
        need = self.needs.get(id_)
        first = self._first_entry.get(id_[:BASE_BYTES], last)
        return first if need is None else min(first, need.entry_index)

    def base_of(self, prefix: bytes, lost: set[bytes]) -> bytes | None:
        """The id of the base that begins with ``prefix``.

        None if the base is lost or unknown, or if the prefix is empty.
        """
        base = self._graph.resolve_prefix(prefix) if prefix else None
        return None if base in lost else base

    def has_needs(self, member: Member, lost: set[bytes]) -> bool:
        """Whether all objects from which a member is decoded are known and not lost."""
        return all(self.base_of(prefix, lost) is not None for prefix in member.needs)

    def earlier_base(self, id_: bytes, lost: set[bytes]) -> bytes | None:
        """A base for a new delta of an object: not lost, and in an earlier entry. None: no base."""
        bases = (self.base_of(step.member.base, lost) for step in self._graph.steps(id_))
        known = (base for base in bases if base is not None)
        return next(
            (candidate for candidate in known if self.entry_for(candidate) < self.entry_for(id_)),
            None,
        )

    def readable(self, lost: set[bytes]) -> Reachability:
        """The pieces that sound records can recover without lost objects.

        Many deltas can also be reversed, to recover the base. A delta has only the first bytes of
        the base's id, so it is reversed only if a sound record of the base has the full id.
        """
        members = [member for member in self._sound if member.id not in lost]
        named = {member.id for member in members}
        reached = Reachability()
        for member in members:
            if not self.has_needs(member, lost):
                continue
            base = self.base_of(member.base, lost)
            inputs = [self._graph.resolve_prefix(prefix) or b"" for prefix in member.inputs]
            reversible = base in named and not member.coding.forward_only
            reached.add(member.id, member.start, base, reversible=reversible, inputs=inputs)
        return reached

    def stranded(self, lost: set[bytes]) -> set[bytes]:
        """Objects that no version needs, and that share a payload with objects that are removed.

        These objects would have to be encoded again. This is impossible without their dtype and
        shape, which only the manifests of versions have.
        """
        stranded_: set[bytes] = set()
        for record in self._survey.objects.all_records():
            if not record.header.group:
                continue
            stay = {
                member.id
                for place, member in record.members()
                if place not in self._survey.damaged
                and member.id not in lost
                and self.has_needs(member, lost)
            }
            if len(stay) < len(record.header.members):
                stranded_ |= stay - self.needs.keys()
        return stranded_
