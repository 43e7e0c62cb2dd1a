"""The results of ``mvc fsck`` (a check of the stored data) and of ``mvc fsck --repair``."""

from __future__ import annotations

from msgspec import Struct

from mvc.ids import CommitId


class Problem(Struct, frozen=True):
    """One damaged thing. ``object``: its id, file or name. ``where``: its location.

    ``kind``: format, journal, record, payload, pack, region (a range of bytes that two operations
    name), reference, manifest, lost (an object or entry), content (an object decodes to wrong
    bytes), index. ``versions``, ``tensors`` ("path: key"): the affected versions and tensors.
    ``also``: if several objects share a damaged payload, the ids of all these objects; else empty.
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
        """Only for the kind payload: ids of the objects in the damaged payload."""
        return self.also or (bytes.fromhex(self.object),)


class FsckReport(Struct, frozen=True):
    """Result of a check. ``problems``: all damage. ``notes``: advice, and leftover files.

    ``full``: whether every object was decoded; otherwise only checksums were compared. ``entries``,
    ``versions``, ``records``, ``objects``: how many were checked. ``checked_bytes``: size of
    journal and packs, with ``full`` plus the size of the decoded objects. ``forgotten``,
    ``absent``: how many of ``versions`` are forgotten or absent, which is no damage. ``lost``:
    versions that cannot be recovered completely. A version whose journal entry is lost counts in
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
    """One repaired thing. ``source``: the data from which it was repaired.

    ``kind``: format, journal, pack, region, object, manifest, statement or index. ``name``: the id
    of an object in hexadecimal, or the name of an operation, entry or file.
    """

    kind: str
    name: str
    source: str


class Quarantined(Struct, frozen=True):
    """``length`` damaged bytes that were copied to ``file`` in the folder ``quarantine``.

    ``why``: the error that showed the damage.
    """

    file: str
    length: int
    why: str


class Repaired(Struct, frozen=True):
    """Result of a repair. ``after``: the report of a check after the repair.

    ``freed``: number of bytes of deleted unused files. ``lost``: only if the index was rebuilt and
    journal entries are lost: the name of these entries.
    """

    healed: tuple[Healed, ...]
    quarantined: tuple[Quarantined, ...]
    freed: int
    after: FsckReport
    lost: str | None = None
