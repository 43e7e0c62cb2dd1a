"""The states of the global random generators of torch, CUDA, numpy and Python.

Generators that the training program created itself are not included. Pass their states as ``batch``
to ``Recorder.step``, or seed them again when you resume the training.
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
    """At the end of the ``with`` block, resets all generators to their states at its start."""
    before = rng_state()
    try:
        yield
    finally:
        set_rng_state(before)


def check_rng(recorded: Any) -> None:
    """Raises CannotResume for states that ``set_rng_state`` cannot set on this machine."""
    try:
        python, numpy = recorded["python"], recorded["numpy"]
        sound = (
            recorded["torch"].shape == torch.get_rng_state().shape
            and recorded["torch"].dtype == torch.uint8
            and python["words"].shape == (_PYTHON_WORDS,)
            and python["version"] == random.getstate()[0]
            and numpy["keys"].shape == (_NUMPY_WORDS,)
            and numpy["kind"] == "MT19937"
        )
        devices = len(recorded["cuda"])
    except (AttributeError, KeyError, TypeError):
        sound, devices = False, 0
    if not sound:
        raise CannotResume("the recorded state of the random generators is invalid or unsupported")
    if devices and devices != torch.cuda.device_count():
        raise CannotResume(
            f"the version has random generators of {devices} CUDA devices, "
            f"this machine has {torch.cuda.device_count()}",
            hint="resume on a machine with as many devices",
        )


def set_rng_state(recorded: Mapping[str, Any]) -> None:
    """Sets the generators to a state that ``check_rng`` has accepted."""
    python, numpy = recorded["python"], recorded["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(tuple(numpy[key] for key in _NUMPY))
    if recorded["cuda"]:
        torch.cuda.set_rng_state_all(recorded["cuda"])
    torch.set_rng_state(recorded["torch"])
