"""Reports of fsck and repair."""

from __future__ import annotations

from msgspec import Struct

from mvc.ids import CommitId


class Problem(Struct, frozen=True):
    """One damaged thing.

    ``versions``, ``tensors`` ("path: key"): the versions and tensors that the damage affects.
    ``kind``: format, journal, record, payload, pack, region (a range that two operations claim),
    reference, manifest, lost (an object or entry), content (an object decodes to other bytes),
    index. ``object``: the damaged thing. ``where``: its location. ``also``: if several objects
    share the damaged payload, the ids of all these objects, including ``object``; else empty.
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
        """Ids of the objects in the damaged payload; empty unless the kind is payload."""
        return self.also or (bytes.fromhex(self.object),)


class FsckReport(Struct, frozen=True):
    """Result of a check. ``notes`` are not damage: leftovers of interrupted work, advice.

    ``checked_bytes``: size of journal and packs, with ``full`` plus the size of recovered objects.
    ``forgotten``, ``absent``: how many ``versions`` have no state because they are forgotten or
    absent. This is no damage. ``lost``: versions with data that cannot be recovered; without
    ``full``, only checksums decide this. A version whose journal entry is lost counts in
    ``versions`` and in ``lost`` if another entry names it.
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
    """One repaired thing. ``source``: from where its sound bytes were read.

    ``kind``: format, journal, pack, region, object, manifest, statement or index. ``name``: the id
    of an object in hexadecimal, or the name of an operation, entry or file.
    """

    kind: str
    name: str
    source: str


class Quarantined(Struct, frozen=True):
    """``length`` damaged bytes that were copied to ``file`` in the quarantine.

    ``why``: the damage.
    """

    file: str
    length: int
    why: str


class Repaired(Struct, frozen=True):
    """What a repair did. ``after``: the report of a check after the repair.

    ``freed``: bytes of deleted leftovers. ``lost``: None unless the index was rebuilt without
    journal entries that are lost; then the name of these entries.
    """

    healed: tuple[Healed, ...]
    quarantined: tuple[Quarantined, ...]
    freed: int
    after: FsckReport
    lost: str | None = None
