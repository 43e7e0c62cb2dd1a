"""The file, or the folder, that a Follower keeps as the version that is live."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import IoFailed, MvcError, MvcWarning, WrongUsage
from mvc.ids import CommitId
from mvc.io.files import SWAPPED, FileSystem
from mvc.model.names import printable
from mvc.repo.checkout.outputs import names_folder, refuse_store
from mvc.repo.checkout.states import one_entry
from mvc.repo.deployments import Deployed

if TYPE_CHECKING:
    from mvc.api.repository import Repository


class TakenOver(MvcWarning):
    """A Follower replaces a file that something else wrote."""


class ServedOutput:
    """A place that holds the files of one version, or with ``as_folder`` a link to their folder.

    Raises WrongUsage for a place in a repository's store, or where a folder stands, IoFailed where
    its folder does not exist.
    """

    def __init__(self, fs: FileSystem, place: Path, *, as_folder: bool) -> None:
        self._fs, self._place, self._as_folder = fs, place, as_folder
        self._written: tuple[object, CommitId] | None = None
        refuse_store(fs, place)
        folder = fs.stat(place.parent)
        if folder is None or not folder.is_dir:
            raise IoFailed(f"there is no folder for {self._shown}", hint="make it first")
        self._refuse_folder()
        if not as_folder and names_folder(fs, place):
            raise WrongUsage(
                f"{self._shown} names a folder",
                hint="give the file a suffix; with atomic_dir it becomes a link to a folder",
            )

    def follow(self, repo: Repository, live: Deployed, path: str | None) -> None:
        """Makes it the file ``path`` of a version, durably and in one step, if it is another."""
        there = self._seen()
        if self._written == (there, live.commit):
            return
        self._refuse_folder()
        if there is not None and not self._is_known(repo, there):
            warnings.warn(
                f"{self._shown}, which something else wrote, becomes {live.commit.short}, "
                f"which is live on {live.target}",
                TakenOver,
                stacklevel=3,
            )
        if not self._as_folder:
            path = one_entry(repo.manifest(live), path).path
        repo.checkout(live, path=path, to=self._place, force=True, atomic_dir=self._as_folder)
        self._written = self._seen(), live.commit

    @property
    def _shown(self) -> str:
        return printable(str(self._place))

    def _refuse_folder(self) -> None:
        present = self._fs.stat(self._place, follow=False)
        if present is not None and present.is_dir:
            raise WrongUsage(
                f"{self._shown} is a folder",
                hint="name a file, or with atomic_dir a place that becomes a link to a folder",
            )

    def _seen(self) -> object:
        """What tells whether something else has written there; None if nothing is there."""
        if self._as_folder and (target := self._fs.read_link(self._place)) is not None:
            return target
        there = self._fs.stat(self._place, follow=False)
        return there and (there.inode, there.device, there.size, there.mtime_ns)

    def _is_known(self, repo: Repository, there: object) -> bool:
        """Whether this is a version of the repository, of this Follower or an earlier one."""
        if self._written is not None:
            return self._written[0] == there
        if isinstance(there, str):
            return there.startswith(f"{SWAPPED}{self._place.name}.")
        with suppress(MvcError):  # what cannot be read is no version
            return bool(repo.identify(self._place))
        return False
