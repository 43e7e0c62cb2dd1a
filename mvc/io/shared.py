"""Memory that processes share: a file, mapped into each of them (layer 1; source: mmap(2)).

The file stays until it is unlinked, whichever process dies. So a server that starts later
finds what was put there, which ``multiprocessing.shared_memory`` does not promise: its tracker
deletes a segment as soon as the first process that knew it ends.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from mvc.errors import IoFailed
from mvc.io.failure import translate

__all__ = ["SharedMemory"]

_BLOCK = 1 << 20


class SharedMemory:
    """A mapped file; ``view`` is its memory, writable only for who may write.

    Only files of the user who runs this process are mapped: in a folder that all users can
    write, any of them could take the name.
    """

    def __init__(self, path: Path, descriptor: int, *, write: bool) -> None:
        self.path = path
        self._fd = descriptor
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        self.size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, self.size, access=access)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, path: Path, size: int) -> Self:
        """A new one of zeros, readable by this user alone. FileExistsError if the name is taken.

        The zeros are written, so that a lack of memory is an error here and no signal later.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with translate(path, "create"):
            descriptor = os.open(path, flags, 0o600)
            try:
                for start in range(0, size, _BLOCK):
                    os.pwrite(descriptor, bytes(min(_BLOCK, size - start)), start)
                return cls(path, descriptor, write=True)
            except BaseException:
                os.close(descriptor)
                os.unlink(path)
                raise

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> Self | None:
        """The one at ``path``; None if there is nothing, or nothing that could be mapped."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
        with translate(path, "read"):
            try:
                descriptor = os.open(path, flags | os.O_NONBLOCK)
            except FileNotFoundError:
                return None
            try:
                status = os.fstat(descriptor)
                if status.st_uid != os.geteuid():
                    raise IoFailed(
                        f"{path} belongs to another user", hint="choose another name for it"
                    )
                if not status.st_size:
                    os.close(descriptor)
                    return None
                return cls(path, descriptor, write=write)
            except BaseException:
                os.close(descriptor)
                raise

    @property
    def linked(self) -> bool:
        """Whether it still has a name: it has not been deleted or replaced."""
        return os.fstat(self._fd).st_nlink > 0

    def close(self) -> None:
        """Lets go of the memory; ``view`` and what was cut out of it must not be used again."""
        if self._fd >= 0:
            self.view.release()
            self._map.close()
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
