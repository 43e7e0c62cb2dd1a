"""FileSink: writes every new version to one file, for the process that serves it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from mvc.adapters.served_version import ServedVersion, encode
from mvc.errors import IoFailed, WrongUsage
from mvc.io.files import FileSystem
from mvc.names import printable
from mvc.repo.checkout.outputs import refuse_store


class FileSink:
    """Keeps ``path`` a safetensors file of the newest version, replaced atomically and durably.

    Pass it as ``on_deploy`` to a Recorder, which calls it with every version that is durable.
    Readers see the old file or the new one, never a part; a path on a memory file system, such as
    one under ``/dev/shm``, spares the disk. The permissions are those of the present file, or
    else what the umask leaves. Every reader of safetensors takes the file;
    ``mvc.serving.reader.FileReader`` knows its version as well.

    Raises WrongUsage for a ``path`` that is no file or lies in the store of a repository, IoFailed
    where its folder does not exist.
    """

    def __init__(self, path: str | PathLike[str], *, fs: FileSystem | None = None) -> None:
        self._path = Path(path)
        self._fs = fs or FileSystem()
        refuse_store(self._fs, self._path)
        shown = printable(str(self._path))
        there, folder = self._fs.stat(self._path), self._fs.stat(self._path.parent)
        if there is not None and not there.is_file:
            raise WrongUsage(f"{shown} is no file", hint="name a file for the production weights")
        if folder is None or not folder.is_dir:
            raise IoFailed(f"there is no folder for {shown}", hint="make it first")

    def __call__(self, version: ServedVersion) -> None:
        """Writes a version, durable when the call returns. Raises IoFailed."""
        parts = encode(version)
        self._fs.replace_file(self._path, lambda file: file.write(parts), mode=None, durable=True)
