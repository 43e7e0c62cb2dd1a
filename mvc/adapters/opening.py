"""Opens a file that is to be committed, and checks that it does not change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mvc.adapters.files.detect import parse_file
from mvc.adapters.parsed import Source
from mvc.adapters.state_file import StateFile
from mvc.errors import BadModelFile, SourceChanged
from mvc.io.files import FileSystem
from mvc.model.manifest import FileEntry


def parse(source: Source, name: str, *, unless: Callable[[], bool] = lambda: False) -> StateFile:
    """A file by its first bytes; one of no known format is a file without tensors.

    Raises BadModelFile for a truncated model file, ``unless`` that returns true. ``name``: for
    messages, and the kind of file that its suffix promises.
    """
    parsed = parse_file(source, name)
    if parsed.format == "opaque":
        from mvc.adapters.files.suspicion import suspicion  # few files need it

        why = suspicion(source, name)
        if why is not None and not unless():
            raise BadModelFile(
                f"{name} is no sound model file: {why}",
                hint="write it again; to keep it as it is, add --opaque",
            )
    return StateFile(parsed)


@contextmanager
def open_file(
    fs: FileSystem,
    path: Path,
    name: str,
    *,
    strict: bool = False,
    like: FileEntry | None = None,
    unless: Callable[[], bool] = lambda: False,
) -> Iterator[StateFile]:
    """The file while it is open. Raises SourceChanged at the end if it was written to meanwhile.

    ``strict``: as ``parse``; otherwise a truncated model file is one without tensors, and ``like``
    is as for ``parse_file``.
    """
    with fs.open_read(path) as file:
        before = file.identity()
        if strict:
            yield parse(file, name, unless=unless)
        else:
            yield StateFile(parse_file(file, name, like))
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
