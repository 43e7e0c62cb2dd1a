"""A checkpoint plugin: what ModelCheckpoint saves becomes versions.

A checkpoint is two paths of one commit: the model's ``state_dict``, and all the rest beside it.
Where Lightning expects a file it finds a *marker*, a few lines of text that name the commit, so
that looking for checkpoints, linking, renaming and deleting work as with any other file.
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
from mvc.frameworks.common.repository import AnyRepository, GivenRepository
from mvc.frameworks.lightning.values import original, plain
from mvc.ids import CommitId
from mvc.names import check_path, check_ref, check_run, training_path
from mvc.pipelines import Pipeline
from mvc.system import FileSystem

_SCHEMA = "mvc.lightning-checkpoint/1"
_HEAD = "mvc lightning checkpoint 1"
_MARKER = re.compile(_HEAD.encode() + rb"\ncommit ([0-9a-f]{64})\npath ([^\n]+)\n")
_MARKER_LIMIT = 4096
_HANDED_OVER = ".temp.ckpt"
"""The file in which Lightning's launcher of processes hands weights over: no checkpoint."""
_PREFIX = "mvc:"
_SUFFIX = ".safetensors"
_TRAINING = ".training.safetensors"


class MVCCheckpointIO(CheckpointIO):  # type: ignore[misc, unused-ignore]
    """``Trainer(plugins=[MVCCheckpointIO(repo)])`` keeps every checkpoint in a repository.

    ``repo`` is an open Repository, or the path of an existing one. Each checkpoint is durable
    when ``save_checkpoint`` returns. ``deploy`` names the target on which it goes live. All go
    onto ``branch``, by default the one that is current at the first. ``run`` names the training.
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
                f"a checkpoint comes back exactly, and the pipeline {pipeline} loses bits",
                hint=f"use {stages.coding().text}",
            )
        self._given = GivenRepository(repo)
        self._deploy = deploy
        self._named = self._branch = branch
        self._pipeline = pipeline
        self._run = run
        self._saver: threading.Thread | None = None
        self._gone: set[str] = set()

    @property
    def repo(self) -> Repository:
        return self._given.repo

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_saver": None}  # a thread cannot be copied

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | PathLike[str], storage_options: Any = None
    ) -> None:
        """Makes a version of a checkpoint, then the marker at ``path``.

        Raises UnsupportedTensor naming what cannot be kept exactly; then nothing is written.
        """
        if storage_options is not None:
            raise WrongUsage("MVCCheckpointIO takes no storage_options")
        if Path(path).name == _HANDED_OVER:
            TorchCheckpointIO().save_checkpoint(checkpoint, Path(path))
            return
        with self._given.during() as repo:
            self._save(repo, checkpoint, path)

    def _save(
        self, repo: Repository, checkpoint: dict[str, Any], path: str | PathLike[str]
    ) -> None:
        files = FileSystem()
        file = _local(files, path)
        name = _tracked(repo, file)
        model: Any = checkpoint.get("state_dict")
        apart = _is_model(model)
        rest = {**checkpoint, "state_dict": None} if apart else dict(checkpoint)
        beside = {
            "schema": _SCHEMA,
            "apart": apart,
            "metadata": plain(getattr(model, "_metadata", None) if apart else None, "metadata"),
            "checkpoint": plain(rest, "checkpoint"),
        }
        training = training_path(name)
        if self._saver is not None and not self._saver.is_alive():
            self._branch = self._named  # AsyncCheckpointIO has a thread for each training
        self._saver = threading.current_thread()
        self._branch = self._branch or repo.head().branch
        states = dict.fromkeys(self._gone) | {training: beside} | ({name: model} if apart else {})
        made = repo.commit(
            path=name if apart else training,
            states=states,
            message=f"checkpoint {file.name}",
            deploy=self._deploy,
            pipeline=self._pipeline,
            options=CommitOptions(
                branch=self._branch, new_branch=self._named is None, run=self._run
            ),
        )
        self._gone.clear()
        files.make_dirs(file.parent)
        files.write_atomic(file, f"{_HEAD}\ncommit {made.id}\npath {name}\n".encode())

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The dictionary as it was saved: from a marker's path, or from ``mvc:REV``.

        ``mvc:REV`` means the checkpoint that this version added or changed. Tensors lie on the
        processor unless ``map_location`` says otherwise. Raises UnknownPath.
        """
        del weights_only  # nothing is ever run
        if Path(path).name == _HANDED_OVER:
            handed: dict[str, Any] = TorchCheckpointIO().load_checkpoint(
                path, map_location, weights_only=True
            )
            return handed
        with self._given.during() as repo:
            return _loaded(repo, path, map_location)

    def remove_checkpoint(self, path: str | PathLike[str]) -> None:
        """Removes the marker, and the checkpoint from the next version on; history keeps it."""
        files = FileSystem()
        file = _local(files, path)
        found = files.stat(file, follow=False)
        if found is None:
            return
        if not found.is_symlink and file.name != _HANDED_OVER:
            _, name = _marked(files, path)
            self._gone |= {name, training_path(name)}
        files.unlink(file, missing_ok=True)

    def teardown(self) -> None:
        """Ends a training; closes the repository if it was opened here."""
        self._branch = self._named
        self._given.close()


def _loaded(repo: Repository, path: Any, map_location: Any) -> dict[str, Any]:
    text = str(path)
    if text.startswith(_PREFIX):
        commit = repo.find(text.removeprefix(_PREFIX))
        name = _added(repo, commit)
    else:
        commit, name = _marked(FileSystem(), path)
    beside = repo.checkout(commit, path=training_path(name))
    if not isinstance(beside, Mapping) or beside.get("schema") != _SCHEMA:
        recorded = isinstance(beside, Mapping) and "lightning" in beside
        hint = "MVCCallback recorded it: ckpt_path=callback.resume(REV)" if recorded else None
        raise UnknownPath(f"{training_path(name)} of {commit.short} is no checkpoint", hint=hint)
    made: dict[str, Any] = original(beside["checkpoint"])
    if beside["apart"]:
        weights = made["state_dict"] = repo.checkout(commit, path=name)
        metadata = original(beside["metadata"])
        if metadata is not None:
            weights._metadata = metadata
    return made if map_location is None else _mapped(made, map_location)


def _marked(files: FileSystem, path: str | PathLike[str]) -> tuple[CommitId, str]:
    """What the marker at ``path`` names. Raises UnknownPath or WrongUsage if there is none."""
    file = _local(files, path)
    if files.stat(file) is None:
        raise NoSuchFile(f"there is no checkpoint at {file}")
    with files.open_read(file) as opened:
        match = _MARKER.fullmatch(opened.read(0, _MARKER_LIMIT))
    if match is None:
        raise WrongUsage(
            f"{file} is not a checkpoint of mvc",
            hint="load a file of torch.save without MVCCheckpointIO, and save it with it",
        )
    return CommitId.parse(match[1].decode()), check_path(match[2].decode(errors="replace"))


def _is_model(model: Any) -> bool:
    """Whether a ``state_dict`` can be a path of its own: names and plain tensors."""
    return (
        type(model) in {dict, OrderedDict}
        and bool(model)
        and all(type(k) is str and type(v) is torch.Tensor for k, v in model.items())
    )


def _local(files: FileSystem, path: str | PathLike[str]) -> Path:
    if "://" in str(path):
        raise WrongUsage(
            f"checkpoints of mvc need a folder of this machine, not {path}",
            hint="set dirpath of ModelCheckpoint, or default_root_dir of the Trainer",
        )
    return files.cwd() / path


def _tracked(repo: Repository, file: Path) -> str:
    """The model's path in a version: below the repository's folder, the current one, or the root.

    It never is the marker's own, so that ``commit -a`` does not take a marker for a model.
    """
    files = FileSystem()
    where = files.realpath(file.parent)
    bases = (repo.root, files.realpath(files.cwd()), where.anchor)
    base = next(base for base in bases if where.is_relative_to(base))
    name = file.name.removesuffix(".ckpt") + _SUFFIX
    return check_path("/".join([*where.relative_to(base).parts, name]))


def _added(repo: Repository, commit: CommitId) -> str:
    """The checkpoint that a version added or changed, or its only one."""
    entries = repo.manifest(commit).by_path
    names = [path for path in entries if path.endswith(_TRAINING)]
    parents = repo.log(commit, limit=1)[0].commit.parents
    before = repo.manifest(parents[0]).by_path if parents else {}
    was = {path: entry.content_id for path, entry in before.items()}
    new = [path for path in names if was.get(path) != entries[path].content_id]
    chosen = new if len(new) == 1 else names
    if len(chosen) != 1:
        raise UnknownPath(
            f"{commit.short} has {len(chosen)} checkpoints, and none of them is its own",
            hint="load the one you mean by the path of its file",
        )
    return chosen[0].removesuffix(_TRAINING) + _SUFFIX


def _mapped(value: Any, location: Any) -> Any:
    """Tensors moved to where ``location`` (as for ``torch.load``) says."""
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
