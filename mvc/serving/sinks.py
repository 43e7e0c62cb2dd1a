"""Where versions are put to be served: a model, a file, a folder, a file that follows a remote."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct, field

from mvc.api import Deployed
from mvc.errors import IoFailed, MvcError, MvcWarning
from mvc.ids import CommitId
from mvc.names import printable
from mvc.state import ServedVersion, encode_served
from mvc.system import SWAPPED, TEMPORARY, Clock, FileSystem
from mvc.transport import Replica
from mvc.types import PathName

if TYPE_CHECKING:
    import torch

    from mvc.api import Repository

EXEC_SECONDS = 600.0


class TakenOver(MvcWarning):
    """A Follower replaces a file that something else wrote."""


def warn_of_takeover(shown: str, commit: CommitId, target: str) -> None:
    """Says that a file, which something else wrote, becomes a version."""
    text = (
        f"{shown}, which something else wrote, becomes {commit.short}, "
        f"which is live on {printable(target)}"
    )
    warnings.warn(text, TakenOver, stacklevel=4)


@runtime_checkable
class Sink(Protocol):
    """Where a Follower of a repository puts versions."""

    def serving(self, repo: Repository, live: Deployed) -> AbstractContextManager[None]:
        """Serves a version; if the block fails, what was served before is served again.

        Where the version is served already, this costs little.
        """
        ...


class ModelSink:
    """Puts the weights into a module, in place; ``path`` names the file in versions of several."""

    def __init__(self, model: torch.nn.Module, *, path: str | None = None) -> None:
        self._model, self._path = model, path
        self._loaded: CommitId | None = None

    @contextmanager
    def serving(self, repo: Repository, live: Deployed) -> Iterator[None]:
        """As ``Sink.serving``; a copy of the weights is kept meanwhile."""
        if self._loaded == live.commit:
            yield
            return
        before, loaded = self._model.state_dict(), self._loaded
        for key, value in before.items():
            if hasattr(value, "detach"):
                before[key] = value.detach().to("cpu", copy=True)
        from mvc.training.resume import load

        try:
            load(repo, self._model, live, path=self._path)
            self._loaded = live.commit
            yield
        except BaseException:
            self._model.load_state_dict(before)
            self._loaded = loaded
            raise


class FileSink:
    """A file that holds the newest version, replaced atomically and durably.

    As the sink of a Follower it is the version's only model, or its file ``path``; as ``on_deploy``
    of a Recorder a safetensors file of every version that is durable. Readers see the old file or
    the new one, never a part; a path on a memory file system, such as one under ``/dev/shm``,
    spares the disk. The permissions are those of the present file, or else what the umask leaves.
    ``mvc.serving.reader.FileReader`` reads it, and knows its version.

    Raises as ``Replica.check``.
    """

    def __init__(
        self, place: PathName, *, path: str | None = None, fs: FileSystem | None = None
    ) -> None:
        self._place, self._path = Path(place), path
        self._fs = fs or FileSystem()
        self._written: tuple[object, CommitId] | None = None
        Replica.check(self._fs, self._place)

    def __call__(self, version: ServedVersion) -> None:
        """Writes a version of a Recorder, durable when the call returns. Raises IoFailed."""
        parts = encode_served(version)
        self._fs.replace_file(self._place, lambda file: file.write(parts), mode=None, durable=True)

    @contextmanager
    def serving(self, repo: Repository, live: Deployed) -> Iterator[None]:
        """As ``Sink.serving``. Another name keeps the old file meanwhile, where the file system
        permits hard links. Warns (``TakenOver``) of a file that something else wrote.
        """
        there = self._seen()
        if self._written == (there, live.commit):
            yield
            return
        fs, place, written = self._fs, self._place, self._written
        aside = place.with_name(f"{TEMPORARY}{os.urandom(8).hex()}")
        with suppress(IoFailed):
            if (target := fs.read_link(place)) is not None:
                fs.symlink(target, aside)
            elif there is not None:
                fs.link(place, aside)
        try:
            self._serve(repo, live, there)
            yield
        except BaseException:
            if self._seen() != there:
                with suppress(IoFailed):
                    if there is None:
                        fs.unlink(place)
                    else:
                        fs.replace(aside, place)
                    fs.sync_dir(place.parent)
                self._written = written
            raise
        finally:
            with suppress(IoFailed):
                fs.unlink(aside, missing_ok=True)

    def _serve(self, repo: Repository, live: Deployed, there: object) -> None:
        Replica.check(self._fs, self._place, with_suffix=not self._is_folder)
        if there is None or not self._holds(repo, live):
            known = there is None or self._is_known(repo, there, live.target)
            path = self._path if self._is_folder else repo.manifest(live).file(self._path).path
            repo.checkout(live, path=path, to=self._place, force=True, atomic_dir=self._is_folder)
            if not known:
                warn_of_takeover(printable(str(self._place)), live.commit, live.target)
        self._written = self._seen(), live.commit

    _is_folder = False

    def _seen(self) -> object:
        """What tells whether something else has written there; None if nothing is there."""
        there = self._fs.stat(self._place, follow=False)
        return there and (there.inode, there.device, there.size, there.mtime_ns)

    def _holds(self, repo: Repository, live: Deployed) -> bool:
        """Whether what is there has all bytes of the version, whoever wrote it."""
        return Replica.holds(self._fs, self._place, repo.manifest(live).file(self._path))

    def _is_known(self, repo: Repository, there: object, target: str) -> bool:
        """Whether a Follower of this target may have put it there, or this one did.

        To begin with that is any version of the repository, later one that was live on the target.
        """
        if self._written is not None and self._written[0] == there:
            return True
        with suppress(MvcError):  # what cannot be read is no version
            return any(
                self._written is None or any(d.target == target for d in found.deployments)
                for found in repo.identify(self._place)
            )
        return False


class FolderSink(FileSink):
    """A link to a folder with the files of a version, or with its folder ``path``."""

    _is_folder = True

    def _seen(self) -> object:
        target = self._fs.read_link(self._place)
        return super()._seen() if target is None else target

    def _holds(self, repo: Repository, live: Deployed) -> bool:
        target, path = self._fs.read_link(self._place), self._path
        if target is None or not target.startswith(self._folder_of(live)):
            return False
        with suppress(MvcError):
            manifest = repo.manifest(live)
            if path is None:
                inside = [e for e in manifest.entries if e.path not in manifest.training_states]
            else:
                inside = [e for e in manifest.entries if f"{e.path}/".startswith(f"{path}/")]
            return all(Replica.holds(self._fs, self._place / e.path, e) for e in inside)
        return False

    def _is_known(self, repo: Repository, there: object, target: str) -> bool:
        if not isinstance(there, str) or (self._written and self._written[0] == there):
            return super()._is_known(repo, there, target)
        made = [self._ours]
        if self._written is not None:
            made = [self._folder_of(d) for d in repo.deployments(target, incomplete=[])]
        return there.startswith(tuple(made))

    def _folder_of(self, deployed: Deployed) -> str:
        return f"{self._ours}{deployed.commit.short}-"

    @property
    def _ours(self) -> str:
        """How the names of the folders begin that mvc makes for this place."""
        return f"{SWAPPED}{self._place.name}."


class ReplicaSink(Struct, frozen=True):
    """A file or a folder that is kept equal to what is live on a target of a remote.

    Each version comes as a delta, is proven, and replaces ``file`` in one step, after which the
    shell command ``command`` runs. A ``file`` that ends in ``/``, or has no suffix, is a link to a
    folder of all files but training states, or of those that ``path`` names, and what lies below;
    else ``path`` names a file of the version where it has several. With a ``name`` the node reports
    what it serves.

    ``prepare`` is a command that runs before anything visible changes; if it fails, nothing does.
    ``required``: if ``command`` fails, the version before is served again. Both are ended after
    ``timeout`` seconds. ``full``: every byte that is there is read before it is counted on.
    ``in_place``: only what differs is written, over the old bytes; nobody may read them meanwhile.
    """

    file: PathName
    path: str | Sequence[str] | None = None
    name: str = ""
    command: str = ""
    prepare: str = ""
    required: bool = False
    timeout: float = EXEC_SECONDS
    full: bool = False
    in_place: bool = False
    fs: FileSystem = field(default_factory=FileSystem)
    clock: Clock = field(default_factory=Clock)
