"""Reports of fsck and repair."""

from __future__ import annotations

from msgspec import Struct

from mvc.ids import CommitId


class Problem(Struct, frozen=True):
    """One damaged thing. ``versions`` and ``tensors`` ("path: key") are affected.

    ``kind``: format, journal, record, payload, pack, region (a range that two operations claim),
    reference, manifest, lost (an object or entry), content (an object decodes to other bytes),
    index. ``object`` is the damaged thing, ``where`` its location, ``also`` further ids with the
    same damaged payload.
    """

    kind: str
    object: str
    where: str
    message: str
    versions: tuple[CommitId, ...] = ()
    tensors: tuple[str, ...] = ()
    also: tuple[bytes, ...] = ()

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Ids of the objects in the damaged payload; only for the kind payload."""
        return self.also or (bytes.fromhex(self.object),)


class FsckReport(Struct, frozen=True):
    """``notes`` are not damage: leftovers of interrupted work, advice.

    ``checked_bytes``: of journal and packs; with ``full`` also of recovered objects. ``forgotten``
    and ``absent``: how many of the ``versions`` have no state for that reason, which is not damage.
    ``lost``: versions that cannot be recovered whole; without ``full`` judged by checksums. A
    version of a lost journal entry counts in both if a sound entry names it.
    """

    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    full: bool
    entries: int
    versions: int
    records: int
    objects: int
    checked_bytes: int
    forgotten: int = 0
    lost: tuple[CommitId, ...] = ()
    absent: int = 0

    @property
    def sound(self) -> bool:
        return not self.problems


class Healed(Struct, frozen=True):
    """One repaired thing. ``source``: where its sound bytes came from.

    ``kind``: format, journal, pack, region, object, manifest, deployment or index. ``name``: an
    object's id in hexadecimal, or the entry or file.
    """

    kind: str
    name: str
    source: str


class Quarantined(Struct, frozen=True):
    """``length`` damaged bytes, copied to ``file`` of the quarantine."""

    file: str
    length: int
    why: str


class Repaired(Struct, frozen=True):
    """What a repair did. ``after``: the report of fsck after it.

    ``freed``: bytes of deleted leftovers. ``lost``: the entries that a rebuilt index leaves out.
    """

    healed: tuple[Healed, ...]
    quarantined: tuple[Quarantined, ...]
    freed: int
    after: FsckReport
    lost: str | None = None
