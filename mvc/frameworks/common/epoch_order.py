"""How a data loader comes to its order, and whether the data draw random numbers.

Where samples or collators draw from the global generators (random masks, augmentation), a
batch depends on numbers that were drawn long before it is used: loaders fetch ahead. The
Trainer skips batches on resuming without making them, so those after it are other ones.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["Drawing", "order_generator", "order_seed", "set_order_seed"]


class Drawing:
    """Sees whether numbers are drawn while the next batches are made: ``seen``.

    The last ``watch`` before the batches are made and the first ``look`` after it compare.
    """

    def __init__(self, *, seen: bool = False) -> None:
        self.seen = seen
        self._before: tuple[object, ...] | None = None

    def watch(self) -> None:
        """Call it when only the data can draw from here on."""
        self._before = None if self.seen else _generators()

    def forget(self) -> None:
        """Call it before something else draws."""
        self._before = None

    def look(self) -> None:
        """Call it when the next batches are made. Sets ``seen`` if numbers were drawn."""
        if self._before is not None and self._before != _generators():
            self.seen = True
        self._before = None


def _generators() -> tuple[object, ...]:
    """The state of the processor's generators, in a form that compares."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    drawn = torch.get_rng_state().numpy().tobytes()
    return drawn, kind, np.asarray(keys).tobytes(), *rest, random.getstate()


def order_seed(loader: Any) -> int | None:
    """The seed of the order of accelerate's own sampler. None for other samplers."""
    seed = getattr(_sampler(loader), "initial_seed", None)
    return seed if isinstance(seed, int) else None


def set_order_seed(loader: Any, seed: int) -> None:
    """Sets the seed of the order of accelerate's own sampler."""
    sampler = _sampler(loader)
    if isinstance(getattr(sampler, "initial_seed", None), int):
        sampler.initial_seed = seed


def order_generator(loader: Any) -> torch.Generator | None:
    """The generator from which a sampler or loader of the program's own draws its order."""
    if order_seed(loader) is not None:
        return None  # seeded anew in every epoch
    for holder in (_sampler(loader), loader):
        found = getattr(holder, "generator", None)
        if isinstance(found, torch.Generator):
            return found
    return None


def _sampler(loader: Any) -> Any:
    """What gives the order, under the wrappers that cut it in batches and among processes."""
    at: Any = getattr(loader, "batch_sampler", None)
    if at is None:
        at = getattr(loader, "sampler", None)
    while getattr(at, "batch_sampler", None) is not None:
        at = at.batch_sampler
    return getattr(at, "sampler", at)
