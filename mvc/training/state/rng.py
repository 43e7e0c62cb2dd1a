"""The state of the global random generators: torch, CUDA, numpy, Python.

A generator that the program made itself is not included: pass its state as the position in the
data (``Recorder.step(batch=...)``), or seed it again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mvc.errors import CannotResume

_PYTHON_WORDS = 625
_NUMPY_WORDS = 624
_NUMPY = ("kind", "keys", "position", "has_gauss", "cached")


def rng_state() -> dict[str, Any]:
    """The states of all generators, as copies that later draws do not change."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    numpy = (str(kind), np.array(keys, np.uint32), int(position), int(has_gauss), float(cached))
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if cuda else [],
        "numpy": dict(zip(_NUMPY, numpy, strict=True)),
        "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
    }


@contextmanager
def same_rng() -> Iterator[None]:
    """Afterwards all generators are in the state in which the block began."""
    before = rng_state()
    try:
        yield
    finally:
        set_rng_state(before)


def check_rng(kept: Any) -> None:
    """Raises CannotResume for states that ``set_rng_state`` cannot set on this machine."""
    try:
        python, numpy = kept["python"], kept["numpy"]
        sound = (
            kept["torch"].shape == torch.get_rng_state().shape
            and kept["torch"].dtype == torch.uint8
            and python["words"].shape == (_PYTHON_WORDS,)
            and python["version"] == random.getstate()[0]
            and numpy["keys"].shape == (_NUMPY_WORDS,)
            and numpy["kind"] == "MT19937"
        )
        devices = len(kept["cuda"])
    except (AttributeError, KeyError, TypeError):
        sound, devices = False, 0
    if not sound:
        raise CannotResume("the state of the random generators is not one that this program knows")
    if devices and devices != torch.cuda.device_count():
        raise CannotResume(
            f"the random generators of {devices} CUDA devices were kept, "
            f"here are {torch.cuda.device_count()}",
            hint="go on with as many devices as before",
        )


def set_rng_state(kept: Mapping[str, Any]) -> None:
    """Sets the generators to a state that ``check_rng`` has accepted."""
    python, numpy = kept["python"], kept["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(tuple(numpy[key] for key in _NUMPY))
    if kept["cuda"]:
        torch.cuda.set_rng_state_all(kept["cuda"])
    torch.set_rng_state(kept["torch"])
