"""The data of a training: how much there is, how its order is drawn, whether it draws numbers.

An order drawn over other rows, or cut into other batches, does not tell which rows an interrupted
epoch has had. Where samples or collators draw from the global generators (random masks), a batch
depends on numbers drawn long before it is used, since loaders fetch ahead; if skipped batches are
not made on resuming, those after them are other ones.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mvc.errors import CannotResume

Sizes = dict[str, int | None]


def sizes(loader: Any) -> Sizes:
    """The sizes of a loader like torch's. None for a size that it does not tell."""
    batch = getattr(loader, "batch_size", None)
    if batch is None:
        batch = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return {
        "rows": _length(getattr(loader, "dataset", None)),
        "batch size": batch if type(batch) is int else None,
        "batches an epoch": _length(loader),
    }


def _length(of: Any) -> int | None:
    try:
        return len(of)
    except (AttributeError, TypeError, NotImplementedError):
        return None


def unlike(kept: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What is another value here, such as ``rows: 310, not 320``."""
    return [
        f"{what}: {here.get(what)}, not {value}"
        for what, value in kept.items()
        if here.get(what) != value
    ]


def changed(kept: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """As ``unlike``, without what is None, and so unknown, on one side."""
    both = [what for what in kept if None not in (kept[what], here.get(what))]
    return unlike({what: kept[what] for what in both}, here)


def refuse_middle(version: str, differs: list[str]) -> None:
    """Raises CannotResume if the data differ; for a version from the middle of an epoch."""
    if differs:
        raise CannotResume(
            f"{version} lies in the middle of an epoch whose data were others: "
            + ", ".join(differs),
            hint="pass the same data and batch size, or resume from the end of an epoch",
        )


class Drawing:
    """``seen``: whether numbers were drawn between the last ``watch`` and the ``look`` after it."""

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


def compare(
    kept: Sequence[Mapping[str, Any]], loaders: Sequence[Any], *, middle: bool
) -> list[str]:
    """What differs of the loaders' amounts of data; raises as ``refuse_middle`` with ``middle``."""
    pairs = zip(kept, loaders, strict=False)  # a version may have none
    found = [line for then, loader in pairs for line in changed(then, sizes(loader))]
    if middle:
        refuse_middle("the version", found)
    return found


def order_seed(loader: Any) -> int | None:
    """The seed of the order of accelerate's own sampler. None for other samplers."""
    seed = getattr(_sampler(loader), "initial_seed", None)
    return seed if isinstance(seed, int) else None


def set_order_seed(loader: Any, seed: int | None) -> None:
    """Sets the seed of the order of accelerate's own sampler; None changes nothing."""
    if seed is not None and order_seed(loader) is not None:
        _sampler(loader).initial_seed = seed


def order_generator(loader: Any) -> torch.Generator | None:
    """The generator from which a sampler or loader of the program's own draws its order."""
    if order_seed(loader) is not None:
        return None  # seeded anew in every epoch
    found = (getattr(holder, "generator", None) for holder in (_sampler(loader), loader))
    return next((generator for generator in found if isinstance(generator, torch.Generator)), None)


def _sampler(loader: Any) -> Any:
    """What gives the order, under the wrappers that cut it in batches and among processes."""
    at: Any = getattr(loader, "batch_sampler", None)
    if at is None:
        at = getattr(loader, "sampler", None)
    while getattr(at, "batch_sampler", None) is not None:
        at = at.batch_sampler
    return getattr(at, "sampler", at)


def saved_bytes(value: Any) -> bytes:
    """What ``torch.save`` makes of a value."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()
