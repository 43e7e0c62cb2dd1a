"""A sharded model of the Hugging Face kind in a repository, and what a folder holds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from mvc.api.repository import Repository
from mvc.errors import UnknownRevision
from mvc.ids import CommitId

_BASE = np.random.default_rng(0).standard_normal((6, 8000)).astype(np.float32)


def shards(count: int = 2, folder: str = "policy/") -> list[str]:
    """The paths of the shards."""
    return [f"{folder}model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


def commit(
    repo: Repository,
    work: Path,
    step: int,
    *,
    count: int = 2,
    changed: Sequence[int] = (0, 1),
    deploy: str | None = "prod",
) -> CommitId:
    """Commits a model in ``count`` shards, ``changed`` of which are others than at step 0.

    Of each only the first tensor is. The configuration changes where all shards do.
    """
    weights = {}
    for i, name in enumerate(shards(count)):
        tensors = {f"l{j}": _BASE[j] for j in range(i, 6, count)}
        if i in changed:
            first = next(iter(tensors))
            tensors[first] = tensors[first] * np.float32(1 + 1e-4 * step)
        place = work / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if i in changed or not place.exists():
            save_file(tensors, place)
        weights |= dict.fromkeys(tensors, name.partition("/")[2])
    files = {
        "policy/config.json": {"layers": 6, "step": step},
        "policy/model.safetensors.index.json": {"metadata": {}, "weight_map": weights},
        "policy/tokenizer/tokenizer.json": {"vocabulary": list(range(500))},
        "notes.txt": "none",
    }
    for name, content in files.items():
        place = work / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name != "policy/config.json" or len(changed) > 1 or not place.exists():
            place.write_text(json.dumps(content))
    given = {name: work / name for name in (*shards(count), *files)}
    with suppress(UnknownRevision):
        given |= dict.fromkeys(repo.manifest("HEAD").by_path.keys() - given.keys())
    return repo.commit(states=given, message=f"v{step}", deploy=deploy).id


def contents(folder: Path) -> dict[str, bytes]:
    """All files in a folder, or the one file, through one resolved link target.

    Raises FileNotFoundError where the folder is gone meanwhile.
    """
    root = folder.resolve(strict=True)
    if root.is_file():
        return {"": root.read_bytes()}
    found = {}
    for at, _, names in os.walk(root, onerror=_fail):
        files = (Path(at, name) for name in names)
        found |= {str(file.relative_to(root)): file.read_bytes() for file in files}
    return found


def _fail(error: OSError) -> None:
    raise error
