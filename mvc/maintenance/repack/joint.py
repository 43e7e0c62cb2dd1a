"""The record of a super-step: approximate steps that follow each other, as one payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from mvc.lossy.lc.payload import encode_joint
from mvc.lossy.lc.step import Addition
from mvc.maintenance.inventory import StoredRecord
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import PathStep
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import JOINT, Coding, Member, payload_check
from mvc.store.proof import proof_of
from mvc.store.recovery.grouped import decode_shared, decode_super_step
from mvc.store.writing.proof import prove_alike, prove_check, proven_header
from mvc.types import Bytes

__all__ = ["Chain", "SuperStep", "adds", "decoded", "steps_in"]

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
        known: dict[tuple[int, int], list[Addition]] = {}

        def added(record: StoredRecord, i: int) -> Addition:
            place = record.pack, record.offset
            if place not in known:
                known[place] = decoded(packs, record)
            return known[place][i]

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


def adds(member: Member) -> bool:
    """Whether a member is an approximate step, single or in a super-step."""
    return bool(member.base) and member.coding.forward_only and not member.coding.transform


def steps_in(record: StoredRecord) -> int:
    """How many steps in a row a record has."""
    return record.header.members[0].coding.joint or 1


def decoded(packs: PackReader, record: StoredRecord) -> list[Addition]:
    """The approximate steps of a record."""
    member = record.header.members[0]
    found = decode_shared(packs, PathStep(record.pack, record.offset, record.header, member, False))
    return [each for each in found if isinstance(each, Addition)]
