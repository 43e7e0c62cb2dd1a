"""Joins the approximate steps of successive versions into super-steps, which take less space.

An *approximate step* stores a version as the previous version plus a quantised difference
(LC-Checkpoint, docs/lc.md). A *run* is a group of ``step`` successive versions. A *super-step*
stores all steps of a run in one compressed payload. Every version of the run can still be
recovered. For eight successive runs, a *shortcut* may be stored, too: a lossless delta from the
version before the runs to their last version, or the last version in full.

The repository never grows: a run that would need more bytes stays unchanged, and a shortcut may not
need more bytes than its runs saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct, field

from mvc.errors import WrongUsage
from mvc.limits import RECORD, RECORD_MEMBERS
from mvc.lossy.lc.payload import encode_joint, encode_steps
from mvc.lossy.lc.step import Addition
from mvc.maintenance.estimate import sampled
from mvc.maintenance.graph import CodingPlace, StorageGraph, StoredRecord, read_records
from mvc.maintenance.repack.problem import Survey, survey
from mvc.maintenance.rewrite_plan import (
    Encoded,
    EncodeRequest,
    RewritePlan,
    encoding_policy,
    retry_on_rewrite,
    rewrite,
)
from mvc.model.hashing import pieces
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.config import Config
from mvc.store.graph.search import PathStep
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import JOINT, Coding, Member, encode_header, payload_check
from mvc.store.proving import proof_of
from mvc.store.recovery.grouped import MOST_JOINT, decode_shared, decode_super_step
from mvc.store.store import Store
from mvc.store.writing.proof import prove_alike, prove_check, proven_header
from mvc.types import Bytes

_RUNS = 8
"""The number of runs that a shortcut spans."""
_MARGIN = 1.05  # a shortcut's size is estimated from samples


Chain: TypeAlias = tuple[tuple[StoredRecord, int], ...]
"""Steps in the order of application. Each step is a record and the index of a member in it."""


class SuperStep(Struct, frozen=True):
    """A record to make from stored records, as part of the journal entry ``entry_index``.

    ``chains``: the stored steps of each piece of a tensor. All chains have the same length.
    """

    entry_index: int
    pipeline: str
    chains: tuple[Chain, ...]

    def encode(self, packs: PackReader) -> tuple[bytes, Sequence[Bytes]]:
        """The header of the record, and the parts of the body.

        Raises DamagedData; EncodingFailed if the record does not decode to the stored steps.
        """
        decoded: dict[tuple[int, int], list[Addition]] = {}

        def added(record: StoredRecord, i: int) -> Addition:
            place = record.pack, record.offset
            if place not in decoded:
                decoded[place] = _decode(packs, record)
            return decoded[place][i]

        count = len(self.chains[0])
        times = [[added(*chain[t]) for chain in self.chains] for t in range(count)]
        pipeline = Pipeline.parse(self.pipeline)
        body = encode_joint(pipeline, times)
        sizes = [step.nbytes for time in times for step in time]
        with proof_of(f"a super-step of {self.pipeline}"):
            steps = decode_super_step(pipeline, memoryview(b"".join(body)), sizes, count)
            prove_alike(steps, [step for time in times for step in time])
        coding = Coding(f"{JOINT}:{count} | {self.pipeline}")
        check, size = payload_check(body), sum(map(len, body))
        members = [
            record.header.members[i]._replace(coding=coding, at=0, stored=size, check=check)
            for t in range(count)
            for record, i in (chain[t] for chain in self.chains)
        ]
        prove_check(body, check)
        return proven_header(members, group=True, body_size=size), body


def is_step(member: Member) -> bool:
    """Whether a member of a record is an approximate step (in a super-step or not)."""
    return bool(member.base) and member.coding.forward_only and not member.coding.transform


def steps_in(record: StoredRecord) -> int:
    """The number of successive steps in a record."""
    return record.header.members[0].coding.joint or 1


def saved_by(packs: PackReader, record: StoredRecord) -> int:
    """How many bytes a super-step saves compared with separate steps."""
    count, members = steps_in(record), record.header.members
    pipeline = members[0].coding.pipeline
    steps, size = _decode(packs, record), len(members) // count
    total = 0
    for at in range(0, len(members), size):
        body = encode_steps(Pipeline.parse(pipeline), steps[at : at + size])
        plain = [m._replace(coding=Coding(m.coding.pipeline)) for m in members[at : at + size]]
        total += len(encode_header(plain, group=True, body_size=0)) + sum(map(len, body))
    return total - record.header.size


def _decode(packs: PackReader, record: StoredRecord) -> list[Addition]:
    step = PathStep(
        pack=record.pack,
        offset=record.offset,
        header=record.header,
        member=record.header.members[0],
        reverse=False,
    )
    return [addition for addition in decode_shared(packs, step) if isinstance(addition, Addition)]


class SuperSteps(Struct):
    """``joint``: records to make. ``leave``: the steps that these records replace.

    ``saved``: how many bytes the new records save. ``shortcuts``: deltas to make.
    """

    joint: list[SuperStep] = field(default_factory=list)
    leave: set[CodingPlace] = field(default_factory=set)
    shortcuts: list[EncodeRequest] = field(default_factory=list)
    saved: int = 0

    def __bool__(self) -> bool:
        return bool(self.joint or self.shortcuts)

    def plan(self, graph: StorageGraph, specs: Mapping[bytes, TensorSpec]) -> RewritePlan:
        """The plan that makes these records and deltas and changes nothing else."""
        joint: dict[int, list[Encoded]] = {}
        for super_step in self.joint:
            joint.setdefault(super_step.entry_index, []).append(super_step.encode)
        packs = {pack for pack, _, _ in self.leave}
        return RewritePlan(
            graph, leave=self.leave, add=self.shortcuts, packs=packs, specs=specs, joint=joint
        )


def join(store: Store, config: Config, step: int = 8, *, since: int = 0) -> bool:
    """Makes all super-steps that save bytes and do not exist yet. Returns whether any was made.

    Considers only runs whose last version was published by operation ``since`` or later.
    Raises WrongUsage for a ``step`` below 2, and the errors of ``repack``.
    """
    if step < 2:
        raise WrongUsage("a super-step spans at least 2 commits")

    def attempt() -> Recorded | None:
        versions = survey(store, config, read_records(store.snapshot))
        steps = super_steps(versions, step, since)
        if not steps:
            return None
        plan = steps.plan(versions.graph, versions.specs)
        note, author = f"super-step {step}", config.author
        policy = encoding_policy(config)
        return rewrite(
            store, policy, plan,
            operation=lambda: Entry("repack", store.clock.now_ns(), note, author=author),
        )  # fmt: skip

    return retry_on_rewrite(store.snapshot, attempt) is not None


def super_steps(versions: Survey, step: int, since: int = 0) -> SuperSteps:
    """The super-steps of ``step`` versions that do not exist yet and that save bytes.

    Ignores runs that end before operation ``since``. Raises DamagedData if a step cannot be
    decoded.
    """
    result, planner = SuperSteps(), _Planner(versions, step)
    joined: set[int] = set()  # entries with joined steps; branches may share entries
    saved: dict[int, int] = {}  # maps the last version of a run to the saved bytes
    for end in planner.ends_of_runs(since):
        entries = planner.entries_of_run(end)
        run = planner.joined(entries) if joined.isdisjoint(entries) else None
        if run is not None:
            joined.update(entries)
            saved[end] = run.saved
            result.joint += run.joint
            result.leave |= run.leave
            result.saved += run.saved
        pairs, cost = planner.shortcut(end, saved)
        result.shortcuts += pairs
        result.saved -= cost
    return result


class _Planner:
    def __init__(self, survey_: Survey, step: int) -> None:
        self._survey, self._graph, self._step = survey_, survey_.graph, step
        self._packs = survey_.store.snapshot.packs
        self._records: dict[int, list[StoredRecord]] = {}  # maps an entry to its steps
        self._bases: dict[bytes, bytes] = {}  # maps an object coded as a step to its base
        for record in self._graph.all_records():
            if is_step(record.header.members[0]):
                self._records.setdefault(record.entry_index, []).append(record)
                for member in record.header.members:
                    self._bases[member.id] = self._graph.base_of(member) or b""

    # -- runs ------------------------------------------------------------------------------

    def ends_of_runs(self, since: int) -> Iterator[int]:
        """The last version of each run that operation ``since`` or a later operation completed."""
        for i in range(len(self._survey.versions) if self._records else 0):
            generation = self._survey.generation(i)
            recent = self._survey.versions[i].sequence >= since
            if recent and generation and generation % self._step == 0:
                yield i

    def entries_of_run(self, end: int) -> list[int]:
        """The entries that published the versions of a run, oldest first."""
        ancestors = (self._survey.ancestor(end, back) for back in reversed(range(self._step)))
        return [self._survey.versions[i].entry_index for i in ancestors if i is not None]

    def joined(self, entries: Sequence[int]) -> SuperSteps | None:
        """Plans the super-steps of a run. None if super-steps would not save bytes."""
        all_records = [record for entry in entries for record in self._records.get(entry, ())]
        records = [record for record in all_records if steps_in(record) == 1]
        numbers = [self._graph.number(m.id) for r in records for m in r.header.members]
        if len(records) < 2 or any(self._graph.shares_prefix[number] for number in numbers):
            return None  # the ids of two objects begin with the same bytes
        lengths: dict[int, list[Chain]] = {}
        for chain in self._chains(records):
            record, member = chain[0]
            if record.header.members[member].nbytes * len(chain) > MOST_JOINT:
                return None  # too large for a reader's memory
            lengths.setdefault(len(chain), []).append(tuple(chain))
        pipeline, home = records[-1].header.members[0].coding.pipeline, records[0].entry_index
        super_steps = [
            SuperStep(home, pipeline, part)
            for chains in lengths.values()
            for part in _parts(chains, len(chains[0]))
        ]
        encoded = (super_step.encode(self._packs) for super_step in super_steps)
        size = sum(sum(map(len, [head, *body])) for head, body in encoded)
        saved = sum(record.header.size for record in records) - size
        leave = {place for record in records for place, _ in record.members()}
        return SuperSteps(super_steps, leave, saved=saved) if saved > 0 else None

    def _chains(self, records: Iterable[StoredRecord]) -> list[list[tuple[StoredRecord, int]]]:
        """Joins steps to chains. The result of each step is the base of the following step."""
        chains: dict[tuple[bytes, int], list[tuple[StoredRecord, int]]] = {}
        finished: list[list[tuple[StoredRecord, int]]] = []
        for record in records:
            for i, member in enumerate(record.header.members):
                chain = chains.pop((self._bases[member.id], member.start), [])
                if not chain:
                    finished.append(chain)
                chain.append((record, i))
                chains[member.id, member.start] = chain
        return finished

    # -- shortcuts -------------------------------------------------------------------------

    def shortcut(self, end: int, saved: dict[int, int]) -> tuple[list[EncodeRequest], int]:
        """The deltas of a shortcut to the last version of a run, and the number of their bytes.

        Empty if no shortcut ends at the version ``end``, or if the shortcut would need more bytes
        than its runs saved. ``saved``: maps the last version of a run to the bytes that joining
        this run saves now.
        """
        begin = self._survey.ancestor(end, self._step * _RUNS)
        if begin is None or self._survey.generation(end) % (self._step * _RUNS):
            return [], 0
        pairs = [
            (id_, base)
            for id_, base in self._survey.bases(begin, end).items()
            if self._leads(base, id_) and all(is_step(c.member) for c in self._graph.codings(id_))
        ]
        budget = 0
        for back in range(0, self._step * _RUNS, self._step):
            run = self._survey.ancestor(end, back)
            if run is not None:
                budget += saved[run] if run in saved else self._saved_before(run)
        if not pairs or budget <= 0:
            return [], 0
        cost = round(sum(self._cost(*pair) for pair in pairs) * _MARGIN)
        return ([EncodeRequest(*pair) for pair in pairs], cost) if cost <= budget else ([], 0)

    def _leads(self, base: bytes, id_: bytes) -> bool:
        """Whether more than ``step`` steps lead from ``base`` to ``id_``."""
        for count in range(self._step * _RUNS + 1):
            if id_ == base:
                return count > self._step
            id_ = self._bases.get(id_, b"")
        return False

    def _saved_before(self, end: int) -> int:
        """How many bytes an earlier call saved by joining the run that ends at ``end``."""
        first = self._survey.ancestor(end, self._step - 1)
        home = -1 if first is None else self._survey.versions[first].entry_index
        records = self._records.get(home, ())
        return sum(saved_by(self._packs, record) for record in records if steps_in(record) > 1)

    def _cost(self, id_: bytes, base: bytes) -> float:
        """The estimated size of a delta from ``base``, or of a full record if that is smaller."""
        survey, spec = self._survey, self._survey.specs[id_]
        recovery, policy = survey.store.recovery, encoding_policy(survey.config)
        return sum(
            sampled(recovery, policy, (id_, spec), (base, spec), start=start).share * length
            + len(id_)
            for start, length in pieces(spec)
        )


def _parts(chains: Iterable[Chain], times: int) -> Iterator[tuple[Chain, ...]]:
    """Splits chains of equal length into parts that fit into one record each."""
    part: list[Chain] = []
    room = limit = min(RECORD, MOST_JOINT // times)
    for chain in chains:
        record, i = chain[0]
        size = record.header.members[i].nbytes
        if part and (size > room or (len(part) + 1) * times > RECORD_MEMBERS):
            yield tuple(part)
            part, room = [], limit
        part.append(chain)
        room -= size
    if part:
        yield tuple(part)
