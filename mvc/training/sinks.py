"""Where production weights go: a file, or memory that serving processes share.

A sink is what ``Recorder(on_deploy=...)`` calls with every version once it is durable. It
replaces what was there in one step: a reader sees the old version or the new one, never a part.
"""

from __future__ import annotations

import re
import secrets
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from mvc.errors import Busy, InvalidName, IoFailed, WrongUsage
from mvc.io.files import TEMPORARY, FileLock, FileSystem, WriteFile
from mvc.io.shared import SharedMemory
from mvc.model.names import printable
from mvc.repo.checkout.outputs import refuse_store
from mvc.serving.served_version import Delivered
from mvc.training import segment
from mvc.training.image import Image, image_of

__all__ = ["SHARED", "FileSink", "SharedMemorySink", "segment_path"]

SHARED = Path("/dev/shm")  # noqa: S108 (files in memory, on Linux; each is for one user alone)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)


class FileSink:
    """Keeps ``path`` a safetensors file of the newest version, replaced atomically and durably.

    Its permissions are those of the file that is there, or what the umask leaves. Every reader
    of safetensors takes it; ``mvc.training.readers.FileReader`` knows its version as well.
    """

    def __init__(self, path: str | PathLike[str], *, fs: FileSystem | None = None) -> None:
        self._path = Path(path)
        self._fs = fs or FileSystem()
        self._check_place()

    def _check_place(self) -> None:
        """Says now, and not with the first version, that it cannot go there."""
        refuse_store(self._fs, self._path)
        shown = printable(str(self._path))
        there, folder = self._fs.stat(self._path), self._fs.stat(self._path.parent)
        if there is not None and not there.is_file:
            raise WrongUsage(f"{shown} is no file", hint="name a file for the production weights")
        if folder is None or not folder.is_dir:
            raise IoFailed(f"there is no folder for {shown}", hint="make it first")

    def __call__(self, production: Delivered) -> None:
        """Writes a version; durable when it returns."""
        image = image_of(production.state, production.commit, production.time_ns)

        def fill(file: WriteFile) -> None:
            file.write(image.parts)

        self._fs.replace_file(self._path, fill, mode=None, durable=True)


class SharedMemorySink:
    """Keeps the newest version in memory under ``name``, for ``mvc.training.readers.Reader``.

    ``name`` is a file in ``folder``, which should lie in memory. It outlives this process,
    until ``unlink``. One sink a name at a time: the name is this one's until ``close``, and
    making a second one raises Busy. Make it in the process that uses it.
    """

    def __init__(
        self, name: str, *, folder: str | PathLike[str] = SHARED, fs: FileSystem | None = None
    ) -> None:
        self._fs = fs or FileSystem()
        self._path = segment_path(self._fs, name, Path(folder))
        self._memory: SharedMemory | None = None
        self._lock: FileLock | None = self._locked(self._path)

    def __call__(self, production: Delivered) -> None:
        """Puts a version there; it is what readers get from now on."""
        image = image_of(production.state, production.commit, production.time_ns)
        memory = self._attached()
        if memory is not None and image.size <= segment.room(memory):
            segment.write(memory, image)
        else:
            self._replace(image)

    def close(self) -> None:
        """Lets go; what is there stays for its readers."""
        if self._memory is not None:
            self._memory.close()
        if self._lock is not None:
            if self._lock.held:
                self._withdraw()
            self._lock.release()
        self._memory = self._lock = None

    def unlink(self) -> None:
        """Deletes it. Readers that have it keep what they have."""
        self.close()
        self._fs.unlink(self._path, missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _withdraw(self) -> None:
        """Deletes the empty file that stood for the claim, if no version has come."""
        identity = self._fs.stat(self._path, follow=False)
        if identity is not None and identity.is_file and not identity.size:
            self._fs.unlink(self._path, missing_ok=True)

    def _attached(self) -> SharedMemory | None:
        """The segment that is there, if it is one; its lock is taken."""
        if self._memory is not None:
            if self._memory.linked:
                return self._memory
            self.close()
        if self._lock is None or not self._lock.held:
            self._lock = self._locked(self._path)
        memory = SharedMemory.open(self._path, write=True)
        if memory is not None and not segment.is_segment(memory):
            memory.close()
            self.close()
            raise IoFailed(
                f"{self._path} is not what a sink has written", hint="choose another name"
            )
        self._memory = memory
        return memory

    def _replace(self, image: Image) -> None:
        """A larger segment takes the name once it holds the image; readers notice."""
        temporary = self._path.with_name(TEMPORARY + secrets.token_hex(8))
        memory = SharedMemory.create(temporary, segment.segment_size(image))
        try:
            lock = self._locked(temporary)
            segment.start(memory)
            segment.write(memory, image)
            self._fs.replace(temporary, self._path)
        except BaseException:
            memory.close()
            self._fs.unlink(temporary, missing_ok=True)
            raise
        self.close()
        self._memory, self._lock = memory, lock

    def _locked(self, path: Path) -> FileLock:
        lock = self._fs.lock(path, block=False)
        if lock is None:
            raise Busy(
                f"another sink writes to {path}",
                hint="close that one first, or give this one another name",
            )
        return lock


def segment_path(fs: FileSystem, name: str, folder: Path) -> Path:
    """The file that stands for a name. Raises InvalidName, or IoFailed without the folder."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{printable(name[:100])!r} cannot name shared memory",
            hint="letters, digits, '_', '-' and '.', at most 200",
        )
    identity = fs.stat(folder)
    if identity is None or not identity.is_dir:
        raise IoFailed(f"there is no folder {folder}", hint="name one that lies in memory: folder=")
    return folder / name
