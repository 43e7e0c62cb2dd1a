"""What the note beside a followed place says: the version that it holds, and those before it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from mvc.adapters.served_version import NotedVersion
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.lookup import manifests

Identity = tuple[int, int, int, int, int]
"""Inode, device, size, when it was written and changed (ns): what tells a file from others."""


class KeptVersion(Struct, frozen=True):
    """A version whose files can be made of the present ones, by the records that were kept.

    All but the objects that it ``lacks``, which nothing leads to any more.
    """

    commit: bytes
    manifest: bytes
    paths: tuple[str, ...]
    lacks: tuple[bytes, ...] = ()

    @property
    def objects(self) -> set[bytes]:
        """Of the files, and the manifest."""
        return {*manifests.objects(entries_at(self)), Manifest.id_of(self.manifest)}


class FollowedVersion(NotedVersion, frozen=True, kw_only=True):
    """A version of which ``paths`` are the files that are kept.

    ``data`` and ``manifest`` are canonical bytes. ``before``: versions that lead to the next one
    as well, the newest first; ``named``: other objects on the way. ``asked``: the paths that were
    asked for. ``identities`` tell the files from others, ``link`` is the name of the folder that
    they lie in, if a link leads there. ``shown_ns``: when it became visible. ``told``: what was to
    happen after the swap has.
    """

    data: bytes
    manifest: bytes
    paths: tuple[str, ...]
    before: tuple[KeptVersion, ...] = ()
    asked: tuple[str, ...] = ()
    named: tuple[bytes, ...] = ()
    identities: tuple[Identity, ...] = ()
    link: str = ""
    shown_ns: int = 0
    told: bool = False

    @property
    def id(self) -> CommitId:
        return CommitId(self.commit)

    @property
    def made_ns(self) -> int:
        """When it was committed. Raises DamagedData."""
        return Commit.decode(self.data).time_ns

    @property
    def entries(self) -> list[FileEntry]:
        """What the files are. Raises DamagedData, KeyError."""
        return entries_at(self)

    def is_sound(self) -> bool:
        """Whether the parts belong together."""
        with suppress(MvcError, KeyError, ValueError):
            commit = Commit.decode(self.data)
            named = commit.id == self.commit and Manifest.id_of(self.manifest) == commit.manifest
            fits = len(self.identities) in (0, len(self.entries))
            return named and fits and all(each.objects for each in self.before)
        return False


class Update(Struct, frozen=True):
    """The place holds ``version``, for which ``received`` bytes of records came.

    ``foreign``: what something else had written. ``before``: what it held until then.
    ``is_rollback``: the deployment returns to another, or the version is older than that one.
    ``prepared``: where the files lie before the swap.
    """

    version: FollowedVersion
    received: int
    foreign: str = ""
    before: FollowedVersion | None = None
    is_rollback: bool = False
    prepared: Path | None = None


def entries_at(version: KeptVersion | FollowedVersion) -> list[FileEntry]:
    """What the files of a noted version are. Raises DamagedData, KeyError."""
    by_path = Manifest.decode(version.manifest).by_path
    return [by_path[path] for path in version.paths]
