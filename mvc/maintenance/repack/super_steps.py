"""Super-steps: approximate steps that follow each other become one payload (LC-Checkpoint).

``step`` steps in a row are joined: one payload holds the symbols of all of them, so every version
between can still be recovered, by as many additions. Eight such runs in a row get a shortcut as
well: a lossless delta between the versions at both ends, or the last one in full. Nothing takes
more bytes than the single steps did: a run that would grow stays as it is, and a shortcut is
made of what the runs under it have saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct, field

from mvc.limits import PIECE, RECORD, RECORD_MEMBERS
from mvc.lossy.lc.payload import encode_joint, encode_steps
from mvc.lossy.lc.step import Addition
from mvc.maintenance.inventory import CodingPlace, StoredRecord, inventory
from mvc.maintenance.repack.survey import Survey, survey
from mvc.maintenance.rewrite_plan import (
    EncodeRequest,
    RewritePlan,
    encoding_policy,
    execute,
    retry_on_rewrite,
)
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.context import Context
from mvc.store.graph.search import PathStep
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import JOINT, Coding, Member, encode_header, payload_check
from mvc.store.proving import proof_of
from mvc.store.recovery.grouped import MOST_JOINT, decode_shared, decode_super_step
from mvc.store.writing.full_or_delta import BasePiece, choose
from mvc.store.writing.proof import prove_alike, prove_check, proven_header
from mvc.types import Bytes

STEP = 8
"""Steps that are joined where nobody says how many."""

_RUNS = 8
"""Runs that a shortcut leads over."""
_Chain: TypeAlias = tuple[tuple[StoredRecord, int], ...]
"""Members that lead from one object to the next, each with its record."""
_MARGIN = 1.05  # a shortcut's size is estimated from samples


class SuperStep(Struct, frozen=True):
    """A record to be made of stored ones, as part of the entry ``entry_index``.

    ``chains``: for each piece the records and members that lead to it, in the order of their
    application; all chains have the same length.
    """

    entry_index: int
    pipeline: str
    chains: tuple[_Chain, ...]

    def encode(self, packs: PackReader) -> tuple[bytes, Sequence[Bytes]]:
        """The record's head and the parts of its body, which have been read back.

        Raises DamagedData, and EncodingFailed if what is read back is not what was stored: the
        steps that the record replaces are then not given up.
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
            found = decode_super_step(pipeline, memoryview(b"".join(body)), sizes, count)
            prove_alike(found, [step for time in times for step in time])
        coding = Coding(f"{JOINT}:{count} | {self.pipeline}")
        check, size = payload_check(body), sum(map(len, body))
        members = [
            record.header.members[i]._replace(coding=coding, at=0, stored=size, check=check)
            for t in range(count)
            for record, i in (chain[t] for chain in self.chains)
        ]
        prove_check(body, check)
        return proven_header(members, group=True, body_size=size), body


class SuperSteps(Struct):
    """What to do: records to make, the codings that they replace, shortcuts, and bytes saved."""

    joint: list[SuperStep] = field(default_factory=list)
    leave: set[CodingPlace] = field(default_factory=set)
    shortcuts: list[EncodeRequest] = field(default_factory=list)
    saved: int = 0

    def __bool__(self) -> bool:
        return bool(self.joint or self.shortcuts)


def join(context: Context, step: int = STEP, *, since: int = 0) -> bool:
    """Makes the super-steps that are due, and changes nothing else; returns whether there were any.

    Only runs are considered that end in a version which operation ``since`` or a later one
    published. Raises as ``repack``.
    """

    def attempt() -> Recorded | None:
        found = survey(context, inventory(context.store.snapshot))
        made = super_steps(found, step, since)
        if not made:
            return None
        plan = RewritePlan(
            made.leave, made.shortcuts, {pack for pack, _, _ in made.leave}, specs=found.specs,
            joint=list(made.joint),
        )  # fmt: skip
        note, author = f"super-step {step}", context.author
        return execute(
            context,
            found.found,
            plan,
            lambda: Entry("repack", context.store.clock.now_ns(), note, author=author),
        )

    return retry_on_rewrite(context, attempt) is not None


def super_steps(found: Survey, step: int, since: int = 0) -> SuperSteps:
    """The super-steps of ``step`` versions that are not made yet and do not take more bytes.

    Runs begin at every ``step``-th version of a line of descent; those that end before operation
    ``since`` are left alone. Raises DamagedData if a step
    cannot be decoded.
    """
    return _Planner(found, step).plan(since)


class _Planner:
    def __init__(self, survey_: Survey, step: int) -> None:
        self._survey, self._found, self._step = survey_, survey_.found, step
        self._packs = survey_.context.store.snapshot.packs
        self._records: dict[int, list[StoredRecord]] = {}  # of steps, by entry
        self._bases: dict[bytes, bytes] = {}  # of steps, by what they lead to
        for record in self._found.all_records():
            if _adds(record.header.members[0]):
                self._records.setdefault(record.entry_index, []).append(record)
                for member in record.header.members:
                    self._bases[member.id] = self._found.base_of(member) or b""
        self._homes = self._entries_of_versions() if self._records else {}
        self._joined: dict[int, int] = {}  # bytes saved, by the run's last version
        self._used: set[int] = set()  # entries whose steps were joined
        self._made = SuperSteps()

    def _entries_of_versions(self) -> dict[int, int]:
        """By version the entry that published it."""
        homes: dict[int, int] = {}
        for position in range(len(self._found.entries)):
            for commit in self._found.entries[position].entry.commits:
                if commit.id in self._survey.numbers:
                    homes.setdefault(self._survey.numbers[commit.id], position)
        return homes

    def plan(self, since: int) -> SuperSteps:
        for i in range(len(self._survey.versions) if self._records else 0):
            if self._survey.versions[i].sequence < since:
                continue
            generation = self._survey.generation(i)
            if generation and generation % self._step == 0:
                run = [n for back in range(self._step) if (n := self._back(i, back)) is not None]
                self._join(i, [self._homes[n] for n in reversed(run)])
                if generation % (self._step * _RUNS) == 0:
                    self._shorten(i)
        return self._made

    def _back(self, i: int, steps: int) -> int | None:
        return self._survey.ancestor(i, steps)

    def _join(self, i: int, entries: Sequence[int]) -> None:
        """Joins the single steps of a run of versions, if that takes fewer bytes."""
        if not self._used.isdisjoint(entries):
            return  # another branch has it
        every = [record for entry in entries for record in self._records.get(entry, ())]
        records = [record for record in every if _count(record) == 1]
        numbers = [self._found.graph.number(m.id) for r in records for m in r.header.members]
        if len(records) < 2 or any(self._found.graph.ambiguous[number] for number in numbers):
            return  # an id's first bytes must go on to mean what they mean
        lengths: dict[int, list[_Chain]] = {}
        for chain in self._chains(records):
            record, member = chain[0]
            if record.header.members[member].nbytes * len(chain) > MOST_JOINT:
                return  # more than a reader holds in memory
            lengths.setdefault(len(chain), []).append(tuple(chain))
        pipeline, home = records[-1].header.members[0].coding.pipeline, records[0].entry_index
        made = [
            SuperStep(home, pipeline, part)
            for chains in lengths.values()
            for part in _parts(chains, len(chains[0]))
        ]
        size = sum(sum(map(len, [head, *body])) for head, body in self._encoded(made))
        saved = sum(record.header.size for record in records) - size
        if saved <= 0:
            return
        self._used.update(entries)
        self._joined[i] = saved
        self._made.joint += made
        self._made.leave |= {place for record in records for place, _ in record.members()}
        self._made.saved += saved

    def _encoded(self, made: Iterable[SuperStep]) -> Iterator[tuple[bytes, Sequence[Bytes]]]:
        return (each.encode(self._packs) for each in made)

    def _chains(self, records: Iterable[StoredRecord]) -> list[list[tuple[StoredRecord, int]]]:
        """The members of records that follow each other."""
        chains: dict[tuple[bytes, int], list[tuple[StoredRecord, int]]] = {}
        done: list[list[tuple[StoredRecord, int]]] = []
        for record in records:
            for i, member in enumerate(record.header.members):
                chain = chains.pop((self._bases[member.id], member.start), [])
                if not chain:
                    done.append(chain)
                chain.append((record, i))
                chains[member.id, member.start] = chain
        return done

    def _shorten(self, i: int) -> None:
        """Makes a shortcut to a version, of what the runs since its beginning have saved."""
        begin = self._back(i, self._step * _RUNS)
        if begin is None:
            return
        pairs = [
            (id_, base)
            for id_, base in self._survey.bases(begin, i).items()
            if self._leads(base, id_) and not self._is_short(id_)
        ]
        room = 0
        for back in range(0, self._step * _RUNS, self._step):
            end = self._back(i, back)
            room += 0 if end is None else self._saved(end)
        if pairs and room > 0:
            cost = round(sum(self._cost(*pair) for pair in pairs) * _MARGIN)
            if cost <= room:
                self._made.shortcuts += [EncodeRequest(*pair) for pair in pairs]
                self._made.saved -= cost

    def _leads(self, base: bytes, id_: bytes) -> bool:
        """Whether several steps lead from an object to another."""
        for count in range(self._step * _RUNS + 1):
            if id_ == base:
                return count > self._step
            id_ = self._bases.get(id_, b"")
        return False

    def _is_short(self, id_: bytes) -> bool:
        """Whether an object is stored in another way than by steps."""
        return any(not _adds(coding.member) for coding in self._found.codings.get(id_, ()))

    def _saved(self, end: int) -> int:
        """Bytes that joining a run has saved, now or earlier; ``end`` is its last version."""
        first = self._back(end, self._step - 1)
        if end in self._joined or first is None:
            return self._joined.get(end, 0)
        records = self._records.get(self._homes[first], ())
        return sum(self._single(r) - r.header.size for r in records if _count(r) > 1)

    def _single(self, record: StoredRecord) -> int:
        """Bytes of the steps of a record, each stored by itself."""
        count, members = _count(record), record.header.members
        steps, size = _decode(self._packs, record), len(members) // count
        total = 0
        for at in range(0, len(members), size):
            body = encode_steps(Pipeline.parse(members[0].coding.pipeline), steps[at : at + size])
            plain = [m._replace(coding=Coding(m.coding.pipeline)) for m in members[at : at + size]]
            total += len(encode_header(plain, group=True, body_size=0)) + sum(map(len, body))
        return total

    def _cost(self, id_: bytes, base: bytes) -> float:
        """Estimated bytes of the smaller of a delta from ``base`` and a full record."""
        spec, context = self._survey.specs[id_], self._survey.context
        recovery, policy, total = context.store.recovery, encoding_policy(context), 0.0
        for start in range(0, max(spec.nbytes, 1), PIECE):
            new = memoryview(bytearray(min(PIECE, spec.nbytes - start)))
            old = memoryview(bytearray(len(new)))
            recovery.piece(id_, start, new)
            recovery.piece(base, start, old)
            (choice,) = choose(spec, new, base_spec=spec, base=BasePiece(base, old), policy=policy)
            total += choice.share * len(new) + len(id_)
        return total


def _parts(chains: Iterable[_Chain], times: int) -> Iterator[tuple[_Chain, ...]]:
    """Chains of equal length, in portions that may be one record each, as a writer cuts them."""
    part: list[_Chain] = []
    room = most = min(RECORD, MOST_JOINT // times)
    for chain in chains:
        record, i = chain[0]
        size = record.header.members[i].nbytes
        if part and (size > room or (len(part) + 1) * times > RECORD_MEMBERS):
            yield tuple(part)
            part, room = [], most
        part.append(chain)
        room -= size
    if part:
        yield tuple(part)


def _adds(member: Member) -> bool:
    """Whether a member is an approximate step, single or in a super-step."""
    return bool(member.base) and member.coding.forward_only and not member.coding.transform


def _count(record: StoredRecord) -> int:
    """How many steps in a row a record has."""
    return record.header.members[0].coding.joint or 1


def _decode(packs: PackReader, record: StoredRecord) -> list[Addition]:
    member = record.header.members[0]
    found = decode_shared(
        packs,
        PathStep(
            pack=record.pack,
            offset=record.offset,
            header=record.header,
            member=member,
            reverse=False,
        ),
    )
    return [each for each in found if isinstance(each, Addition)]
