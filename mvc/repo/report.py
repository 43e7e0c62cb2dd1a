"""What fsck says: problems, notes, and how much was looked at."""

from __future__ import annotations

from dataclasses import dataclass

from mvc.ids import CommitId

__all__ = ["FsckReport", "Problem"]


@dataclass(frozen=True)
class Problem:
    """One damage. ``versions`` and ``tensors`` ("path: key") are what it touches.

    ``kind``: format, journal, record, payload, pack, reference, manifest, lost (an object
    that no sound record leads to), content (an object that decodes to something else) or
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
    """

    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    full: bool
    entries: int
    versions: int
    records: int
    objects: int
    checked_bytes: int

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems
