"""The data of a training: its amount, how its order is drawn, and whether it draws random numbers.

If the number of rows or the batch size changes, the rows that an interrupted epoch has used are
unknown. If samples or collators draw from the global generators (random masks), a batch depends on
numbers that were drawn long before its use, because loaders prefetch. If batches are then skipped
without being loaded, later batches differ.
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
    """The sizes of a loader with torch's interface; None for an unknown size."""
    batch = getattr(loader, "batch_size", None)
    if batch is None:
        batch = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return {
        "rows": _length(getattr(loader, "dataset", None)),
        "batch size": batch if type(batch) is int else None,
        "batches an epoch": _length(loader),
    }


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (AttributeError, TypeError, NotImplementedError):
        return None


def unlike(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Values that differ, such as ``rows: 310, not 320``."""
    return [
        f"{name}: {current.get(name)}, not {value}"
        for name, value in recorded.items()
        if current.get(name) != value
    ]


def changed(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """``unlike`` for the values known on both sides (not None)."""
    both = [name for name in recorded if None not in (recorded[name], current.get(name))]
    return unlike({name: recorded[name] for name in both}, current)


def refuse_middle(version: str, differs: list[str]) -> None:
    """Raises CannotResume if the amount of data differs, for a version inside an epoch."""
    if differs:
        raise CannotResume(
            f"{version} is inside an epoch, and the data have changed: " + ", ".join(differs),
            hint="pass the same data and batch size, or resume from the end of an epoch",
        )


class Drawing:
    """``seen``: whether random numbers were drawn between a ``watch`` and the next ``check``."""

    def __init__(self, *, seen: bool = False) -> None:
        self.seen = seen
        self._before: tuple[object, ...] | None = None

    def watch(self) -> None:
        """Call it at the moment from which on only the data can draw."""
        self._before = None if self.seen else _generators()

    def forget(self) -> None:
        """Call it before other code draws."""
        self._before = None

    def check(self) -> None:
        """Call it after fetching the next batches. Sets ``seen`` if numbers were drawn."""
        if self._before is not None and self._before != _generators():
            self.seen = True
        self._before = None


def _generators() -> tuple[object, ...]:
    """The states of the CPU generators, comparable with ``==``."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    drawn = torch.get_rng_state().numpy().tobytes()
    return drawn, kind, np.asarray(keys).tobytes(), *rest, random.getstate()


def compare(
    recorded: Sequence[Mapping[str, Any]], loaders: Sequence[Any], *, middle: bool
) -> list[str]:
    """Differences in the loaders' amounts of data. With ``middle``, raises as ``refuse_middle``
    does.
    """
    pairs = zip(recorded, loaders, strict=False)  # a version may have no sizes
    differences = [line for then, loader in pairs for line in changed(then, sizes(loader))]
    if middle:
        refuse_middle("the version", differences)
    return differences


def order_seed(loader: Any) -> int | None:
    """The seed of accelerate's own sampler; None for other samplers."""
    seed = getattr(_sampler(loader), "initial_seed", None)
    return seed if isinstance(seed, int) else None


def set_order_seed(loader: Any, seed: int | None) -> None:
    """Sets the seed of accelerate's own sampler; None changes nothing."""
    if seed is not None and order_seed(loader) is not None:
        _sampler(loader).initial_seed = seed


def order_generator(loader: Any) -> torch.Generator | None:
    """The generator from which the program's own sampler or loader draws its order."""
    if order_seed(loader) is not None:
        return None  # seeded again in every epoch
    generators = (getattr(holder, "generator", None) for holder in (_sampler(loader), loader))
    return next(
        (generator for generator in generators if isinstance(generator, torch.Generator)), None
    )


def _sampler(loader: Any) -> Any:
    """The sampler inside the wrappers that batch it or distribute it among processes."""
    sampler: Any = getattr(loader, "batch_sampler", None)
    if sampler is None:
        sampler = getattr(loader, "sampler", None)
    while getattr(sampler, "batch_sampler", None) is not None:
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", sampler)


def saved_bytes(value: Any) -> bytes:
    """``value`` as bytes of ``torch.save``."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()
