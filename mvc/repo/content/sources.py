"""Opens a file that is to be committed, and checks that it does not change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mvc.adapters.files.detect import parse_file
from mvc.adapters.parsed import ParsedFile
from mvc.errors import BadModelFile, SourceChanged
from mvc.io.files import FileSystem


@contextmanager
def open_file(
    fs: FileSystem,
    path: Path,
    name: str,
    *,
    strict: bool = False,
    unless: Callable[[], bool] = lambda: False,
) -> Iterator[ParsedFile]:
    """The parsed file. Raises SourceChanged at the end if it was written to meanwhile.

    With ``strict``, a truncated model file raises BadModelFile, ``unless`` that returns true.
    """
    with fs.open_read(path) as file:
        before = file.identity()
        parsed = parse_file(file, name)
        if strict and parsed.format == "opaque":
            from mvc.adapters.files.suspicion import suspicion  # few files need it

            why = suspicion(file, path.name)
            if why is not None and not unless():
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
