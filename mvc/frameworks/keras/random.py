"""The random generators that a Keras training draws from, and the order of its data.

Beside torch's, numpy's and Python's there is one of Keras's own, for layers that ask for random
numbers without a seed generator. Keras draws the order of an epoch when the epoch begins: the
state before that draw brings the order back, and a digest of the state after it tells whether
it was drawn the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from mvc.errors import CannotResume
from mvc.frameworks.common.data_sizes import Sizes
from mvc.training.state.rng import check_rng, rng_state, set_rng_state

__all__ = ["Order", "check_random", "random_state", "set_random_state"]

_GLOBAL = "global_seed_generator"  # the name under which Keras keeps it


def random_state() -> dict[str, Any]:
    """The state of all generators. Keras's own is None until a layer has used it."""
    from keras.src.backend.common import global_state

    generator = global_state.get_global_attribute(_GLOBAL)
    own = None if generator is None else generator.state.value.detach().clone()
    return {**rng_state(), "keras": own}


def check_random(kept: Any) -> None:
    """Raises CannotResume for what ``set_random_state`` could not set."""
    check_rng(kept)
    own = kept.get("keras")
    if own is not None and (not isinstance(own, torch.Tensor) or own.shape != (2,)):
        raise CannotResume("the state of Keras's random generator is not one that is known here")


def set_random_state(kept: Mapping[str, Any]) -> None:
    """Sets the generators to a state that ``check_random`` has accepted."""
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import global_seed_generator

    if kept["keras"] is None:
        global_state.set_global_attribute(_GLOBAL, None)
    else:
        # Where there is none yet it is made by a draw of Python's, which comes back below.
        global_seed_generator().state.assign(kept["keras"])
    set_rng_state(kept)


class Order:
    """How an epoch's order was drawn. ``unrepeatable``: why that cannot bring it back, or None."""

    def __init__(self, unrepeatable: str | None, sizes: Sizes) -> None:
        """``sizes``: how much data it is an order of."""
        self.unrepeatable = unrepeatable
        self.sizes = sizes
        self.before: dict[str, Any] | None = None
        self.digest: str | None = None

    def epoch_begins(self) -> None:
        """Call it before the epoch's order is drawn."""
        self.before, self.digest = random_state(), None

    def batch_begins(self) -> None:
        """Call it for every batch. At the first one of an epoch the order has been drawn."""
        if self.digest is None:
            self.digest = _digest(random_state())


def _digest(state: Mapping[str, Any]) -> str:
    made = hashlib.blake2b(digest_size=16)
    python, numpy = state["python"], state["numpy"]
    made.update(state["torch"].numpy().tobytes())
    made.update(numpy["keys"].tobytes())
    made.update(python["words"].tobytes())
    made.update(repr((numpy["position"], numpy["has_gauss"], python["gauss"])).encode())
    return made.hexdigest()
