"""The index as files: derived, disposable, verified (docs/format.md, "Index").

A folder has one file for each sorted run, named by the hash of the run's directory, and the file
``current``, which names the runs and the journal position up to which they go. Nothing is
trusted without its hash; any mismatch is ``DamagedData``, and the caller rebuilds the index. No
file of a run ever changes, and it stays readable for those who have it open after it was deleted:
so readers take no lock. Whoever writes holds the lock on ``building``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import merge
from pathlib import Path

from blake3 import blake3
from msgspec import Struct

from mvc.canonical import Reader, Writer
from mvc.errors import DamagedData, IoFailed, MvcError
from mvc.io.files import TEMPORARY, FileSystem
from mvc.io.os_errors import was_missing
from mvc.store.index.runs import Directory, RunReader, block_check, build_run
from mvc.store.journal.frames import GENESIS, Position

CURRENT = "current"
BUILDING = "building"

_VERSION = 5
_CHECK = 16
_FAN = 4  # runs of one level before they are merged into the next
_RUN = ".run"
_LONGEST = 1 << 16  # bytes of ``current`` that are looked at


class IndexRun(Struct, frozen=True):
    """``level`` grows by one with each merge; ``check`` is the hash of the run's directory, which
    takes the last ``size`` bytes of its file.
    """

    level: int
    check: bytes
    size: int

    @property
    def name(self) -> str:
        """Of its file."""
        return self.check.hex() + _RUN


class Meta(Struct, frozen=True):
    """What is indexed: everything of repository ``identity`` before ``position``."""

    identity: bytes
    position: Position
    runs: tuple[IndexRun, ...]

    def encoded(self) -> bytes:
        writer = Writer().uint(_VERSION).raw(self.identity)
        writer.uint(self.position.offset).uint(self.position.sequence).raw(self.position.chain)
        writer.uint(len(self.runs))
        for run in self.runs:
            writer.uint(run.level).raw(run.check).uint(run.size)
        data = writer.done()
        return data + blake3(data).digest(_CHECK)

    @classmethod
    def decode(cls, data: bytes) -> Meta:
        if blake3(data[:-_CHECK]).digest(_CHECK) != data[-_CHECK:]:
            raise DamagedData("the index does not match its checksum")
        reader = Reader(data[:-_CHECK], "the index")
        if reader.uint() != _VERSION:
            raise reader.fail("its version is unknown")
        identity = reader.raw(16)
        position = Position(reader.uint(), reader.uint(), reader.raw(16))
        runs = tuple(
            IndexRun(reader.uint(), reader.raw(_CHECK), reader.uint())
            for _ in range(reader.count(1000))
        )
        reader.end()
        return cls(identity, position, runs)


class Index:
    """The index in a folder, which may be absent. Not thread-safe."""

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        self._fs, self._folder = fs, folder
        self._readers: dict[bytes, RunReader] = {}

    def meta(self, identity: bytes) -> Meta:
        """What is indexed now; an absent index knows nothing. Raises DamagedData."""
        path, nothing = self._folder / CURRENT, Meta(identity, GENESIS, ())
        there = self._fs.stat(path, follow=False)
        if there is None:
            return nothing
        if not there.is_file or there.size > _LONGEST:
            raise DamagedData("the index does not say what it holds")
        try:
            meta = Meta.decode(self._fs.read_bytes(path, _LONGEST))
        except IoFailed as error:
            if was_missing(error):
                return nothing
            raise
        if meta.identity != identity:
            raise DamagedData("the index belongs to another repository")
        return meta

    def readers(self, meta: Meta) -> list[RunReader]:
        """The runs, whose files stay open. Raises DamagedData if one is missing or damaged."""
        self._readers = {run.check: self._reader(run) for run in meta.runs}
        return list(self._readers.values())

    def _reader(self, run: IndexRun) -> RunReader:
        if (known := self._readers.get(run.check)) is not None:
            return known
        path, missing = self._folder / run.name, DamagedData("a run of the index is missing")
        there = self._fs.stat(path, follow=False)
        if there is None or not there.is_file:
            raise missing
        try:
            file = self._fs.open_read(path, follow=False)
        except IoFailed as error:
            if was_missing(error):
                raise missing from error
            raise
        begin = max(0, file.size() - run.size)
        return RunReader(Directory.decode(file.read(begin, run.size), run.check), file.read)

    def forget(self) -> None:
        """Closes the files of the runs."""
        self._readers = {}

    # -- writing: the caller holds the lock on ``BUILDING`` ----------------------------------

    def extend(self, old: Meta, keys: Iterable[bytes], position: Position) -> Meta:
        """Writes a run of ``keys``, and merges runs that pile up. Nothing counts before ``switch``.

        Raises DamagedData if a run to be merged is damaged.
        """
        runs, found, level = list(old.runs), sorted(set(keys)), 0
        while sum(run.level == level for run in runs) >= _FAN - 1:
            merged = [
                self._reader(run).scan(b"", b"\xff" * 32) for run in runs if run.level == level
            ]
            found = list(_unique(merge(found, *merged)))
            runs = [run for run in runs if run.level != level]
            level += 1
        return Meta(old.identity, position, (*runs, self._written(found, level)))

    def _written(self, keys: list[bytes], level: int) -> IndexRun:
        parts: list[bytes] = []
        directory = build_run(keys, parts.append).encoded()
        parts.append(directory)
        run = IndexRun(level, block_check(directory), len(directory))
        self._fs.replace_file(
            self._folder / run.name, lambda file: file.write(parts), mode=None, durable=True
        )
        return run

    def switch(self, meta: Meta) -> None:
        """Makes ``meta`` what is indexed, durably, and deletes all other runs."""
        self._fs.write_atomic(self._folder / CURRENT, meta.encoded())
        named = {run.name for run in meta.runs}
        for name in self._fs.list(self._folder):
            if name not in named and (name.endswith(_RUN) or name.startswith(TEMPORARY)):
                with suppress(MvcError):
                    self._fs.unlink(self._folder / name, missing_ok=True)


def _unique(keys: Iterable[bytes]) -> Iterator[bytes]:
    previous = None
    for key in keys:
        if key != previous:
            yield key
        previous = key
