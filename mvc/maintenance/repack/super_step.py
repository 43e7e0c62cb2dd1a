"""One super-step: approximate steps that follow each other as one payload (LC-Checkpoint)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from mvc.lossy.lc.payload import encode_joint, encode_steps
from mvc.lossy.lc.step import Addition
from mvc.maintenance.inventory import StoredRecord
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import PathStep
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import JOINT, Coding, Member, encode_header, payload_check
from mvc.store.proving import proof_of
from mvc.store.recovery.grouped import decode_shared, decode_super_step
from mvc.store.writing.proof import prove_alike, prove_check, proven_header
from mvc.types import Bytes

Chain: TypeAlias = tuple[tuple[StoredRecord, int], ...]
"""Members that lead from one object to the next, each with its record."""


class SuperStep(Struct, frozen=True):
    """A record to be made of stored ones, as part of the entry ``entry_index``.

    ``chains``: for each piece the records and members that lead to it, in the order of their
    application; all chains have the same length.
    """

    entry_index: int
    pipeline: str
    chains: tuple[Chain, ...]

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


def is_step(member: Member) -> bool:
    """Whether a member is an approximate step, single or in a super-step."""
    return bool(member.base) and member.coding.forward_only and not member.coding.transform


def steps_in(record: StoredRecord) -> int:
    """How many steps in a row a record has."""
    return record.header.members[0].coding.joint or 1


def saved_by(packs: PackReader, record: StoredRecord) -> int:
    """Bytes that a super-step takes less than its steps did, each stored by itself."""
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
    return [each for each in decode_shared(packs, step) if isinstance(each, Addition)]
