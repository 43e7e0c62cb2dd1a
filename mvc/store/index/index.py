"""The index: an LMDB file for searching journal entries by ids and names (docs/format.md).

The index is derived from the journal and may be deleted. A *key* consists of an id or a name, and
the offset of a journal entry. Keys are stored in sorted *runs*. A run consists of blocks of keys,
and of a directory that lists the blocks. LMDB stores each block and each directory under its hash.
The *meta* value has the position up to which the journal is indexed, and the hash of every run's
directory. mvc compares each value with its hash before use. If the hash differs, mvc raises
DamagedData, and the caller rebuilds the index.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterable, Iterator
from heapq import merge
from pathlib import Path
from typing import Any

import lmdb
from blake3 import blake3
from msgspec import Struct

from mvc.canonical import Reader, Writer
from mvc.errors import DamagedData, IoFailed
from mvc.io.files import FileSystem
from mvc.io.os_errors import translate
from mvc.store.index.pages import check_pages
from mvc.store.index.runs import Directory, RunReader, block_check, build_run
from mvc.store.journal.frames import GENESIS, Position

FIRST_MAP = 16 << 20
"""Bytes of the memory map of a new index. A full map is replaced by a map of 4 times the size."""

_VERSION = 5
_META = b"meta"
_CHECK = 16
_FAN = 4  # runs of one level that are merged into a run of the next level
_LOCK_FILE = 8192  # bytes; enough for LMDB's 126 readers
_PATIENCE, _PAUSE = 2.0, 0.005  # seconds; for ``Index._check_lock``
_NOT_ITS_LOCK = "the index or its lock file was replaced"


class IndexRun(Struct, frozen=True):
    """A run of keys. ``check``: the hash of the run's directory.

    ``level``: 0 for a run of new keys. Runs of one level are merged into a run of the next level.
    """

    level: int
    check: bytes


class Meta(Struct, frozen=True):
    """The meta value: the journal of repository ``identity`` is indexed up to ``position``."""

    identity: bytes
    position: Position
    runs: tuple[IndexRun, ...]

    def encoded(self) -> bytes:
        writer = Writer().uint(_VERSION).raw(self.identity)
        writer.uint(self.position.offset).uint(self.position.sequence).raw(self.position.chain)
        writer.uint(len(self.runs))
        for run in self.runs:
            writer.uint(run.level).raw(run.check)
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
        runs = tuple(IndexRun(reader.uint(), reader.raw(_CHECK)) for _ in range(reader.count(1000)))
        reader.end()
        return cls(identity, position, runs)


class Index:
    """One open LMDB environment. A process must not open the same environment twice."""

    def __init__(
        self, fs: FileSystem, folder: Path, *, writable: bool, create: bool = False
    ) -> None:
        """Opens the environment in ``folder``. With ``create``, creates a new environment.

        Raises DamagedData if the file is missing or is no intact LMDB file.
        """
        _check_file(fs, folder / "data.mdb", create=create)
        # Every access is locked, because the map may be resized only while no thread uses it.
        self._lock = threading.RLock()
        try:
            with translate(folder, "read"):  # py-lmdb raises some OSErrors unchanged
                if writable:
                    _reserve(folder / "lock.mdb", create=create)
                    fs.share(folder / "lock.mdb")
                self._env = lmdb.open(
                    str(folder),
                    map_size=FIRST_MAP,
                    readonly=not writable,
                    lock=writable,
                    max_dbs=0,
                    writemap=False,
                    metasync=True,
                    sync=True,
                    create=create,
                    mode=0o666,
                    max_spare_txns=2,
                )
                if create:
                    fs.share(folder / "data.mdb")
            if writable:
                self._env.reader_check()
                self._check_lock()
        except lmdb.Error as e:
            raise DamagedData(f"the index cannot be opened: {e}") from e
        self._readers: dict[bytes, RunReader] = {}

    def close(self) -> None:
        self._env.close()

    def _check_lock(self) -> None:
        """Raises DamagedData if lock file and data file name different newest transactions.

        While another process commits, the files differ for a short time. If the files differ for a
        longer time, one of the files was replaced. LMDB would then overwrite pages in use, which
        could kill the process.
        """
        until = time.monotonic() + _PATIENCE
        while True:
            before = self._env.info()["last_txnid"]
            with self._env.begin() as txn:
                if before == txn.id():
                    return
            if time.monotonic() >= until:
                break
            time.sleep(_PAUSE)
        self.close()
        raise DamagedData(_NOT_ITS_LOCK)

    def meta(self, identity: bytes) -> Meta:
        """The present state of the index. In an empty index, no entry is indexed."""
        data = self._get(_META)
        if data is None:
            return Meta(identity, GENESIS, ())
        meta = Meta.decode(data)
        if meta.identity != identity:
            raise DamagedData("the index belongs to another repository")
        return meta

    def readers(self, meta: Meta) -> list[RunReader]:
        with self._lock:
            self._readers = {
                run.check: self._readers.get(run.check) or self._reader(run) for run in meta.runs
            }
            return list(self._readers.values())

    def _reader(self, run: IndexRun) -> RunReader:
        return RunReader(self._directory(run), lambda check: self._get(_block_key(check)))

    def _get(self, key: bytes) -> bytes | None:
        with self._lock:
            try:
                return self._read(key)
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)
                return self._read(key)
            except lmdb.Error as e:
                raise DamagedData(f"the index cannot be read: {e}") from e

    def _read(self, key: bytes) -> bytes | None:
        with self._env.begin() as txn:
            value: bytes | None = txn.get(key)
        return value

    def extend(
        self, old: Meta, keys: Iterable[bytes], position: Position, instead: Meta | None = None
    ) -> Meta:
        """Adds ``keys`` as a run, merges runs, sets the indexed position. Returns the new state.

        If another process has changed the index meanwhile, adds nothing and returns the state that
        the other process wrote. ``instead``: if the journal was replaced, the present state of the
        index. The runs of this state are deleted, and ``old`` is extended.
        """
        fresh = sorted(set(keys))
        while True:
            try:
                with self._lock:
                    return self._extend(old, fresh, position, instead)
            except lmdb.MapFullError:
                with self._lock:
                    self._env.set_mapsize(self._env.info()["map_size"] * 4)
            except lmdb.MapResizedError:
                with self._lock:
                    self._env.set_mapsize(0)
            except lmdb.Error as e:
                raise DamagedData(f"the index cannot be written: {e}") from e

    def _extend(
        self, old: Meta, fresh: list[bytes], position: Position, instead: Meta | None
    ) -> Meta:
        with self._env.begin(write=True) as txn:
            if txn.id() != self._env.info()["last_txnid"] + 1:
                raise DamagedData(_NOT_ITS_LOCK)
            data = txn.get(_META)
            if data is not None and data != (instead or old).encoded():
                return Meta.decode(data)
            for run in instead.runs if instead is not None else ():
                self._delete(txn, run)
            runs, keys, level = list(old.runs), fresh, 0
            while sum(run.level == level for run in runs) >= _FAN - 1:
                doomed = [run for run in runs if run.level == level]
                keys = list(_unique(merge(keys, *(self._keys(run) for run in doomed))))
                for run in doomed:
                    self._delete(txn, run)
                runs = [run for run in runs if run.level != level]
                level += 1
            # A block of the merged run may be equal to a deleted block. So write after deleting.
            directory = build_run(keys, lambda check, data: txn.put(_block_key(check), data))
            encoded = directory.encoded()
            check = block_check(encoded)
            txn.put(_directory_key(check), encoded)
            meta = Meta(old.identity, position, (*runs, IndexRun(level, check)))
            txn.put(_META, meta.encoded())
        return meta

    def _delete(self, txn: Any, run: IndexRun) -> None:
        """Deletes a run and its blocks.

        No other run has the same blocks, because each entry is indexed only once, and every key
        contains the offset of the entry.
        """
        for block in self._directory(run).blocks:
            txn.delete(_block_key(block.check))
        txn.delete(_directory_key(run.check))

    def _directory(self, run: IndexRun) -> Directory:
        data = self._get(_directory_key(run.check))
        if data is None:
            raise DamagedData("a run of the index is missing")
        return Directory.decode(data, run.check)

    def _keys(self, run: IndexRun) -> Iterator[bytes]:
        return self._reader(run).scan(b"", b"\xff" * 32)


def _unique(keys: Iterable[bytes]) -> Iterator[bytes]:
    previous = None
    for key in keys:
        if key != previous:
            yield key
        previous = key


def _directory_key(check: bytes) -> bytes:
    return b"d" + check


def _block_key(check: bytes) -> bytes:
    return b"b" + check


def _reserve(lock_file: Path, *, create: bool) -> None:
    """Allocates disk space for LMDB's lock file. On a full disk, LMDB could kill the process.

    Raises DamagedData if an existing index has no lock file: a new lock file would not exclude
    processes that use the deleted lock file. Do not call ``_reserve`` while this process has the
    environment open: ``os.close`` would release the locks of the process.
    """
    try:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = os.open(lock_file, flags, 0o666)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, _LOCK_FILE)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise DamagedData("the index has no lock file") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise


def _check_file(fs: FileSystem, path: Path, *, create: bool) -> None:
    """Raises DamagedData unless the file is an intact LMDB file: LMDB could crash otherwise."""
    identity = fs.stat(path)
    if (identity is None) != create:
        raise DamagedData(f"the index {'is missing' if identity is None else 'exists already'}")
    if identity is not None:
        if not identity.size:
            raise DamagedData("the index is empty")
        try:
            file = fs.open_read(path)
        except IoFailed as error:
            if fs.stat(path) is None:  # another process has replaced the index
                raise DamagedData("the index is missing") from error
            raise
        with file:
            check_pages(file)
