"""Loads a version with ``torch.distributed.checkpoint`` (``dcp.load``).

Every rank (process) reads the parts of the tensors that it needs. The number of ranks may differ
from the number of ranks that saved the version.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from os import PathLike
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from mvc.api import VersionFile
from mvc.errors import DamagedData, UnknownPath, UnsupportedTensor, WrongUsage
from mvc.frameworks.common.data import saved_bytes
from mvc.frameworks.common.paths import is_path
from mvc.frameworks.common.repository import AnyRepository, RepositoryArgument
from mvc.frameworks.dcp.objects import objects_path
from mvc.ids import CommitId
from mvc.limits import MIB
from mvc.names import DEFAULT_STATE, check_path

_GROUP_BYTES = 64 * MIB  # approximate bytes of tensors that are recovered together


class MvcReader(StorageReader):
    """``dcp.load(state, storage_reader=MvcReader(repo, "HEAD~3"))``, with any number of ranks.

    ``repo`` is an open Repository or its folder. ``rev`` is any revision. ``path`` is any file with
    tensors, even if ``dcp.save`` did not write it. ``checkpoint_id`` of ``dcp.load`` overrides
    ``path``. If the version's metadata cannot be read, torch raises AssertionError or
    CheckpointException with the text of mvc's error.
    """

    def __init__(
        self, repo: AnyRepository, rev: str | CommitId = "HEAD", *, path: str = DEFAULT_STATE
    ) -> None:
        """Raises NotARepository, InvalidName, WrongUsage."""
        self._repository = RepositoryArgument(repo)
        self._rev = rev
        self._path = check_path(path)
        self._state: _State | None = None
        self._commit: CommitId | None = None

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        """Sets another path. Raises InvalidName."""
        self._state = None
        if checkpoint_id is not None:
            self._path = check_path(str(checkpoint_id))

    def read_metadata(self) -> Metadata:
        """Describes the version as a checkpoint in which each tensor is one chunk.

        Raises UnknownRevision, UnknownPath, UnsupportedTensor, WeightsDropped, DamagedData.
        """
        repo = self._repository.repo
        self._commit = repo.find(self._rev)
        objects_file, paths = objects_path(self._path), repo.manifest(self._commit).by_path
        file = repo.open_file(self._commit, self._path)
        if not (file.entry.tensors or file.entry.format == "state"):
            raise UnknownPath(f"{self._commit.short} has no tensors at {self._path}")
        objects = (
            repo.open_file(self._commit, objects_file, counted=False)
            if objects_file in paths
            else None
        )
        self._state = _State(file, objects)
        return self._state.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing: ``read_metadata`` has stored the metadata."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Adds the id of the commit to the plan, for ``prepare_global_plan``."""
        return dataclasses.replace(plan, storage_data=self._commit)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Raises WrongUsage if the ranks read different commits."""
        if len({plan.storage_data for plan in plans}) > 1:
            raise WrongUsage(
                f"{self._rev} is a different version on different ranks",
                hint="load by commit id",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fills this rank's tensors and objects. Raises DamagedData."""
        assert self._state is not None, "torch reads the metadata first"
        tensors: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._state.saved(name)))
            else:
                tensors.setdefault(name, []).append(item)
        for name, whole in self._state.tensors(tensors):
            for item in tensors[name]:
                _copy(item, whole, planner)
        self._repository.close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return is_path(checkpoint_id)


def _copy(item: ReadItem, whole: torch.Tensor, planner: LoadPlanner) -> None:
    box = zip(item.storage_offsets, item.lengths, strict=True)
    part = whole[tuple(slice(start, start + length) for start, length in box)]
    target = planner.resolve_tensor(item).detach()
    if target.size() != part.size():
        raise WrongUsage(
            f"{item.storage_index.fqn} has the shape {tuple(part.size())}, "
            f"but the tensor to load into has {tuple(target.size())}"
        )
    target.copy_(part)
    planner.commit_tensor(item, target)


class _State:
    """A version's state. Each tensor and object has the flat name that torch's planner forms."""

    def __init__(self, file: VersionFile, objects: VersionFile | None) -> None:
        self._file = file
        self._objects = objects
        self._by_key = {t.key: t for t in file.entry.tensors}
        self._keys: dict[int, tuple[str, torch.Tensor]] = {}  # keyed by the id() of a placeholder
        planner = DefaultSavePlanner()
        planner.set_up_planner(file.nested(self._placeholder), is_coordinator=True)
        self._flat: dict[str, Any] = planner.state_dict
        _, self.metadata = planner.create_global_plan([planner.create_local_plan()])
        # Maps the name of an object in torch to its key in mvc. They differ for an empty name.
        self._saved = {} if objects is None else objects.nested(lambda _, key: key)
        for name in self._saved:
            self.metadata.state_dict_metadata[name] = BytesStorageMetadata()
            self.metadata.planner_data.setdefault(name, (name,))

    def _placeholder(self, tag: str, key: str) -> Any:
        """For a torch tensor, a tensor on the device ``meta``. For a numpy array, the array itself,
        because DCP treats arrays as objects.
        """
        if key not in self._by_key:
            raise DamagedData(f"{self._file.entry.path} lacks the tensor {key}")
        if tag != "torch":
            array = self._file.tensors([key], "numpy")[key]
            return array[()] if tag == "scalar" else array
        spec = self._by_key[key].spec
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise UnsupportedTensor(f"{key} has the dtype {spec.dtype}, which torch lacks")
        empty = torch.empty(spec.shape, dtype=dtype, device="meta")
        self._keys[id(empty)] = key, empty
        return empty

    def saved(self, name: str) -> bytes:
        """The object with this name, as bytes of ``torch.save``. Raises DamagedData."""
        if name in self._flat:
            return saved_bytes(self._filled(self._flat[name]))
        assert self._objects is not None
        key = self._saved[name]
        return bytes(self._objects.tensors([key], "numpy")[key].tobytes())

    def _filled(self, value: Any) -> Any:
        """An object, such as a tuple, in which stored tensors replace the placeholders."""
        if id(value) in self._keys:
            key = self._keys[id(value)][0]
            return self._file.tensors([key])[key]
        if isinstance(value, (list, tuple)):
            return type(value)(self._filled(item) for item in value)
        return value

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the whole tensors with these names, recovered in groups. Raises DamagedData."""
        keys = {name: self._keys[id(self._flat[name])][0] for name in names}
        ends = accumulate(self._by_key[key].spec.nbytes for key in keys.values())
        numbered = zip(ends, keys.items(), strict=True)
        for _, group in groupby(numbered, lambda pair: pair[0] // _GROUP_BYTES):
            batch = dict(named for _, named in group)
            loaded = self._file.tensors(list(batch.values()))
            yield from ((name, loaded[key]) for name, key in batch.items())
