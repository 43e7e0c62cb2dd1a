"""Where versions are put to be served: a file or a folder that follows, a file of a Recorder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.api import Deployed, FileEntry
from mvc.errors import IoFailed, MvcError, MvcWarning
from mvc.files import open_file
from mvc.ids import CommitId
from mvc.names import printable
from mvc.state import ServedVersion, encode_served
from mvc.system import SWAPPED, TEMPORARY, FileSystem
from mvc.transport import Replica

if TYPE_CHECKING:
    from mvc.api import Repository


class TakenOver(MvcWarning):
    """A Follower replaces a file that something else wrote."""


def warn_of_takeover(shown: str, commit: CommitId, target: str) -> None:
    """Says that a file, which something else wrote, becomes a version."""
    text = (
        f"{shown}, which something else wrote, becomes {commit.short}, "
        f"which is live on {printable(target)}"
    )
    warnings.warn(text, TakenOver, stacklevel=4)


class ServedOutput:
    """A place that holds the files of one version, or with ``as_folder`` a link to their folder.

    Raises as ``Replica.check``.
    """

    def __init__(self, fs: FileSystem, place: Path, *, as_folder: bool) -> None:
        self._fs, self._place, self._as_folder = fs, place, as_folder
        self._shown = printable(str(place))
        self._written: tuple[object, CommitId] | None = None
        Replica.check(fs, place, with_suffix=not as_folder)

    def follow(self, repo: Repository, live: Deployed, path: str | None) -> None:
        """Makes it the file ``path`` of a version, durably and in one step, if it is another."""
        there = self._seen()
        if self._written == (there, live.commit):
            return
        Replica.check(self._fs, self._place)
        if not self._as_folder:
            path = repo.manifest(live).file(path).path
        if there is not None and self._holds(repo, live, path):
            self._written = there, live.commit  # whoever wrote it
            return
        known = there is None or self._is_known(repo, there, live.target)
        repo.checkout(live, path=path, to=self._place, force=True, atomic_dir=self._as_folder)
        self._written = self._seen(), live.commit
        if not known:
            warn_of_takeover(self._shown, live.commit, live.target)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """If the block fails, the place has again what it had.

        Another name keeps the old file meanwhile, where the file system permits hard links.
        """
        fs, place, seen, written = self._fs, self._place, self._seen(), self._written
        aside = place.with_name(f"{TEMPORARY}{os.urandom(8).hex()}")
        with suppress(IoFailed):
            if (target := fs.read_link(place)) is not None:
                fs.symlink(target, aside)
            elif seen is not None:
                fs.link(place, aside)
        try:
            yield
        except BaseException:
            if self._seen() != seen:
                with suppress(IoFailed):
                    if seen is None:
                        fs.unlink(place)
                    else:
                        fs.replace(aside, place)
                    fs.sync_dir(place.parent)
                self._written = written
            raise
        finally:
            with suppress(IoFailed):
                fs.unlink(aside, missing_ok=True)

    def _seen(self) -> object:
        """What tells whether something else has written there; None if nothing is there."""
        if self._as_folder and (target := self._fs.read_link(self._place)) is not None:
            return target
        there = self._fs.stat(self._place, follow=False)
        return there and (there.inode, there.device, there.size, there.mtime_ns)

    def _holds(self, repo: Repository, live: Deployed, path: str | None) -> bool:
        """Whether what is there has all bytes of the version already; compared by hash."""
        if self._as_folder:
            target = self._fs.read_link(self._place)
            if target is None or not target.startswith(f"{self._ours}{live.commit.short}-"):
                return False
        with suppress(MvcError):  # what cannot be read is written
            manifest = repo.manifest(live)
            if not self._as_folder:
                return self._is_entry(self._place, manifest.by_path[path or ""])
            if path is None:
                inside = [e for e in manifest.entries if e.path not in manifest.training_states]
            else:
                inside = [e for e in manifest.entries if f"{e.path}/".startswith(f"{path}/")]
            return all(self._is_entry(self._place / each.path, each) for each in inside)
        return False

    def _is_entry(self, file: Path, entry: FileEntry) -> bool:
        present = self._fs.stat(file, follow=False)
        if present is None or not present.is_file or present.size != entry.size:
            return False
        with open_file(self._fs, file, entry.path) as there:
            return there.entry.content_id == entry.content_id

    def _is_known(self, repo: Repository, there: object, target: str) -> bool:
        """Whether a Follower of this target may have put it there, or this one did.

        To begin with that is any version of the repository, later one that was live on the target.
        """
        if self._written is not None and self._written[0] == there:
            return True
        if isinstance(there, str):
            if self._written is None:
                return there.startswith(self._ours)
            return any(
                there.startswith(f"{self._ours}{deployed.commit.short}-")
                for deployed in repo.deployments(target, incomplete=[])
            )
        with suppress(MvcError):  # what cannot be read is no version
            return any(
                self._written is None or any(d.target == target for d in found.deployments)
                for found in repo.identify(self._place)
            )
        return False

    @property
    def _ours(self) -> str:
        """How the names of the folders begin that mvc makes for this place."""
        return f"{SWAPPED}{self._place.name}."


class FileSink:
    """Keeps ``path`` a safetensors file of the newest version, replaced atomically and durably.

    Pass it as ``on_deploy`` to a Recorder, which calls it with every version that is durable.
    Readers see the old file or the new one, never a part; a path on a memory file system, such as
    one under ``/dev/shm``, spares the disk. The permissions are those of the present file, or
    else what the umask leaves. Every reader of safetensors takes the file;
    ``mvc.serving.sources.FileReader`` knows its version as well.

    Raises as ``Replica.check``.
    """

    def __init__(self, path: str | PathLike[str], *, fs: FileSystem | None = None) -> None:
        self._path = Path(path)
        self._fs = fs or FileSystem()
        Replica.check(self._fs, self._path)

    def __call__(self, version: ServedVersion) -> None:
        """Writes a version, durable when the call returns. Raises IoFailed."""
        parts = encode_served(version)
        self._fs.replace_file(self._path, lambda file: file.write(parts), mode=None, durable=True)
