"""A Lightning plugin that stores the checkpoints of ModelCheckpoint in a repository.

A checkpoint is two files of one commit: the model's ``state_dict``, and the rest. At the path where
Lightning expects a file, there is a *marker*: a short text that names the commit. Lightning lists,
links, renames and deletes markers as it does with other files.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO, TorchCheckpointIO

from mvc.api import CommitOptions, Repository
from mvc.errors import UnknownPath, WrongUsage
from mvc.frameworks.common.paths import NoSuchFile
from mvc.frameworks.common.repository import AnyRepository, RepositoryArgument
from mvc.frameworks.lightning.values import original, plain
from mvc.ids import CommitId
from mvc.names import check_path, check_ref, check_run, training_path
from mvc.pipelines import Pipeline
from mvc.system import FileSystem

_SCHEMA = "mvc.lightning-checkpoint/1"
_HEAD = "mvc lightning checkpoint 1"
_MARKER = re.compile(_HEAD.encode() + rb"\ncommit ([0-9a-f]{64})\npath ([^\n]+)\n")
_MARKER_LIMIT = 4096
_TRANSFER = ".temp.ckpt"
"""Lightning's process launcher passes weights in a file of this name. It is not a checkpoint."""
_PREFIX = "mvc:"
_SUFFIX = ".safetensors"
_TRAINING = ".training.safetensors"


class MVCCheckpointIO(CheckpointIO):  # type: ignore[misc, unused-ignore]
    """``Trainer(plugins=[MVCCheckpointIO(repo)])`` stores every checkpoint in a repository.

    ``repo`` is an open Repository, or the path of an existing repository. A checkpoint is durable
    when ``save_checkpoint`` returns. ``deploy``: the target to which each checkpoint is deployed.
    ``branch``: by default the branch that is current at the first checkpoint. ``run``: the name of
    the training.
    """

    def __init__(
        self,
        repo: AnyRepository,
        *,
        deploy: str | None = None,
        branch: str | None = None,
        pipeline: str | None = None,
        run: str = "",
    ) -> None:
        check_run(run)
        if deploy is not None:
            check_ref("deployment target", deploy)
        if branch is not None:
            check_ref("branch", branch)
        stages = Pipeline.parse(pipeline or "lossless")
        if stages.lossy or stages.decisions:
            raise WrongUsage(
                f"checkpoints must be exact, but the pipeline {pipeline} is lossy",
                hint=f"use {stages.coding().text}",
            )
        self._repository = RepositoryArgument(repo)
        self._deploy = deploy
        self._named = self._branch = branch
        self._pipeline = pipeline
        self._run = run
        self._saver: threading.Thread | None = None
        self._removed: set[str] = set()

    @property
    def repo(self) -> Repository:
        return self._repository.repo

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_saver": None}  # a thread cannot be copied

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | PathLike[str], storage_options: Any = None
    ) -> None:
        """Commits a checkpoint, then writes the marker at ``path``.

        If a value cannot be stored exactly, raises UnsupportedTensor with the value's name, and
        writes nothing.
        """
        if storage_options is not None:
            raise WrongUsage("MVCCheckpointIO does not support storage_options")
        if Path(path).name == _TRANSFER:
            TorchCheckpointIO().save_checkpoint(checkpoint, Path(path))
            return
        with self._repository.during() as repo:
            self._save(repo, checkpoint, path)

    def _save(
        self, repo: Repository, checkpoint: dict[str, Any], path: str | PathLike[str]
    ) -> None:
        files = FileSystem()
        file = _local(files, path)
        name = _tracked(repo, file)
        model: Any = checkpoint.get("state_dict")
        separate = _is_model(model)
        rest = {**checkpoint, "state_dict": None} if separate else dict(checkpoint)
        training_state = {
            "schema": _SCHEMA,
            "apart": separate,
            "metadata": plain(getattr(model, "_metadata", None) if separate else None, "metadata"),
            "checkpoint": plain(rest, "checkpoint"),
        }
        training = training_path(name)
        if self._saver is not None and not self._saver.is_alive():
            self._branch = self._named  # a new thread means a new training (AsyncCheckpointIO)
        self._saver = threading.current_thread()
        self._branch = self._branch or repo.head().branch
        states = (
            dict.fromkeys(self._removed)
            | {training: training_state}
            | ({name: model} if separate else {})
        )
        result = repo.commit(
            path=name if separate else training,
            states=states,
            message=f"checkpoint {file.name}",
            deploy=self._deploy,
            pipeline=self._pipeline,
            options=CommitOptions(
                branch=self._branch, new_branch=self._named is None, run=self._run
            ),
        )
        self._removed.clear()
        files.make_dirs(file.parent)
        files.write_atomic(file, f"{_HEAD}\ncommit {result.id}\npath {name}\n".encode())

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The saved dictionary. ``path``: the path of a marker, or ``mvc:REV``.

        ``mvc:REV`` is the checkpoint that the version REV added or changed. Tensors are on the CPU
        unless ``map_location`` says otherwise. Raises UnknownPath.
        """
        del weights_only  # loading never runs code
        if Path(path).name == _TRANSFER:
            checkpoint: dict[str, Any] = TorchCheckpointIO().load_checkpoint(
                path, map_location, weights_only=True
            )
            return checkpoint
        with self._repository.during() as repo:
            return _loaded(repo, path, map_location)

    def remove_checkpoint(self, path: str | PathLike[str]) -> None:
        """Removes the marker.

        The next version does not have the checkpoint. Older versions still have it.
        """
        files = FileSystem()
        file = _local(files, path)
        info = files.stat(file, follow=False)
        if info is None:
            return
        if not info.is_symlink and file.name != _TRANSFER:
            _, name = _read_marker(files, path)
            self._removed |= {name, training_path(name)}
        files.unlink(file, missing_ok=True)

    def teardown(self) -> None:
        """Ends a training. If this object opened the repository, closes the repository."""
        self._branch = self._named
        self._repository.close()


def _loaded(repo: Repository, path: Any, map_location: Any) -> dict[str, Any]:
    text = str(path)
    if text.startswith(_PREFIX):
        commit = repo.find(text.removeprefix(_PREFIX))
        name = _own_checkpoint(repo, commit)
    else:
        commit, name = _read_marker(FileSystem(), path)
    training_state = repo.checkout(commit, path=training_path(name))
    if not isinstance(training_state, Mapping) or training_state.get("schema") != _SCHEMA:
        recorded = isinstance(training_state, Mapping) and "lightning" in training_state
        hint = (
            "MVCCallback recorded this version: use ckpt_path=callback.resume(REV)"
            if recorded
            else None
        )
        raise UnknownPath(f"{training_path(name)} of {commit.short} is not a checkpoint", hint=hint)
    checkpoint: dict[str, Any] = original(training_state["checkpoint"])
    if training_state["apart"]:
        weights = checkpoint["state_dict"] = repo.checkout(commit, path=name)
        metadata = original(training_state["metadata"])
        if metadata is not None:
            weights._metadata = metadata
    return checkpoint if map_location is None else _mapped(checkpoint, map_location)


def _read_marker(files: FileSystem, path: str | PathLike[str]) -> tuple[CommitId, str]:
    """Commit and path in a marker. Raises UnknownPath; WrongUsage if the file is not a marker."""
    file = _local(files, path)
    if files.stat(file) is None:
        raise NoSuchFile(f"there is no checkpoint at {file}")
    with files.open_read(file) as opened:
        match = _MARKER.fullmatch(opened.read(0, _MARKER_LIMIT))
    if match is None:
        raise WrongUsage(
            f"{file} is not an mvc checkpoint",
            hint="load it without MVCCheckpointIO, then save it with MVCCheckpointIO",
        )
    return CommitId.parse(match[1].decode()), check_path(match[2].decode(errors="replace"))


def _is_model(model: Any) -> bool:
    """Whether a ``state_dict`` has only names and plain tensors, so that it can be a file of its
    own.
    """
    return (
        type(model) in {dict, OrderedDict}
        and bool(model)
        and all(type(k) is str and type(v) is torch.Tensor for k, v in model.items())
    )


def _local(files: FileSystem, path: str | PathLike[str]) -> Path:
    if "://" in str(path):
        raise WrongUsage(
            f"mvc checkpoints need a local folder, not {path}",
            hint="set dirpath of ModelCheckpoint, or default_root_dir of the Trainer",
        )
    return files.cwd() / path


def _tracked(repo: Repository, file: Path) -> str:
    """The path in a version for the model whose marker is ``file``.

    The path is relative to the repository's folder, or else to the current folder or the root. It
    differs from the marker's path, so that ``commit -a`` does not commit a marker as a model.
    """
    files = FileSystem()
    folder = files.realpath(file.parent)
    bases = (repo.root, files.realpath(files.cwd()), folder.anchor)
    base = next(base for base in bases if folder.is_relative_to(base))
    name = file.name.removesuffix(".ckpt") + _SUFFIX
    return check_path("/".join([*folder.relative_to(base).parts, name]))


def _own_checkpoint(repo: Repository, commit: CommitId) -> str:
    """The path of the checkpoint that a version added or changed, or of its only checkpoint."""
    entries = repo.manifest(commit).by_path
    names = [path for path in entries if path.endswith(_TRAINING)]
    parents = repo.log(commit, limit=1)[0].commit.parents
    previous = repo.manifest(parents[0]).by_path if parents else {}
    previous_ids = {path: entry.content_id for path, entry in previous.items()}
    new = [path for path in names if previous_ids.get(path) != entries[path].content_id]
    chosen = new if len(new) == 1 else names
    if len(chosen) != 1:
        raise UnknownPath(
            f"{commit.short} has {len(chosen)} checkpoints, and it is unclear which one to load",
            hint="load one by the path of its file",
        )
    return chosen[0].removesuffix(_TRAINING) + _SUFFIX


def _mapped(value: Any, location: Any) -> Any:
    """``value`` with its tensors moved to ``location``, as ``torch.load`` does."""
    if isinstance(value, torch.Tensor):
        return value.to(_device(value, location))
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _mapped(item, location)
        return value
    if type(value) in {list, tuple}:
        return type(value)(_mapped(item, location) for item in value)
    return value


def _device(tensor: torch.Tensor, location: Any) -> Any:
    if isinstance(location, Mapping):
        return location.get("cpu", "cpu")
    if callable(location):
        moved = location(tensor.untyped_storage(), "cpu")
        return tensor.device if moved is None else moved.device
    return location
