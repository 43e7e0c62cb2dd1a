"""``dcp.save`` into a repository: the shards of all ranks become one commit of whole tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from mvc.adapters.parsed import read_exactly
from mvc.adapters.python.torch_arrays import contiguous, tensor_bytes, tensor_spec
from mvc.errors import (
    BadModelFile,
    MvcError,
    NothingToCommit,
    UnknownRevision,
    UnsupportedTensor,
    WrongUsage,
)
from mvc.frameworks.common.repository import AnyRepository, GivenRepository
from mvc.frameworks.common.staging import check_new_path, is_path
from mvc.frameworks.dcp.objects import objects_path, plain_value
from mvc.frameworks.dcp.shards import Chunk, Record, Shard, open_shard, remove_shards, whole
from mvc.ids import CommitId
from mvc.limits import MAX_TENSORS
from mvc.model.manifest import Manifest
from mvc.model.names import check_path, printable
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.repo.checkout.checkout import DEFAULT_STATE
from mvc.repo.commit.commit import commit
from mvc.repo.commit.inputs import of_state
from mvc.repo.commit.request import Change, CommitRequest
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import BRANCH, head

__all__ = ["MvcWriter"]


class MvcWriter(StorageWriter):
    """``dcp.save(state, storage_writer=MvcWriter(repo))``: one commit for all ranks.

    ``repo`` is an open Repository or its folder (give the folder to ``dcp.async_save``). The
    state becomes the path ``path``; ``checkpoint_id`` of ``dcp.save`` names another one.
    ``branch`` is the current branch by default. Every rank needs the same repository.
    Torch wraps what goes wrong in a CheckpointException; then nothing was committed. The methods
    are torch's interface, in the order of its calls.
    """

    def __init__(
        self,
        repo: AnyRepository,
        *,
        path: str = DEFAULT_STATE,
        branch: str | None = None,
        message: str | None = None,
    ) -> None:
        """Raises NotARepository, InvalidName, WrongUsage."""
        self._given = GivenRepository(repo)
        self._path = check_path(path)
        self._branch = branch
        self._message = message
        self._coordinator = False
        self._shard: Shard | None = None
        self.committed: CommitId | None = None
        """The last save's commit, on the coordinator; None if the state had not changed."""

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        """Another path for the state. Raises InvalidName."""
        if checkpoint_id is not None:
            self._path = check_path(str(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raises WrongUsage, UnknownRevision if this save cannot become a commit."""
        del args
        if not kwargs.get("use_collectives", True):
            raise WrongUsage(
                "a checkpoint saved without collectives has no rank that completes it",
                hint="save with use_collectives=True, which is torch's default",
            )
        self._release()
        self._coordinator = is_coordinator
        self.committed = None
        parent = self._parent()
        for path in (self._path, objects_path(self._path)):
            check_new_path(parent, path)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's part to a shard. Raises UnsupportedTensor."""
        with Shard(self._context) as shard:
            results = [_written(shard, item, planner) for item in plan.items]
        self._shard = shard
        if not self._coordinator:
            self._given.close()
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commits, on the coordinator, and removes the shards.

        Raises BadModelFile, UnsupportedTensor; then nothing was committed.
        """
        records = {result.index: result.storage_data for rank in results for result in rank}
        names = {record.shard for record in records.values()}
        try:
            with ExitStack() as held:
                shards = {n: held.enter_context(open_shard(self._context, n)) for n in names}
                self._commit(_Saved(metadata, records, shards))
        finally:
            remove_shards(self._context, names | ({self._shard.name} if self._shard else set()))
            self._release()
            self._given.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return is_path(checkpoint_id)

    @property
    def _context(self) -> Context:
        return self._given.repo.context

    def _release(self) -> None:
        """Lets go of the last save's shard: torch tells only the coordinator when it is done."""
        if self._shard is not None:
            self._shard.release()
            self._shard = None

    def _parent(self) -> Manifest:
        """The newest version of the branch. Raises UnknownRevision."""
        context = self._context
        context.store.snapshot.refresh()
        at = head(context)
        if self._branch is None or self._branch == at.branch:
            return manifests.of_commit(context, at.commit)
        tip = context.store.ref(BRANCH + self._branch)
        if not isinstance(tip, CommitId):
            raise UnknownRevision(
                f"there is no branch {printable(self._branch[:100])}",
                hint="make it with 'mvc branch NAME'",
            )
        return manifests.of_commit(context, tip)

    def _commit(self, saved: _Saved) -> None:
        plain, other = saved.objects()
        beside = objects_path(self._path)
        changes = [of_state(saved.nested(saved.tensors() | plain), self._path, None)]
        if other:
            changes.append(of_state(other, beside, None))
        elif beside in self._parent().by_path:
            changes.append(Change(beside, None))
        message = f"checkpoint {self._path}" if self._message is None else self._message
        with suppress(NothingToCommit):
            request = CommitRequest(changes, message, branch=self._branch)
            self.committed = commit(self._context, request).id


def _written(shard: Shard, item: WriteItem, planner: SavePlanner) -> WriteResult:
    data = planner.resolve_data(item)
    if isinstance(data, torch.Tensor):
        record = shard.write(_chunk_bytes(item, data))
    elif item.type is WriteItemType.BYTE_IO:
        record = shard.write(data.getbuffer())
    else:
        raise WrongUsage(f"the planner gives no tensor for {item.index.fqn}")
    return WriteResult(item.index, record.length, record)


def _chunk_bytes(item: WriteItem, tensor: torch.Tensor) -> memoryview:
    """The row-major bytes of a chunk that is what the plan says."""
    name, planned = item.index.fqn, item.tensor_data
    spec = tensor_spec(tensor, name)
    if planned is None or spec != _spec(name, planned.properties.dtype, planned.chunk.sizes):
        raise BadModelFile(f"the planner gives another tensor for {name} than it has planned")
    data = tensor_bytes(contiguous(tensor))
    if data is None:
        raise UnsupportedTensor(f"{name} cannot be brought into memory")
    return data


def _spec(name: str, dtype: torch.dtype, size: torch.Size) -> TensorSpec:
    text = str(dtype).removeprefix("torch.")
    if text not in DTYPES:
        raise UnsupportedTensor(f"{name} has the dtype {text}, which cannot be kept exactly")
    return TensorSpec(text, tuple(size))


class _Saved:
    """What all ranks have written, by the flat names of torch's planner."""

    def __init__(
        self, metadata: Metadata, records: dict[Any, Record], shards: dict[str, Any]
    ) -> None:
        self._entries = metadata.state_dict_metadata
        self._places = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        self._records, self._shards = records, shards

    def tensors(self) -> dict[str, Any]:
        """Whole tensors, read when they are needed."""
        found: dict[str, Any] = {}
        for name, entry in self._entries.items():
            if isinstance(entry, kinds.TensorStorageMetadata):
                spec = _spec(name, entry.properties.dtype, entry.size)
                found[name] = whole(name, spec, [self._chunk(name, box) for box in entry.chunks])
        return found

    def _chunk(self, name: str, box: kinds.ChunkStorageMetadata) -> Chunk:
        record = self._record(MetadataIndex(name, box.offsets))
        source = self._shards[record.shard]
        return Chunk(tuple(box.offsets), tuple(box.sizes), source, record.offset, record.length)

    def objects(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Everything else: plain values as themselves, all others as their saved bytes."""
        plain: dict[str, Any] = {}
        other: dict[str, np.ndarray[Any, Any]] = {}
        for name, entry in self._entries.items():
            if not isinstance(entry, kinds.BytesStorageMetadata):
                continue
            record = self._record(MetadataIndex(name))
            out = bytearray(record.length)
            read_exactly(self._shards[record.shard], name, record.offset, memoryview(out))
            try:
                plain[name] = plain_value(bytes(out))
            except (MvcError, TypeError, ValueError):
                other[name] = np.frombuffer(out, np.uint8)
        return plain, other

    def _record(self, index: MetadataIndex) -> Record:
        if index not in self._records:
            raise BadModelFile(f"no rank has written {index.fqn}")
        return self._records[index]

    def nested(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Dictionaries and lists again. Items missing in a list are empty dictionaries."""
        top = _Folder()
        for name, value in flat.items():
            *above, last = place = self._places.get(name, (name,))
            at = top
            for key in above:
                at = at.setdefault(key, _Folder())
                if not isinstance(at, _Folder):
                    break
            if not isinstance(at, _Folder) or last in at:
                raise BadModelFile(f"two values of the checkpoint lie in one place: {place}")
            at[last] = value
        return {str(key): _built(value) for key, value in top.items()}


class _Folder(dict[Any, Any]):
    """A dictionary or list while it is being put together."""


def _built(value: Any) -> Any:
    if not isinstance(value, _Folder):
        return value
    if all(isinstance(key, str) for key in value):
        return {key: _built(item) for key, item in value.items()}
    if any(type(key) is not int or not 0 <= key < MAX_TENSORS for key in value):
        raise BadModelFile("a place in the checkpoint is both a list and a dictionary")
    return [_built(value[i]) if i in value else {} for i in range(max(value) + 1)]
