"""Facts about data loaders that are needed to resume a training inside an epoch.

A resumed training skips the batches that the interrupted epoch has used. This works only if the
number of rows and the batch size have not changed (``compare``). The rows must be shuffled as
before (``order_seed``, ``order_generator``). If the data draws random numbers, for example for
masks (``Drawing``), the batches after the resume differ from the batches of an uninterrupted
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
    """The number of rows, the batch size and the number of batches of a loader.

    ``loader``: an object like torch's DataLoader. An unknown size is None.
    """
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
    """A text for each recorded value that differs now, for example ``rows: 310, not 320``."""
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
    """Raises CannotResume if ``differs``, the result of ``changed``, is not empty.

    ``version``: name of the version, which is inside an epoch.
    """
    if differs:
        raise CannotResume(
            f"{version} is inside an epoch, and the data have changed: " + ", ".join(differs),
            hint="pass the same data and batch size, or resume from the end of an epoch",
        )


class Drawing:
    """Detects whether fetching a batch draws from the global random generators.

    Call ``watch`` before a batch is fetched, and ``check`` afterwards. ``seen``: whether any batch
    has drawn random numbers.
    """

    def __init__(self, *, seen: bool = False) -> None:
        self.seen = seen
        self._before: tuple[object, ...] | None = None

    def watch(self) -> None:
        """Remembers the states of the random generators."""
        self._before = None if self.seen else _generators()

    def forget(self) -> None:
        """Call this if other code may draw random numbers before ``check``: cancels ``watch``."""
        self._before = None

    def check(self) -> None:
        """Sets ``seen`` if random numbers were drawn since ``watch``."""
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
    """A text for each size of the loaders that differs from the recorded size.

    With ``middle`` (the version is inside an epoch), raises CannotResume if a size differs.
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
    """The torch.Generator that shuffles the rows. None for accelerate's own sampler, or if no
    sampler or loader has a generator.
    """
    if order_seed(loader) is not None:
        return None  # accelerate's sampler is seeded again in every epoch
    generators = (getattr(holder, "generator", None) for holder in (_sampler(loader), loader))
    return next(
        (generator for generator in generators if isinstance(generator, torch.Generator)), None
    )


def _sampler(loader: Any) -> Any:
    """The sampler of the rows, without the wrappers for batches or for several processes."""
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
