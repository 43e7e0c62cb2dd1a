"""In the process that serves: the newest production weights, swapped in one step.

A reader looks when it is asked to (``swap``); between two requests is a good moment. The time
that counts as that of the deployment is this process's own, at the swap: it is recorded by
whoever serves, not by whoever trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from os import PathLike
from pathlib import Path

import numpy as np

from mvc.errors import WrongUsage
from mvc.io.clock import Clock
from mvc.io.files import FileIdentity, FileSystem
from mvc.io.shared import SharedMemory
from mvc.model.names import check_ref
from mvc.repo.repository import Repository
from mvc.serving.served_version import Delivered
from mvc.training import segment
from mvc.training.image import Served, read_image
from mvc.training.sinks import SHARED, segment_path

__all__ = ["FileReader", "Reader"]

_HINT = "a FileSink writes files for a FileReader, a SharedMemorySink memory for a Reader"


class _Swapping(ABC):
    """Keeps ``production``: what this process serves, None before the first swap."""

    def __init__(self, target: str | None, fs: FileSystem | None, clock: Clock | None) -> None:
        if target is not None:
            check_ref("deployment target", target)
        self._target = target
        self._fs = fs or FileSystem()
        self._clock = clock or Clock()
        self._unrecorded: list[Delivered] = []
        self.production: Delivered | None = None

    def swap(self, repo: Repository | None = None) -> Delivered | None:
        """Takes a newer version if there is one, and returns it; else None.

        With ``repo`` the deployment is recorded there, on the reader's target and with the
        time of the swap. Should that fail, the error passes, the new version is in place all
        the same, and the next call with ``repo`` records it first.
        """
        if repo is not None and self._target is None:
            raise WrongUsage("the reader has no target to record", hint="pass target= to it")
        newer = self._newer()
        found = None
        if newer is not None:
            if newer.commit is None:
                raise WrongUsage(f"{self._name} was not written by a sink", hint=_HINT)
            found = Delivered(newer.state, newer.commit, self._clock.now_ns())
            self.production = found
            if repo is not None:
                self._unrecorded.append(found)
        if repo is not None and self._target is not None:
            while self._unrecorded:
                first = self._unrecorded[0]
                repo.deploy(first.commit, self._target, at=first.time_ns)
                del self._unrecorded[0]
        return found

    @property
    @abstractmethod
    def _name(self) -> str:
        """What is read, for messages."""

    @abstractmethod
    def _newer(self) -> Served | None:
        """What has come since the last call."""


class Reader(_Swapping):
    """Reads what a ``SharedMemorySink`` of the same name puts there.

    ``target``: where its swaps are recorded. The state is copied out and compared with its
    hash, so a version is never torn, whatever the sink does meanwhile or however it died.
    """

    def __init__(
        self,
        name: str,
        *,
        target: str | None = None,
        folder: str | PathLike[str] = SHARED,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(target, fs, clock)
        self._path = segment_path(self._fs, name, Path(folder))
        self._memory: SharedMemory | None = None
        self._number = 0

    def close(self) -> None:
        """Lets go of the shared memory; ``production`` stays."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    @property
    def _name(self) -> str:
        return str(self._path)

    def _newer(self) -> Served | None:
        if self._memory is None or not self._memory.linked:
            self.close()
            memory = SharedMemory.open(self._path)
            if memory is None:
                return None
            if not segment.is_segment(memory):
                memory.close()
                raise WrongUsage(f"{self._name} was not written by a sink", hint=_HINT)
            self._memory, self._number = memory, 0
        found = segment.read_newest(self._memory, self._number)
        if found is None:
            return None
        self._number, data = found
        return read_image(data, self._name)


class FileReader(_Swapping):
    """Reads what a ``FileSink`` writes to ``path``; ``target`` as for ``Reader``."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        target: str | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(target, fs, clock)
        self._path = Path(path)
        self._seen: FileIdentity | None = None

    @property
    def _name(self) -> str:
        return str(self._path)

    def _newer(self) -> Served | None:
        if self._fs.stat(self._path) in (None, self._seen):
            return None
        with self._fs.open_read(self._path) as file:
            identity = file.identity()
            data = np.empty(identity.size, np.uint8).data
            if file.read_into(0, data) != identity.size:
                raise WrongUsage(f"{self._name} became shorter while it was read")
        served = read_image(data, self._name)
        self._seen = identity
        return served
