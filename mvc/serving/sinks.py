"""Sinks: where a Follower puts the live version of a target (a model, a file or a folder).

A Follower is an object that waits for new deployments to a target, such as ``prod``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct, field

from mvc.api import Deployed
from mvc.errors import MvcWarning
from mvc.ids import CommitId
from mvc.state import ServedVersion, encode_served
from mvc.system import Clock, FileSystem
from mvc.transport import Replica
from mvc.types import PathName

if TYPE_CHECKING:
    import torch

    from mvc.api import Repository

EXEC_SECONDS = 600.0


class TakenOver(MvcWarning):
    """A Follower replaces a file that another program wrote."""


@runtime_checkable
class Sink(Protocol):
    """Receives the live versions from a Follower."""

    def serving(self, repo: Repository, live: Deployed) -> AbstractContextManager[None]:
        """A context manager. The start of its ``with`` block puts the version ``live`` into use.

        If the block raises an error, the previous version is put into use again. ``live``
        may be the version that is in use.
        """


class ModelSink:
    """Loads weights into a module, in place.

    ``path``: the file to load, if versions have several files.
    """

    def __init__(self, model: torch.nn.Module, *, path: str | None = None) -> None:
        self._model, self._path = model, path
        self._loaded: CommitId | None = None

    @contextmanager
    def serving(self, repo: Repository, live: Deployed) -> Iterator[None]:
        """As ``Sink.serving``. Keeps a copy of the previous weights during the block."""
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
    """Writes the newest version of a Recorder to a safetensors file. Use it as ``on_deploy``.

    The file is replaced atomically and durably: readers see the old or the new file. A path on a
    memory file system, such as ``/dev/shm``, avoids the disk. An existing file keeps its
    permissions; the permissions of a new file follow the umask. ``mvc.serving.reader.FileReader``
    reads the file. Raises the errors of ``Replica.check``.
    """

    def __init__(self, place: PathName, *, fs: FileSystem | None = None) -> None:
        self._place, self._fs = Path(place), fs or FileSystem()
        Replica.check(self._fs, self._place)

    def __call__(self, version: ServedVersion) -> None:
        """Writes a version. The file is durable on return. Raises IoFailed."""
        parts = encode_served(version)
        self._fs.replace_file(self._place, lambda file: file.write(parts), mode=None, durable=True)


class ReplicaSink(Struct, frozen=True):
    """A file or folder that is synchronized with a target's live version.

    Each version arrives as a delta, is verified, and replaces ``file`` in one step. Then the shell
    command ``command`` runs. If ``file`` ends in ``/`` or has no suffix, ``file`` becomes a link to
    a folder. The folder has all files of the version except training states. With ``path``, the
    folder has only the files that ``path`` names, or the files below folders that ``path`` names.
    If ``file`` has a suffix, ``path`` selects a file from a version with several files. ``name``:
    the name under which the process reports the version that it serves.

    ``prepare``: a shell command that runs before ``file`` is replaced. If ``prepare`` fails,
    ``file`` is not replaced. ``required``: if ``command`` fails, the previous version replaces the
    new version. ``timeout``: seconds after which a running command is ended. ``full``: verify all
    bytes of the present file before an update. ``in_place``: overwrite only changed bytes; no
    process may read the file meanwhile.
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
