"""What is written through ``mvc://``, on its way into a commit.

A file is gathered in a temporary file in the repository's folder, which has no name any
more, so nothing is left of it when the process dies. Closing the file makes a commit; in a
transaction the end of that does, one for all files of a branch.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from fsspec.transaction import Transaction

from mvc.adapters.files.detect import parse_file, suspicion
from mvc.adapters.parsed import ParsedContent, ParsedFile, ParsedTensor
from mvc.errors import BadModelFile, NothingToCommit, WrongUsage
from mvc.frameworks.fsspec.location import Opened
from mvc.frameworks.fsspec.parts import entry_parts
from mvc.io.files import WriteFile
from mvc.model.manifest import FileEntry
from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import Change, CommitRequest
from mvc.repo.content.contents import skeleton_of
from mvc.repo.context import Context

__all__ = [
    "OneCommit",
    "Planned",
    "Spool",
    "keep",
    "opening",
    "stored",
]


@dataclass(frozen=True)
class Planned:
    """Changes of one branch that go into one commit, and its message."""

    opened: Opened
    branch: str
    changes: tuple[Change, ...]
    message: str


def keep(plans: Iterable[Planned]) -> None:
    """One commit for each branch of each repository; none where nothing would change.

    Of several changes of a path the last one counts.
    """
    groups: dict[tuple[int, str], list[Planned]] = {}
    for plan in plans:
        groups.setdefault((id(plan.opened), plan.branch), []).append(plan)
    for group in groups.values():
        opened, branch = group[0].opened, group[0].branch
        changes = {change.path: change for plan in group for change in plan.changes}
        _check_apart({path for path, change in changes.items() if change.open is not None})
        said = {plan.message for plan in group}
        message = said.pop() if len(said) == 1 else f"change {len(changes)} paths"
        request = CommitRequest(tuple(changes.values()), message, branch=branch)
        with opened.lock, suppress(NothingToCommit):
            commit(opened.context, request)


def _check_apart(paths: set[str]) -> None:
    """Raises WrongUsage if one of the paths would be a folder above another."""
    for path in paths:
        above = path.rpartition("/")[0]
        while above:
            if above in paths:
                raise WrongUsage(f"{above} is to be a file, and a folder for {path}")
            above = above.rpartition("/")[0]


class Spool(io.RawIOBase):
    """A file that is being written. ``finish`` gets what was written when it is closed.

    An exception that leaves the ``with`` block, or under which it is closed, discards it.
    With ``later`` what was written stays there until ``discard``.
    """

    mode = "wb"

    def __init__(
        self, file: WriteFile, name: str, finish: Callable[[WriteFile], object], *, later: bool
    ) -> None:
        super().__init__()
        self._file = file
        self._finish = finish
        self._later = later
        self._outside = sys.exception()
        self.path = self.name = name

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def tell(self) -> int:
        return self._file.position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.position}
        at = offset + (base[whence] if whence in base else self._file.size())
        if at < 0:
            raise ValueError("a place before the beginning of the file")
        self._file.position = at
        return at

    def truncate(self, size: int | None = None, /) -> int:
        at = self._file.position
        self._file.truncate(at if size is None else size)
        self._file.position = at
        return self._file.size()

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(data)
        self._file.write(view)
        return view.nbytes

    def close(self) -> None:
        if self.closed:
            return
        # fsspec closes files at the end of a block without saying that the block failed.
        error = sys.exception()
        if error is not None and error is not self._outside:
            self.discard()
            return
        super().close()
        try:
            self._finish(self._file)
        finally:
            if not self._later:
                self._file.close()

    def discard(self) -> None:
        """Discards what was written."""
        super().close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(
                f"{self.name} was never closed, so it was not committed", ResourceWarning, 2
            )
            self.discard()


class OneCommit(Transaction):
    """``with fs.transaction``: everything until its end is one commit, or nothing is kept."""

    def __init__(self, fs: Any, **options: Any) -> None:
        super().__init__(fs, **options)
        self.fs: Any = fs
        self.spools: list[Spool] = []
        self.plans: list[Planned] = []

    def complete(self, commit: bool = True) -> None:
        """Makes the commit, or discards everything."""
        self.files.clear()
        spools, plans = self.spools, self.plans
        self.spools, self.plans = [], []
        try:
            if commit:
                keep(plans)
        finally:
            for spool in spools:
                spool.discard()
            if self.fs is not None:
                self.fs._intrans = False
                self.fs._transaction = None
                self.fs = None


def stored(context: Context, entry: FileEntry, path: str) -> Change:
    """The change that stores a file of a version under another name."""

    @contextmanager
    def opened() -> Iterator[ParsedFile]:
        yield _Stored(context, entry)

    return Change(path, opened)


class _Stored(ParsedFile):
    """A file of a version as input of a commit. It keeps its format and its tensors."""

    def __init__(self, context: Context, entry: FileEntry) -> None:
        self._context, self._entry = context, entry
        self._parts = entry_parts(context, entry)
        self.format, self.size, self.checks = entry.format, entry.size, entry.checks
        self.contents = tuple(ParsedContent(c.offset, c.spec) for c in entry.contents)
        self.tensors = tuple(ParsedTensor(t.key, t.spec, t.content, t.view) for t in entry.tensors)

    def read(self, content: int, start: int, out: memoryview) -> None:
        self._parts.read_into(self.contents[content].offset + start, out)

    def skeleton(self) -> bytes:
        return skeleton_of(self._context, self._entry)


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
    """A written file as a source for the parsers."""

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
