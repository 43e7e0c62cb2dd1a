"""A version as the folder that the Trainer resumes from.

The names and the form of the files are transformers' own (``Trainer._save_checkpoint``). Files
in torch's format are only written here; the Trainer reads them with ``weights_only``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mvc.adapters.python.state import from_state
from mvc.errors import CannotResume, WouldOverwrite
from mvc.ids import CommitId
from mvc.repo.repository import Repository
from mvc.training.resume import training_state, training_weights
from mvc.training.state.parts import PRODUCTION
from mvc.types import Bytes

__all__ = ["write_checkpoint"]


def write_checkpoint(
    repo: Repository, commit: CommitId, folder: Path, name: str, *, full: bool
) -> None:
    """Writes the files into ``folder``, which is made if need be.

    Without ``full`` only what the Trainer itself must find: weights, generators, its own state.
    Of production weights these are the training weights that were kept beside them.
    Raises CannotResume for a version that MVCCallback did not make, or without those.
    """
    kept = training_state(repo, commit, name, production=True)
    if kept.get("trainer") is None or kept.get("rng") is None:
        raise CannotResume(
            f"{commit.short} was not recorded from a Trainer, or without the random generators",
            hint="record with MVCCallback, and with 'rng' in include",
        )
    files = {"trainer_state.json": _json(kept["trainer"]), **_generators(kept)}
    if full:
        files |= _others(kept)
    fs, weights = repo.context.store.fs, folder / "model.safetensors"
    for path in [weights, *(folder / file for file in files)]:
        if fs.stat(path) is not None:
            raise WouldOverwrite(f"{path} exists already", hint="name another folder")
    fs.make_dirs(folder)
    if kept["schema"] == PRODUCTION:
        parts = _safetensors(training_weights(repo, commit, name, kept))
        fs.replace_file(weights, lambda file: file.write(parts), mode=None, durable=True)
    else:
        repo.restore(commit, paths=[name], output=weights)
    for file, data in files.items():
        fs.write_atomic(folder / file, data)


def _safetensors(state: Mapping[str, Any]) -> list[Bytes]:
    """The parts of a safetensors file of a state that no version has as a path."""
    parsed = from_state(state)
    parts: list[Bytes] = [parsed.skeleton()]
    for i in range(len(parsed.contents)):
        tensor = parsed.borrow(i)
        assert tensor is not None, "what a repository recovers is contiguous"
        parts.append(tensor)
    return parts


def _others(kept: Mapping[str, Any]) -> dict[str, bytes]:
    optimizer = kept["optimizer"] and _numbered(kept["optimizer"])
    states = {"optimizer": optimizer, "scheduler": kept["scheduler"], "scaler": kept["scaler"]}
    files = {f"{name}.pt": _torch(state) for name, state in states.items() if state is not None}
    return files if kept["config"] is None else {"config.json": kept["config"].encode(), **files}


def _numbered(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's state as torch numbers it: group by group."""
    names = [name for group in kept["groups"] for name in group["names"]]
    numbers = {name: number for number, name in enumerate(names)}
    state = {numbers[name]: values for name, values in kept["state"].items()}
    groups = [
        {**group["values"], "params": [numbers[name] for name in group["names"]]}
        for group in kept["groups"]
    ]
    return {"state": {**state, **kept["other"]}, "param_groups": groups}


def _generators(kept: Mapping[str, Any]) -> dict[str, bytes]:
    """One file, or one for every process."""
    if kept["run"]["processes"] == 1:
        own = _rng(kept["rng"])
        if "cuda" in own:
            own["cuda"] = own["cuda"][torch.cuda.current_device()]
        return {"rng_state.pth": _torch(own)}
    states = [kept["rng"], *kept["others"]]
    return {f"rng_state_{i}.pth": _torch(_rng(state)) for i, state in enumerate(states)}


def _rng(kept: Mapping[str, Any]) -> dict[str, Any]:
    python, numpy = kept["python"], kept["numpy"]
    states = {
        "python": (python["version"], tuple(python["words"].tolist()), python["gauss"]),
        "numpy": tuple(numpy[key] for key in ("kind", "keys", "position", "has_gauss", "cached")),
        "cpu": kept["torch"],
    }
    return {**states, "cuda": kept["cuda"]} if kept["cuda"] else states


def _torch(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _json(value: Any) -> bytes:
    text = json.dumps(value, indent=2, sort_keys=True, default=lambda number: number.item())
    return f"{text}\n".encode()
