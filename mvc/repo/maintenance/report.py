"""What fsck says: problems, notes, and how much was looked at."""

from __future__ import annotations

from dataclasses import dataclass

from mvc.ids import CommitId

__all__ = ["FsckReport", "Healed", "Problem", "Quarantined", "Repaired"]


@dataclass(frozen=True)
class Problem:
    """One damage. ``versions`` and ``tensors`` ("path: key") are what it touches.

    ``kind``: format, journal, record, payload, pack, region (bytes of a pack that two
    operations claim), reference, manifest, lost (an object that no sound record leads to, or
    a version whose journal entry is lost), content (an object that decodes to something else) or
    index. ``object`` names the thing, ``where`` its place, ``also`` further ids that
    share the damaged payload.
    """

    kind: str
    object: str
    where: str
    message: str
    versions: tuple[CommitId, ...] = ()
    tensors: tuple[str, ...] = ()
    also: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class FsckReport:
    """``notes`` are no damage: leftovers of interrupted work, what heals by itself, advice.

    ``checked_bytes``: of journal and packs; with ``full`` also of recovered objects.
    ``forgotten``: those of the ``versions`` whose state was given up, which is no damage.
    ``lost``: versions that cannot be had back whole, without ``full`` as far as checksums tell.
    Versions of lost journal entries are in both if a sound entry names them; of others,
    nobody knows more than the first digits that an index may have kept.
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

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems


@dataclass(frozen=True)
class Healed:
    """One thing that was put right. ``source``: what it was healed from.

    ``kind``: format, journal, pack, region, object, manifest, deployment or index.
    ``name`` is an object's id in hexadecimal, or says which entry or file it was.
    """

    kind: str
    name: str
    source: str


@dataclass(frozen=True)
class Quarantined:
    """Stored bytes that are given up: ``length`` of them, kept in ``file`` of the quarantine."""

    file: str
    length: int
    why: str


@dataclass(frozen=True)
class Repaired:
    """What a repair did. ``after``: what fsck says of the repository from now on.

    ``freed``: bytes of leftovers that were deleted.
    """

    healed: tuple[Healed, ...]
    quarantined: tuple[Quarantined, ...]
    freed: int
    after: FsckReport
