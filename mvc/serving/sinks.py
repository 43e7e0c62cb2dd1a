"""Where versions are put to be served: a model, or a file or a folder."""

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
    """A Follower replaces what something else wrote."""


@runtime_checkable
class Sink(Protocol):
    """Where a Follower of a repository puts versions."""

    def serving(self, repo: Repository, live: Deployed) -> AbstractContextManager[None]:
        """Serves a version that went live, which may be served already; if the block fails, what
        was served before is served again.
        """


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
    """A safetensors file of the newest version of a Recorder, whose ``on_deploy`` this is.

    It is replaced atomically and durably: readers see the old file or the new one, never a part; a
    path on a memory file system, such as one under ``/dev/shm``, spares the disk. The permissions
    are those of the present file, or else what the umask leaves.
    ``mvc.serving.reader.FileReader`` reads it, and knows its version.

    Raises as ``Replica.check``.
    """

    def __init__(self, place: PathName, *, fs: FileSystem | None = None) -> None:
        self._place, self._fs = Path(place), fs or FileSystem()
        Replica.check(self._fs, self._place)

    def __call__(self, version: ServedVersion) -> None:
        """Writes a version, durable when the call returns. Raises IoFailed."""
        parts = encode_served(version)
        self._fs.replace_file(self._place, lambda file: file.write(parts), mode=None, durable=True)


class ReplicaSink(Struct, frozen=True):
    """A file or a folder that is kept equal to what is live on a target.

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
