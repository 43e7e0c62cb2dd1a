"""What was written through ``mvc://``, taken apart as the model file that it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from mvc.adapters.files.detect import parse_file
from mvc.adapters.files.suspect import suspicion
from mvc.adapters.parsed import ParsedFile
from mvc.errors import BadModelFile
from mvc.io.files import WriteFile

__all__ = ["opening"]


def opening(file: WriteFile, path: str) -> Callable[[], AbstractContextManager[ParsedFile]]:
    """What a commit opens: the bytes written so far, as the model file that they are.

    Opening raises BadModelFile for a file that claims to be a model but is cut off.
    """

    def opened() -> AbstractContextManager[ParsedFile]:
        written = _Written(file)
        parsed = parse_file(written, path)
        if parsed.format == "opaque" and (why := suspicion(written, path)):
            raise BadModelFile(
                f"{path} is no sound model file: {why}",
                hint="write it again; to keep it as it is: mvc commit --opaque",
            )
        return nullcontext(parsed)

    return opened


class _Written:
    """A file that was written, to be read at any place."""

    def __init__(self, file: WriteFile) -> None:
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        data = self._file.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)
