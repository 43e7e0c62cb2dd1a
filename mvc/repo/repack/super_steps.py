"""Super-steps: approximate steps that follow each other become one payload (LC-Checkpoint).

``step`` steps in a row are joined: one payload holds the symbols of all of them, so every version
between can still be recovered, by as many additions. Eight such runs in a row get a shortcut as
well: a lossless delta between the versions at both ends, or the last one in full. Nothing takes
more bytes than the single steps did: a run that would grow stays as it is, and a shortcut is
made of what the runs under it have saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from mvc.codecs.lc.joint import encode_joint
from mvc.codecs.lc.payload import encode_steps
from mvc.codecs.lc.step import Step as Addition
from mvc.codecs.pipeline import Pipeline
from mvc.dataclasses import dataclass
from mvc.limits import PIECE
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.repo.maintenance.inventory import CodingPlace, Inventory, StoredRecord, inventory
from mvc.repo.maintenance.rewrite_plan import (
    EncodeRequest,
    RewritePlan,
    encoding_policy,
    execute,
    retry_on_rewrite,
)
from mvc.repo.repack.survey import survey
from mvc.store.graph.search import Step
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import JOINT, Coding, Member, encode_header, payload_check
from mvc.store.recovery.grouped import decode_shared
from mvc.store.writing.full_or_delta import BasePiece, choose
from mvc.types import Bytes

__all__ = ["STEP", "SuperStep", "SuperSteps", "join", "super_steps"]

STEP = 8
"""Steps that are joined where nobody says how many."""

_RUNS = 8
"""Runs that a shortcut leads over."""
_MARGIN = 1.05  # a shortcut's size is estimated from samples

_Tip = tuple[bytes, int]
"""An object and where its piece starts."""


@dataclass(frozen=True, slots=True)
class SuperStep:
    """A record to be made of stored ones, as part of the entry ``entry_index``.

    ``chains``: for each piece the records and members that lead to it, in the order of their
    application; all chains have the same length.
    """

    entry_index: int
    pipeline: str
    chains: tuple[tuple[tuple[StoredRecord, int], ...], ...]

    def encode(self, packs: PackReader) -> tuple[bytes, Sequence[Bytes]]:
        """The record's head and the parts of its body. Raises DamagedData."""
        decoded: dict[tuple[int, int], list[Addition]] = {}

        def added(record: StoredRecord, i: int) -> Addition:
            place = record.pack, record.offset
            if place not in decoded:
                decoded[place] = _decode(packs, record)
            return decoded[place][i]

        count = len(self.chains[0])
        times = [[added(*chain[t]) for chain in self.chains] for t in range(count)]
        body = encode_joint(Pipeline.parse(self.pipeline), times)
        coding = Coding(f"{JOINT}:{count} | {self.pipeline}")
        check, size = payload_check(body), sum(map(len, body))
        members = [
            record.header.members[i]._replace(coding=coding, at=0, stored=size, check=check)
            for t in range(count)
            for record, i in (chain[t] for chain in self.chains)
        ]
        return encode_header(members, group=True, body_size=size), body


@dataclass
class SuperSteps:
    """What to do: records to make, the codings that they replace, shortcuts, and bytes saved."""

    joint: list[SuperStep] = field(default_factory=list)
    leave: set[CodingPlace] = field(default_factory=set)
    shortcuts: list[EncodeRequest] = field(default_factory=list)
    saved: int = 0

    def __bool__(self) -> bool:
        return bool(self.joint or self.shortcuts)


def join(context: Context, step: int = STEP) -> bool:
    """Makes the super-steps that are due, and changes nothing else; returns whether there were any.

    Raises as ``repack``.
    """

    def attempt() -> Recorded | None:
        found = inventory(context.store.snapshot)
        specs = survey(context, found).specs
        made = super_steps(context, found, specs, step)
        if not made:
            return None
        plan = RewritePlan(
            made.leave, made.shortcuts, {pack for pack, _, _ in made.leave}, specs=specs,
            joint=list(made.joint),
        )  # fmt: skip
        note = f"super-step {step}"
        return execute(
            context, found, plan, lambda: Entry("repack", context.store.clock.now_ns(), note)
        )

    return retry_on_rewrite(context, attempt) is not None


def super_steps(
    context: Context, found: Inventory, specs: Mapping[bytes, TensorSpec], step: int
) -> SuperSteps:
    """The super-steps of ``step`` steps that are not made yet and do not take more bytes.

    ``specs``: of every blob of a version. Raises DamagedData if a step cannot be decoded.
    """
    return _Planner(context, found, specs, step).plan()


class _Planner:
    def __init__(
        self, context: Context, found: Inventory, specs: Mapping[bytes, TensorSpec], step: int
    ) -> None:
        self._context, self._found, self._specs, self._step = context, found, specs, step
        self._packs = context.store.snapshot.packs
        self._records = [r for r in found.all_records() if _adds(r.header.members[0])]
        self._sizes: dict[int, int] = {}  # by record: bytes once the plan is executed
        self._done: list[int] = []  # by record: steps since the last version stored otherwise
        self._before: list[int | None] = []  # by record: the one before
        self._made = SuperSteps()

    def plan(self) -> SuperSteps:
        made_by: dict[_Tip, int] = {}
        runs: dict[int, list[int]] = {}  # unfinished, by their last record
        for n, record in enumerate(self._records):
            first = record.header.members[0]
            before = made_by.get((self._found.base_of(first) or b"", first.start))
            self._before.append(before)
            self._done.append((0 if before is None else self._done[before]) + _count(record))
            for member in record.header.members:
                made_by.setdefault((member.id, member.start), n)
            run = [n]
            if before is not None and self._done[before] % self._step:
                run = [*runs.pop(before, []), n]
            if _count(record) > 1:
                self._shorten(n)
            elif self._done[n] % self._step:
                runs[n] = run
            elif len(run) == self._step:
                self._join(run)
                self._shorten(n)
        return self._made

    def _join(self, run: Sequence[int]) -> None:
        """Joins the single steps of some records, if that takes fewer bytes."""
        records = [self._records[n] for n in run]
        numbers = [self._found.graph.number(m.id) for r in records for m in r.header.members]
        if any(self._found.graph.ambiguous[number] for number in numbers):
            return  # an id's first bytes must go on to mean what they mean
        lengths: dict[int, list[tuple[tuple[StoredRecord, int], ...]]] = {}
        for chain in self._chains(records).values():
            lengths.setdefault(len(chain), []).append(tuple(chain))
        pipeline, home = records[-1].header.members[0].coding.pipeline, records[0].entry_index
        made = [SuperStep(home, pipeline, tuple(chains)) for chains in lengths.values()]
        size = sum(sum(map(len, [head, *body])) for head, body in self._encoded(made))
        saved = sum(record.header.size for record in records) - size
        if saved <= 0:
            return
        for n in run:
            self._sizes[n] = 0
        self._sizes[run[-1]] = size
        self._made.joint += made
        self._made.leave |= {place for record in records for place, _ in record.members()}
        self._made.saved += saved

    def _encoded(self, made: Iterable[SuperStep]) -> Iterator[tuple[bytes, Sequence[Bytes]]]:
        return (each.encode(self._packs) for each in made)

    def _chains(
        self, records: Iterable[StoredRecord]
    ) -> dict[_Tip, list[tuple[StoredRecord, int]]]:
        """The members of records that follow each other, by the piece that they lead to."""
        chains: dict[_Tip, list[tuple[StoredRecord, int]]] = {}
        for record in records:
            for i, member in enumerate(record.header.members):
                chain = chains.pop((self._found.base_of(member) or b"", member.start), [])
                chains[member.id, member.start] = [*chain, (record, i)]
        return chains

    def _shorten(self, last: int) -> None:
        """Makes a shortcut that ends with a record, if one is due there and has been saved."""
        span, records = self._step * _RUNS, list[int]()
        at: int | None = last
        while at is not None and self._done[last] - self._done[at] < span:
            records.append(at)
            at = self._before[at]
        begin = 0 if at is None else self._done[at]
        if self._done[last] % span or self._done[last] - begin != span:
            return
        chosen = [self._records[n] for n in reversed(records)]
        ends: dict[bytes, bytes] = {}
        for (id_, _), chain in self._chains(chosen).items():
            record, i = chain[0]
            base = self._found.base_of(record.header.members[i])
            if base is None or not {id_, base} <= self._specs.keys() or self._is_short(id_):
                return
            ends[id_] = base
        room = sum(self._single(n) - self._size(n) for n in records)
        if room > 0:
            cost = round(sum(self._cost(*pair) for pair in ends.items()) * _MARGIN)
            if 0 < cost <= room:
                self._made.shortcuts += [EncodeRequest(*pair) for pair in ends.items()]
                self._made.saved -= cost

    def _is_short(self, id_: bytes) -> bool:
        """Whether an object is stored in another way than by steps."""
        return any(not _adds(coding.member) for coding in self._found.codings.get(id_, ()))

    def _size(self, n: int) -> int:
        return self._sizes.get(n, self._records[n].header.size)

    def _single(self, n: int) -> int:
        """Bytes of the single steps of a record, each stored by itself."""
        record = self._records[n]
        count, members = _count(record), record.header.members
        if count == 1:
            return record.header.size
        steps, size = _decode(self._packs, record), len(members) // count
        total = 0
        for at in range(0, len(members), size):
            body = encode_steps(Pipeline.parse(members[0].coding.pipeline), steps[at : at + size])
            plain = [m._replace(coding=Coding(m.coding.pipeline)) for m in members[at : at + size]]
            head = encode_header(plain, group=True, body_size=0)
            total += len(head) + sum(map(len, body))
        return total

    def _cost(self, id_: bytes, base: bytes) -> float:
        """Estimated bytes of the smaller of a delta from ``base`` and a full record."""
        spec, recovery = self._specs[id_], self._context.store.recovery
        policy, total = encoding_policy(self._context), 0.0
        for start in range(0, max(spec.nbytes, 1), PIECE):
            new = memoryview(bytearray(min(PIECE, spec.nbytes - start)))
            old = memoryview(bytearray(len(new)))
            recovery.piece(id_, start, new)
            recovery.piece(base, start, old)
            (choice,) = choose(spec, new, self._specs[base], BasePiece(base, old), policy)
            total += choice.share * len(new) + len(id_)
        return total


def _adds(member: Member) -> bool:
    """Whether a member is an approximate step, single or in a super-step."""
    return bool(member.base) and member.coding.forward_only and not member.coding.transform


def _count(record: StoredRecord) -> int:
    """How many steps in a row a record has."""
    return record.header.members[0].coding.joint or 1


def _decode(packs: PackReader, record: StoredRecord) -> list[Addition]:
    member = record.header.members[0]
    found = decode_shared(packs, Step(record.pack, record.offset, record.header, member, False))
    return [each for each in found if isinstance(each, Addition)]
