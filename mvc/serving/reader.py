"""FileReader: loads the newest production weights from a file into a serving process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from mvc.errors import WrongUsage
from mvc.state import ServedVersion, decode_served
from mvc.system import Clock, FileIdentity, FileSystem
from mvc.transport import Replica
from mvc.types import PathName


class FileReader:
    """Reads the file that a ``FileSink`` or ``mvc follow`` writes to ``path``.

    ``production``: the version that this process serves; None before the first swap. The file need
    not exist yet. Raises the errors of ``Replica.check``.
    """

    def __init__(
        self, path: PathName, *, fs: FileSystem | None = None, clock: Clock | None = None
    ) -> None:
        self._path = Path(path)
        self._fs = fs or FileSystem()
        Replica.check(self._fs, self._path)
        self._clock = clock or Clock()
        self._seen: FileIdentity | None = None
        self.production: ServedVersion | None = None

    def swap(self) -> ServedVersion | None:
        """If the file has a newer version, sets ``production`` to this version, and returns
        ``production``. Otherwise returns None.

        Call this between two requests. If the file is damaged, raises BadModelFile or DamagedData,
        and does not change ``production``. Raises WrongUsage for a file that neither a FileSink nor
        ``mvc follow`` has written.
        """
        newer = self._newer()
        if newer is not None:
            self.production = replace(newer, time_ns=self._clock.now_ns())
            return self.production
        return None

    def _newer(self) -> ServedVersion | None:
        """Reads the version in the file. None if the file is missing or has not changed since the
        previous call.
        """
        if self._fs.stat(self._path) in (None, self._seen):
            return None
        with self._fs.open_read(self._path) as file:
            identity = file.identity()
            data = np.empty(identity.size, np.uint8).data
            if file.read_into(0, data) != identity.size:
                raise WrongUsage(f"another program truncated {self._path} while it was read")
        versions = Replica.noted(self._fs, self._path)
        try:
            version = decode_served(data, str(self._path), versions)
        except WrongUsage:
            if self._fs.stat(self._path) != identity:  # the file was replaced meanwhile
                return None
            raise
        self._seen = identity
        return version
