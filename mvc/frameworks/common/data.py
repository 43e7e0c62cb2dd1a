"""The data of a training: its amount, how its order is drawn, and whether it draws random numbers.

To resume inside an epoch, the rows that the interrupted epoch has used must be known. These rows
are unknown if the number of rows or the batch size has changed. Samples or collators may draw from
the global random generators, for example for random masks. Then a batch depends on numbers that
were drawn long before its use, because loaders prefetch. If the used batches are skipped without
being loaded, these numbers are not drawn, and later batches differ from those of an uninterrupted
training.
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
    """The sizes of a loader with the interface of torch's DataLoader. An unknown size is None."""
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
    """Texts about values that differ, for example ``rows: 310, not 320``."""
    return [
        f"{name}: {current.get(name)}, not {value}"
        for name, value in recorded.items()
        if current.get(name) != value
    ]


def changed(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """As ``unlike``, but only for values that are known (not None) in both mappings."""
    both = [name for name in recorded if None not in (recorded[name], current.get(name))]
    return unlike({name: recorded[name] for name in both}, current)


def refuse_middle(version: str, differs: list[str]) -> None:
    """For a version inside an epoch: raises CannotResume if the amount of data differs."""
    if differs:
        raise CannotResume(
            f"{version} is inside an epoch, and the data have changed: " + ", ".join(differs),
            hint="pass the same data and batch size, or resume from the end of an epoch",
        )


class Drawing:
    """Detects whether data draws random numbers.

    ``seen``: whether numbers were drawn between a call of ``watch`` and the next ``check``.
    """

    def __init__(self, *, seen: bool = False) -> None:
        self.seen = seen
        self._before: tuple[object, ...] | None = None

    def watch(self) -> None:
        """Call it when, from now on, only the data can draw random numbers."""
        self._before = None if self.seen else _generators()

    def forget(self) -> None:
        """Call it before code other than the data draws random numbers."""
        self._before = None

    def check(self) -> None:
        """Call it after the next batch was fetched. Sets ``seen`` if random numbers were drawn."""
        if self._before is not None and self._before != _generators():
            self.seen = True
        self._before = None


def _generators() -> tuple[object, ...]:
    """The states of the CPU's random generators, comparable with ``==``."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    drawn = torch.get_rng_state().numpy().tobytes()
    return drawn, kind, np.asarray(keys).tobytes(), *rest, random.getstate()


def compare(
    recorded: Sequence[Mapping[str, Any]], loaders: Sequence[Any], *, middle: bool
) -> list[str]:
    """How the loaders' amounts of data differ from the recorded ones.

    With ``middle`` (inside an epoch), raises CannotResume if the amounts differ.
    """
    pairs = zip(recorded, loaders, strict=False)  # an old version may have no sizes
    differences = [line for then, loader in pairs for line in changed(then, sizes(loader))]
    if middle:
        refuse_middle("the version", differences)
    return differences


def order_seed(loader: Any) -> int | None:
    """The seed of accelerate's own sampler. None for all other samplers."""
    seed = getattr(_sampler(loader), "initial_seed", None)
    return seed if isinstance(seed, int) else None


def set_order_seed(loader: Any, seed: int | None) -> None:
    """Sets the seed of accelerate's own sampler. Does nothing if ``seed`` is None."""
    if seed is not None and order_seed(loader) is not None:
        _sampler(loader).initial_seed = seed


def order_generator(loader: Any) -> torch.Generator | None:
    """The generator from which the program's own sampler or loader draws its order."""
    if order_seed(loader) is not None:
        return None  # accelerate's sampler is seeded again in every epoch
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
