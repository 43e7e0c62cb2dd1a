"""``dcp.save`` into a repository: the shards of all ranks become one commit of whole tensors.

In a save, each rank (process) writes a *shard*, a file in ``.mvc/staging``. The coordinator (the
rank that finishes the save) commits the data of all shards, and deletes the shards. A shard
contains row-major bytes of *chunks* (boxes of tensors) and bytes of objects. A tensor is assembled
from its chunks part by part, so that the whole tensor is never in memory.

The process that wrote a shard keeps a shared lock on the shard. If a process crashes, its lock
ends. The next save removes shards without a lock.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from os import PathLike
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from mvc.api import CommitOptions, Manifest, Scratch, TensorSpec
from mvc.errors import BadModelFile, MvcError, NothingToCommit, UnsupportedTensor, WrongUsage
from mvc.files import Source, read_exactly
from mvc.frameworks.common.data import saved_bytes
from mvc.frameworks.common.paths import check_new_path, is_path
from mvc.frameworks.common.repository import AnyRepository, RepositoryArgument
from mvc.frameworks.dcp.objects import objects_path, plain_value
from mvc.ids import CommitId
from mvc.limits import MAX_TENSORS
from mvc.names import DEFAULT_STATE, check_path, check_ref
from mvc.state import DTYPES, LazyTensor, StateFile, contiguous, tensor_bytes, tensor_spec
from mvc.system import TEMPORARY, ReadFile
from mvc.training.pushing import Pusher
from mvc.types import Bytes

_TOKEN = re.compile(r"[0-9a-f]{32}")
_SHARD = ".shard"


class MvcWriter(StorageWriter):
    """``dcp.save(state, storage_writer=MvcWriter(repo))``: one commit for all ranks.

    ``repo`` is an open Repository or its folder (use the folder for ``dcp.async_save``). Every rank
    needs the same repository. ``path`` is the file for the state; ``checkpoint_id`` of ``dcp.save``
    overrides ``path``. ``branch`` is the current branch by default.

    ``deploy`` is the target to which each version is deployed. With ``deploy``, each save makes a
    version, even if nothing has changed. ``push`` is a remote to which the branch is pushed before
    the save returns. If the push fails, there is a warning (NotPushed), and the next save pushes
    the missing versions.

    If a save fails, nothing is committed, and torch wraps the error in a CheckpointException.
    torch calls the methods in the order in which they are defined.
    """

    def __init__(
        self,
        repo: AnyRepository,
        *,
        path: str = DEFAULT_STATE,
        branch: str | None = None,
        message: str | None = None,
        deploy: str | None = None,
        push: str | None = None,
    ) -> None:
        """Raises NotARepository, InvalidName, WrongUsage."""
        self._repository = RepositoryArgument(repo)
        self._path = check_path(path)
        self._branch = branch
        self._message = message
        self._deploy = None if deploy is None else check_ref("deployment target", deploy)
        self._push = push
        self._coordinator = False
        self._shard: Shard | None = None
        self.committed: CommitId | None = None
        """On the coordinator, the commit of the last save; None if the state had not changed."""

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        """Sets another path for the state. Raises InvalidName."""
        if checkpoint_id is not None:
            self._path = check_path(str(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **kwargs: Any) -> None:
        """Raises WrongUsage or UnknownRevision if this save cannot become a commit."""
        if not kwargs.get("use_collectives", True):
            raise WrongUsage(
                "without collectives no rank can complete the checkpoint",
                hint="save with use_collectives=True, torch's default",
            )
        self._release()
        self._coordinator = is_coordinator
        self.committed = None
        parent = self._parent()
        for path in (self._path, objects_path(self._path)):
            check_new_path(parent, path)
        if self._push is not None:
            self._repository.repo.remotes.find(self._push)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's chunks and objects to a shard. Raises UnsupportedTensor."""
        with Shard(self._staging) as shard:
            results = []
            for item in plan.items:
                record = shard.write(_bytes(item, planner.resolve_data(item)))
                results.append(WriteResult(item.index, record.length, record))
        self._shard = shard
        if not self._coordinator:
            self._repository.close()
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commits the state, and removes the shards. torch calls this only on the coordinator.

        Raises BadModelFile, UnsupportedTensor.
        """
        records = {result.index: result.storage_data for rank in results for result in rank}
        names = {record.shard for record in records.values()}
        try:
            with ExitStack() as locks:
                shards = {n: locks.enter_context(open_shard(self._staging, n)) for n in names}
                self._commit(_Saved(metadata, records, shards))
        finally:
            remove_shards(self._staging, names | ({self._shard.name} if self._shard else set()))
            self._release()
            self._repository.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return is_path(checkpoint_id)

    @property
    def _staging(self) -> Scratch:
        return self._repository.repo.scratch("staging")

    def _release(self) -> None:
        """Releases the lock of this rank's shard.

        Other ranks than the coordinator do this in their next save, because torch does not inform
        these ranks when a save is complete.
        """
        if self._shard is not None:
            self._shard.release()
            self._shard = None

    def _parent(self) -> Manifest:
        """The manifest (list of files) of the branch's newest version. Raises UnknownRevision."""
        repo = self._repository.repo
        newest = repo.head(self._branch).commit
        return Manifest(()) if newest is None else repo.manifest(newest)

    def _commit(self, saved: _Saved) -> None:
        tensors, (plain, other) = saved.tensors(), saved.objects()
        while unreadable := plain.keys() - saved.names_read(tensors, plain):
            other |= {n: np.frombuffer(saved_bytes(plain.pop(n)), np.uint8) for n in unreadable}
        objects_file = objects_path(self._path)
        files: dict[str, StateFile | None] = {
            self._path: StateFile.of(saved.nested(tensors | plain))
        }
        if other:
            files[objects_file] = StateFile.of(other)
        elif objects_file in self._parent().by_path:
            files[objects_file] = None
        message = f"checkpoint {self._path}" if self._message is None else self._message
        options = CommitOptions(branch=self._branch, allow_empty=self._deploy is not None)
        repo = self._repository.repo
        with ExitStack() as after, suppress(NothingToCommit):
            pusher = None
            if self._push is not None:
                pusher = Pusher(repo, self._push, self._branch or repo.head().branch)
                after.callback(pusher.finish)
            result = repo.commit(
                states=files, message=message, deploy=self._deploy, options=options
            )
            self.committed = result.id
            if pusher is not None:
                pusher.committed()


def _bytes(item: WriteItem, value: Any) -> memoryview:
    """The bytes of an object, or the row-major bytes of a chunk.

    Raises an error if dtype or size contradict the plan.
    """
    name, planned = item.index.fqn, item.tensor_data
    if not isinstance(value, torch.Tensor):
        if item.type is not WriteItemType.BYTE_IO:
            raise WrongUsage(f"the planner provides no tensor for {name}")
        return value.getbuffer()  # type: ignore[no-any-return]
    spec = tensor_spec(value, name)
    if planned is None or spec != _spec(name, planned.properties.dtype, planned.chunk.sizes):
        raise BadModelFile(f"the tensor of {name} differs from the planner's plan")
    data = tensor_bytes(contiguous(value))
    if data is None:
        raise UnsupportedTensor(f"the bytes of {name} cannot be read")
    return data


def _spec(name: str, dtype: torch.dtype, size: torch.Size) -> TensorSpec:
    text = str(dtype).removeprefix("torch.")
    if text not in DTYPES:
        raise UnsupportedTensor(f"{name} has the dtype {text}, which cannot be stored exactly")
    return TensorSpec(text, tuple(size))


class _Saved:
    """The data that all ranks have written.

    Each value has a *flat* name, which torch's planner makes from the keys of nested dictionaries.
    """

    def __init__(
        self, metadata: Metadata, records: dict[Any, ShardPart], shards: dict[str, Any]
    ) -> None:
        self._entries = metadata.state_dict_metadata
        self._places = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        self._records, self._shards = records, shards

    def tensors(self) -> dict[str, Any]:
        """Whole tensors, read on demand."""
        tensors: dict[str, Any] = {}
        for name, entry in self._entries.items():
            if isinstance(entry, kinds.TensorStorageMetadata):
                spec = _spec(name, entry.properties.dtype, entry.size)
                tensors[name] = assembled(
                    name, spec, [self._chunk(name, box) for box in entry.chunks]
                )
        return tensors

    def _chunk(self, name: str, box: kinds.ChunkStorageMetadata) -> Chunk:
        record = self._record(MetadataIndex(name, box.offsets))
        source = self._shards[record.shard]
        return Chunk(
            offsets=tuple(box.offsets),
            sizes=tuple(box.sizes),
            source=source,
            start=record.offset,
            length=record.length,
        )

    def objects(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """All values except tensors, by flat name.

        The first dictionary has the plain values. The second dictionary has all other values, as
        bytes that ``torch.save`` wrote.
        """
        plain: dict[str, Any] = {}
        encoded: dict[str, np.ndarray[Any, Any]] = {}
        for name, entry in self._entries.items():
            if not isinstance(entry, kinds.BytesStorageMetadata):
                continue
            record = self._record(MetadataIndex(name))
            out = bytearray(record.length)
            read_exactly(self._shards[record.shard], name, record.offset, memoryview(out))
            try:
                plain[name] = plain_value(bytes(out))
            except (MvcError, TypeError, ValueError):
                encoded[name] = np.frombuffer(out, np.uint8)
        return plain, encoded

    def _record(self, index: MetadataIndex) -> ShardPart:
        if index not in self._records:
            raise BadModelFile(f"no rank has written {index.fqn}")
        return self._records[index]

    def names_read(self, tensors: Iterable[str], plain: Mapping[str, Any]) -> set[str]:
        """The flat names for which ``dcp.load`` asks.

        If a list has no tensors and no dictionaries, torch uses one name for the whole list.
        """
        state = self.nested({**dict.fromkeys(tensors, torch.empty(0)), **plain})
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, is_coordinator=True)
        return set(planner.state_dict)

    def nested(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Converts flat names to nested dictionaries and lists.

        Missing items of a list become empty dictionaries.
        """
        top = _Folder()
        for name, value in flat.items():
            *above, last = keys = self._places.get(name, (name,))
            at = top
            for key in above:
                at = at.setdefault(key, _Folder())
                if not isinstance(at, _Folder):
                    break
            if not isinstance(at, _Folder) or last in at:
                raise BadModelFile(f"two values of the checkpoint have the same keys: {keys}")
            at[last] = value
        return {str(key): _built(value) for key, value in top.items()}


class _Folder(dict[Any, Any]):
    """A dictionary or list under construction."""


def _built(value: Any) -> Any:
    if not isinstance(value, _Folder):
        return value
    if all(isinstance(key, str) for key in value):
        return {key: _built(item) for key, item in value.items()}
    if any(type(key) is not int or not 0 <= key < MAX_TENSORS for key in value):
        raise BadModelFile("a value of the checkpoint is both a list and a dictionary")
    return [_built(value[i]) if i in value else {} for i in range(max(value) + 1)]


class ShardPart(Struct, frozen=True):
    """Bytes [offset, offset + length) of a shard."""

    shard: str
    offset: int
    length: int


class Shard(AbstractContextManager["Shard"]):
    """A new shard, which this process locks, and can write in a ``with`` block.

    If the block raises an exception, the shard is removed. Otherwise, the lock stays until
    ``release``.
    """

    def __init__(self, staging: Scratch) -> None:
        self._staging = staging
        self.name = secrets.token_hex(16)
        path = staging.folder / f"{self.name}{_SHARD}"
        self._lock = staging.fs.lock(path, shared=True)
        _sweep(staging)
        self._file = staging.fs.open_write(path, within=staging.folder)

    def write(self, data: Bytes) -> ShardPart:
        start = self._file.position
        self._file.write(data)
        return ShardPart(self.name, start, self._file.position - start)

    def release(self) -> None:
        """Releases the lock, so that the coordinator or a later save may remove the shard."""
        self._lock.release()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._file.close()
        if kind is not None:
            remove_shards(self._staging, {self.name})
            self.release()


def open_shard(staging: Scratch, name: str) -> ReadFile:
    """Opens a rank's shard. Raises BadModelFile if the rank uses another repository."""
    if not _TOKEN.fullmatch(name):
        raise BadModelFile(f"a rank sent an invalid shard name: {name[:100]!r}")
    path = staging.folder / f"{name}{_SHARD}"
    if staging.fs.stat(path) is None:
        raise BadModelFile(
            "the shard of a rank was not written to this repository",
            hint="all ranks need the same repository: on several machines use a shared folder",
        )
    return staging.fs.open_read(path, follow=False)


def remove_shards(staging: Scratch, names: set[str]) -> None:
    """Removes shards of a save that is complete or has failed."""
    for name in filter(_TOKEN.fullmatch, names):
        path = staging.folder / f"{name}{_SHARD}"
        staging.fs.unlink(path, missing_ok=True, within=staging.folder)


def _sweep(staging: Scratch) -> None:
    """Removes the shards and temporary files that no process has locked."""
    fs, folder = staging.fs, staging.folder
    for name in fs.list(folder):
        if not name.endswith(_SHARD) and not name.startswith(TEMPORARY):
            continue
        lock = fs.lock(folder / name, block=False)
        if lock is not None:
            with lock:
                fs.unlink(folder / name, missing_ok=True, within=folder)


class Chunk(Struct, frozen=True):
    """A box of a tensor (offsets and sizes in elements).

    The ``length`` row-major bytes of the box start at byte ``start`` of ``source``.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    source: Source
    start: int
    length: int


def assembled(name: str, spec: TensorSpec, chunks: list[Chunk]) -> LazyTensor:
    """A tensor assembled from its chunks. torch's planner ensures that the chunks do not overlap.

    Raises BadModelFile if the chunks do not cover the tensor, or if a chunk exceeds the tensor,
    exceeds its shard, or has a wrong number of bytes.
    """
    for chunk in chunks:
        if not len(spec.shape) == len(chunk.offsets) == len(chunk.sizes) or any(
            o < 0 or n < 0 or o + n > total
            for o, n, total in zip(chunk.offsets, chunk.sizes, spec.shape, strict=True)
        ):
            raise BadModelFile(f"a chunk of {name} exceeds the tensor")
    full = [chunk for chunk in chunks if 0 not in chunk.sizes]
    if sum(TensorSpec("uint8", c.sizes).elements for c in full) != spec.elements:
        raise BadModelFile(f"the chunks of {name} do not cover it")
    for chunk in chunks:
        if chunk.length != TensorSpec(spec.dtype, chunk.sizes).nbytes:
            raise BadModelFile(f"a chunk of {name} has the wrong number of bytes")
        if chunk.start + chunk.length > chunk.source.size():
            raise BadModelFile(f"the shard with a chunk of {name} is truncated")
    return LazyTensor(spec, _Whole(name, spec, full).read)


class _Whole:
    """A tensor assembled from chunks that cover it.

    A scalar is treated as one row of one element.
    """

    def __init__(self, name: str, spec: TensorSpec, chunks: list[Chunk]) -> None:
        self._name = name
        self._item = DTYPES[spec.dtype].itemsize
        self._shape = spec.shape or (1,)
        self._row = spec.nbytes // max(1, self._shape[0])
        self._chunks = [
            replace(chunk, offsets=chunk.offsets or (0,), sizes=chunk.sizes or (1,))
            for chunk in chunks
        ]
        if all(chunk.sizes[1:] == self._shape[1:] for chunk in self._chunks):
            # Contiguous chunks: treat each byte as a row, so that parts of a row can be read.
            self._chunks = [
                replace(chunk, offsets=(chunk.offsets[0] * self._row,), sizes=(chunk.length,))
                for chunk in self._chunks
            ]
            self._shape, self._row, self._item = (spec.nbytes,), 1, 1

    def read(self, start: int, out: memoryview) -> None:
        """Fills ``out`` with the tensor's row-major bytes from ``start`` on."""
        if not len(out):
            return
        first, last = start // self._row, -(-(start + len(out)) // self._row)
        rows = np.empty((last - first, *self._shape[1:], self._item), np.uint8)
        for chunk in self._chunks:
            at, count = chunk.offsets[0], chunk.sizes[0]
            low, high = max(first, at), min(last, at + count)
            if low >= high:
                continue
            data = np.empty((high - low, *chunk.sizes[1:], self._item), np.uint8)
            begin = chunk.start + (low - at) * (chunk.length // count)
            read_exactly(chunk.source, self._name, begin, data.reshape(-1).data)
            inner = zip(chunk.offsets[1:], chunk.sizes[1:], strict=True)
            box = (slice(low - first, high - first), *(slice(o, o + n) for o, n in inner))
            rows[box] = data
        begin = start - first * self._row
        out[:] = rows.reshape(-1).data[begin : begin + len(out)]
