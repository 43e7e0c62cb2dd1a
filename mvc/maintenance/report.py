"""Reports of fsck and repair."""

from __future__ import annotations

from msgspec import Struct

from mvc.ids import CommitId


class Problem(Struct, frozen=True):
    """One kind of damage in one place. ``versions`` and ``tensors`` ("path: key") are affected.

    ``kind``: format, journal, record, payload, pack, region (bytes of a pack that two
    operations claim), reference, manifest, lost (an object that cannot be recovered, or a
    version whose journal entry is lost), content (an object that decodes to other bytes) or
    index. ``object`` names the damaged thing, ``where`` its place, ``also`` further ids that
    share the damaged payload.
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
        """The objects with the damaged payload; only for the kind payload."""
        return self.also or (bytes.fromhex(self.object),)


class FsckReport(Struct, frozen=True):
    """``notes`` are no damage: leftovers of interrupted work, advice.

    ``checked_bytes``: of journal and packs; with ``full`` also of recovered objects.
    ``forgotten``: how many of the ``versions`` have a forgotten state, which is no damage;
    ``absent``: how many others came from a remote without their state.
    ``lost``: versions that cannot be recovered whole; without ``full`` as far as checksums
    tell. Versions of lost journal entries count in ``versions`` and ``lost`` if a sound entry
    names them. Of others only an index may have kept the first digits.
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
        """Whether nothing is damaged."""
        return not self.problems


class Healed(Struct, frozen=True):
    """One repaired thing. ``source``: where its sound bytes came from.

    ``kind``: format, journal, pack, region, object, manifest, deployment or index.
    ``name`` is an object's id in hexadecimal, or says which entry or file it was.
    """

    kind: str
    name: str
    source: str


class Quarantined(Struct, frozen=True):
    """``length`` damaged bytes, kept in ``file`` of the quarantine."""

    file: str
    length: int
    why: str


class Repaired(Struct, frozen=True):
    """What a repair did. ``after``: the report of fsck after it.

    ``freed``: bytes of deleted leftovers of interrupted work. ``lost``: the entries that a rebuilt
    index gives up.
    """

    healed: tuple[Healed, ...]
    quarantined: tuple[Quarantined, ...]
    freed: int
    after: FsckReport
    lost: str | None = None
