"""FileReader: in the process that serves, the newest production weights, swapped in one step."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from mvc.errors import IoFailed, WrongUsage
from mvc.io.clock import Clock
from mvc.io.files import FileIdentity, FileSystem
from mvc.model.names import check_ref, printable
from mvc.repo.repository import Repository
from mvc.serving.served_version import ServedVersion, decode

__all__ = ["FileReader"]


class FileReader:
    """Reads the file that a ``FileSink`` writes to ``path``.

    ``production`` is the version that this process serves, None before the first swap.
    ``target`` names the deployment target on which ``swap`` records it. The file may be written
    later. Raises InvalidName for a ``target`` that cannot be one, IoFailed where the file's folder
    does not exist.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        target: str | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        if target is not None:
            check_ref("deployment target", target)
        self._path = Path(path)
        self._target = target
        self._fs = fs or FileSystem()
        folder = self._fs.stat(self._path.parent)
        if folder is None or not folder.is_dir:
            raise IoFailed(
                f"there is no folder for {printable(str(path))}",
                hint="name the path that the FileSink writes to",
            )
        self._clock = clock or Clock()
        self._seen: FileIdentity | None = None
        self._unrecorded: list[ServedVersion] = []
        self.production: ServedVersion | None = None

    def swap(self, repo: Repository | None = None) -> ServedVersion | None:
        """Makes a newer version ``production`` and returns it; None if there is none.

        Call it between two requests. The version is verified against its hash first: BadModelFile
        or DamagedData leave ``production`` as it was. Raises WrongUsage for a file that no sink has
        written.

        With ``repo`` the deployment is recorded there, on the reader's target and with the time
        of the swap by this process's clock. If recording fails, its error is raised, the new
        version is in place all the same, and the next call with ``repo`` records it first.
        """
        if repo is not None and self._target is None:
            raise WrongUsage("the reader has no target to record", hint="pass target= to it")
        newer = self._newer()
        if newer is not None:
            self.production = newer
            if repo is not None:
                self._unrecorded.append(newer)
        if repo is not None and self._target is not None:
            while self._unrecorded:
                first = self._unrecorded[0]
                repo.deploy(first.commit, self._target, at=first.time_ns)
                del self._unrecorded[0]
        return newer

    def _newer(self) -> ServedVersion | None:
        """The version in the file, as of now, if the file was replaced since the last call."""
        if self._fs.stat(self._path) in (None, self._seen):
            return None
        with self._fs.open_read(self._path) as file:
            identity = file.identity()
            data = np.empty(identity.size, np.uint8).data
            if file.read_into(0, data) != identity.size:
                raise WrongUsage(f"{self._path} became shorter while it was read")
        version = decode(data, str(self._path))
        self._seen = identity
        return replace(version, time_ns=self._clock.now_ns())
