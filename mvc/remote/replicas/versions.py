"""The note that mvc writes next to a replica.

A *replica* is a file or folder that mvc updates to the live version of a target. The note describes
the version that is in the replica, and earlier versions.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from mvc.adapters.served_version import NotedVersion
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.lookup import manifests

Identity = tuple[int, int, int, int, int]
"""A file's inode, device, size, time of modification and time of change (both in ns).

mvc regards a file with the same identity as unchanged. The last time is 0 if it is not compared.
"""


class EarlierVersion(Struct, frozen=True):
    """An earlier version whose files can be rebuilt from the present files and the cached records.

    ``lacks``: contents of the version that can no longer be read or decoded.
    """

    commit: bytes
    manifest: bytes
    paths: tuple[str, ...]
    lacks: tuple[bytes, ...] = ()

    @property
    def objects(self) -> set[bytes]:
        """The ids of the contents of the files, and the id of the manifest."""
        return {*manifests.objects(entries_at(self)), Manifest.id_of(self.manifest)}


class FollowedVersion(NotedVersion, frozen=True, kw_only=True):
    """A version whose files ``paths`` are in the replica.

    ``data`` and ``manifest``: the encoded commit and manifest. ``before``: earlier versions that
    can be bases of the next version, newest first. ``named``: ids of additional contents that can
    be bases. ``asked``: the requested paths. ``identities``: identities of the files. ``link``: the
    folder of the files, if the replica is a symbolic link to a folder. ``shown_ns``: when the
    version became visible. ``commands_ran``: whether the user's commands for an update have run.
    """

    data: bytes
    manifest: bytes
    paths: tuple[str, ...]
    before: tuple[EarlierVersion, ...] = ()
    asked: tuple[str, ...] = ()
    named: tuple[bytes, ...] = ()
    identities: tuple[Identity, ...] = ()
    link: str = ""
    shown_ns: int = 0
    commands_ran: bool = field(default=False, name="told")

    @property
    def id(self) -> CommitId:
        return CommitId(self.commit)

    @property
    def made_ns(self) -> int:
        """The time of the commit. Raises DamagedData."""
        return Commit.decode(self.data).time_ns

    @property
    def entries(self) -> list[FileEntry]:
        """The manifest entries of the files. Raises DamagedData, KeyError."""
        return entries_at(self)

    def is_sound(self) -> bool:
        """Whether the parts of the note match each other."""
        with suppress(MvcError, KeyError, ValueError):
            commit = Commit.decode(self.data)
            matches = commit.id == self.commit and Manifest.id_of(self.manifest) == commit.manifest
            fits = len(self.identities) in (0, len(self.entries))
            return matches and fits and all(version.objects for version in self.before)
        return False


class Update(Struct, frozen=True):
    """The result of an update: the replica now has ``version``.

    ``received``: number of bytes of received records. ``foreign``: a replaced file that another
    program had written. ``before``: the previous version. ``is_rollback``: whether the deployment
    is a rollback, or its version is older than ``before``. ``prepared``: where the new files are
    before they become visible.
    """

    version: FollowedVersion
    received: int
    foreign: str = ""
    before: FollowedVersion | None = None
    is_rollback: bool = False
    prepared: Path | None = None


def entries_at(version: EarlierVersion | FollowedVersion) -> list[FileEntry]:
    """The manifest entries of a version's files. Raises DamagedData, KeyError."""
    by_path = Manifest.decode(version.manifest).by_path
    return [by_path[path] for path in version.paths]
