"""A repository in a folder of its own, for tests of verbs that look at files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.repo.config import load_config
from mvc.repo.handle import Handle
from mvc.store.store import Store, create


def new_context(root: Path, clock: Clock | None = None, fs: FileSystem | None = None) -> Handle:
    fs, clock = fs or FileSystem(), clock or Clock()
    root.mkdir(exist_ok=True)
    create(fs, clock, root, "main", b"")
    return open_handle(root, clock, fs)


def open_handle(root: Path, clock: Clock | None = None, fs: FileSystem | None = None) -> Handle:
    fs = fs or FileSystem()
    store = Store(fs, clock or Clock(), root / ".mvc")
    return Handle(store, load_config(fs, root / ".mvc" / "config.yaml", None, {}, {}))


def write_model(path: Path, seed: int = 0, layers: int = 3, **replaced: np.ndarray) -> None:
    """A small safetensors file, the same for the same arguments."""
    rng = np.random.default_rng(seed)
    tensors = {
        f"layer{i}.weight": rng.standard_normal((20, 30)).astype(np.float32) for i in range(layers)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors | replaced, path)


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    """What a file written by ``write_model`` holds."""
    return load_file(path)
