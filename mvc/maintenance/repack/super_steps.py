"""Which approximate steps that follow each other become one payload, a super-step (LC-Checkpoint).

``step`` steps in a row are joined: one payload holds the symbols of all of them, so every version
between can still be recovered, by as many additions. Eight such runs in a row get a shortcut as
well: a lossless delta between the versions at both ends, or the last one in full. Nothing takes
more bytes than the single steps did: a run that would grow stays as it is, and a shortcut is
made of what the runs under it have saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from mvc.limits import PIECE, RECORD, RECORD_MEMBERS
from mvc.lossy.lc.payload import encode_steps
from mvc.maintenance.inventory import CodingPlace, StoredRecord
from mvc.maintenance.repack.joint import Chain, SuperStep, adds, decoded, steps_in
from mvc.maintenance.repack.survey import Survey
from mvc.maintenance.rewrite_plan import (
    EncodeRequest,
    encoding_policy,
)
from mvc.pipelines.pipeline import Pipeline
from mvc.store.packs.records import Coding, encode_header
from mvc.store.recovery.grouped import MOST_JOINT
from mvc.store.writing.full_or_delta import BasePiece, choose
from mvc.types import Bytes

__all__ = ["STEP", "SuperSteps", "super_steps"]

STEP = 8
"""Steps that are joined where nobody says how many."""

_RUNS = 8
"""Runs that a shortcut leads over."""
_MARGIN = 1.05  # a shortcut's size is estimated from samples


class SuperSteps(Struct):
    """What to do: records to make, the codings that they replace, shortcuts, and bytes saved."""

    joint: list[SuperStep] = field(default_factory=list)
    leave: set[CodingPlace] = field(default_factory=set)
    shortcuts: list[EncodeRequest] = field(default_factory=list)
    saved: int = 0

    def __bool__(self) -> bool:
        return bool(self.joint or self.shortcuts)


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
            if adds(record.header.members[0]):
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
        records = [record for record in every if steps_in(record) == 1]
        numbers = [self._found.graph.number(m.id) for r in records for m in r.header.members]
        if len(records) < 2 or any(self._found.graph.ambiguous[number] for number in numbers):
            return  # an id's first bytes must go on to mean what they mean
        lengths: dict[int, list[Chain]] = {}
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
        return any(not adds(coding.member) for coding in self._found.codings.get(id_, ()))

    def _saved(self, end: int) -> int:
        """Bytes that joining a run has saved, now or earlier; ``end`` is its last version."""
        first = self._back(end, self._step - 1)
        if end in self._joined or first is None:
            return self._joined.get(end, 0)
        records = self._records.get(self._homes[first], ())
        return sum(self._single(r) - r.header.size for r in records if steps_in(r) > 1)

    def _single(self, record: StoredRecord) -> int:
        """Bytes of the steps of a record, each stored by itself."""
        count, members = steps_in(record), record.header.members
        steps, size = decoded(self._packs, record), len(members) // count
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
            (choice,) = choose(spec, new, spec, BasePiece(base, old), policy)
            total += choice.share * len(new) + len(id_)
        return total


def _parts(chains: Iterable[Chain], times: int) -> Iterator[tuple[Chain, ...]]:
    """Chains of equal length, in portions that may be one record each, as a writer cuts them."""
    part: list[Chain] = []
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
