"""Opening what is to be committed: a file on disk, held open and checked for changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mvc.adapters.files.detect import parse_file
from mvc.adapters.parsed import ParsedFile
from mvc.errors import BadModelFile, SourceChanged
from mvc.io.files import FileSystem

__all__ = ["open_file"]


@contextmanager
def open_file(
    fs: FileSystem, path: Path, name: str, *, strict: bool = False
) -> Iterator[ParsedFile]:
    """The parsed file; SourceChanged on leaving if it was written to in the meantime.

    With ``strict`` a file that claims to be a model but is cut off is refused.
    """
    with fs.open_read(path) as file:
        before = file.identity()
        parsed = parse_file(file, name)
        if strict and parsed.format == "opaque":
            from mvc.adapters.files.suspect import suspicion

            if why := suspicion(file, path.name):
                raise BadModelFile(
                    f"{name} is no sound model file: {why}",
                    hint="write it again; to keep it as it is, add --opaque",
                )
        yield parsed
        after = file.identity()
    if (before.size, before.mtime_ns, before.ctime_ns) != (
        after.size,
        after.mtime_ns,
        after.ctime_ns,
    ):
        raise SourceChanged(
            f"{name} changed while it was being read",
            hint="wait until whatever writes it is done, then commit again",
        )
