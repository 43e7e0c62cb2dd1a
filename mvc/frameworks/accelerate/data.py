"""Where a training stands in its data, so that an epoch can be entered in the middle.

The order of an epoch is drawn as it begins, and so is a number for the workers. To have the
same order again the generators are set to what they were then, the batches that were done are
skipped without being made, and the generators are set to what they were at the save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from msgspec import Struct

from mvc.errors import WrongUsage
from mvc.frameworks.accelerate.prepared import prepared
from mvc.frameworks.common import data
from mvc.training.state.rng import rng_state, set_rng_state


class _Position(Struct):
    """Of one loader: epochs begun before, batches ``done`` of the present one.

    ``rng``: the global generators as the epoch began; None between epochs. ``order``: the
    state of the loader's own generator then. ``restored``: what the global ones are once an
    epoch that was kept has been entered again.
    """

    epoch: int = 0
    done: int = 0
    rng: Mapping[str, Any] | None = None
    order: torch.Tensor | None = None
    restored: Mapping[str, Any] | None = None


class Epochs:
    """Positions of all prepared loaders; ``drawing``: whether batches were seen to draw numbers."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._positions: dict[int, _Position] = {}
        self.drawing = data.Drawing()

    def epoch(self, loader: Any) -> int:
        """The number of the epoch that ``batches`` would give now, from 0."""
        at = self._position(loader)
        return at.epoch + (at.rng is not None and at.restored is None)

    def batches(self, loader: Any) -> Iterator[Any]:
        """The batches of an epoch, or its remaining batches after ``restore``."""
        position = self._position(loader)
        position.epoch = self.epoch(loader)
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(position.epoch)
        restored, position.restored = position.restored, None
        if restored is not None and position.rng is not None:
            set_rng_state(position.rng)
            loader = self._accelerator.skip_first_batches(loader, position.done)
        else:
            position.rng, position.done = rng_state(), 0
            position.order = _order(loader)
        batches = iter(loader)
        batch = next(batches, self)
        if restored is not None:
            set_rng_state(restored)
        while batch is not self:
            position.done += 1
            yield batch
            self.drawing.watch()
            batch = next(batches, self)
            self.drawing.look()
        position.epoch, position.done, position.rng = position.epoch + 1, 0, None

    def state(self) -> list[dict[str, Any]]:
        """The position of each loader, for a version."""
        return [self._state(loader) for loader in prepared(self._accelerator, "dataloaders")]

    def _state(self, loader: Any) -> dict[str, Any]:
        at = self._position(loader)
        stateful = getattr(loader, "use_stateful_dataloader", False)
        return {
            "epoch": at.epoch,
            "done": at.done,
            "rng": at.rng,
            "order": _order(loader) if at.rng is None else at.order,
            "order_seed": data.order_seed(loader),
            "loader": loader.state_dict() if stateful else None,
            "sizes": data.sizes(loader),
        }

    def check_sizes(self, kept: list[Mapping[str, Any]]) -> list[str]:
        """What differs of the data's amount; CannotResume if that is in the middle of an epoch."""
        loaders = prepared(self._accelerator, "dataloaders")
        return [
            line
            for loader, at in zip(loaders, kept, strict=True)
            for line in data.compare([at.get("sizes", {})], [loader], middle=at["rng"] is not None)
        ]

    def restore(self, kept: list[Any], rng: Mapping[str, Any], *, draws: bool) -> None:
        """Sets the positions; ``rng`` are the generators at the save."""
        for loader, at in zip(prepared(self._accelerator, "dataloaders"), kept, strict=True):
            inside = None if at["rng"] is None else rng
            self._positions[id(loader)] = _Position(
                epoch=at["epoch"],
                done=at["done"],
                rng=at["rng"],
                order=at["order"],
                restored=inside,
            )
            generator = data.order_generator(loader)
            if generator is not None and at["order"] is not None:
                generator.set_state(at["order"])
            data.set_order_seed(loader, at["order_seed"])
            if at["loader"] is not None and getattr(loader, "use_stateful_dataloader", False):
                loader.load_state_dict(at["loader"])
        self.drawing = data.Drawing(seen=draws)

    def _position(self, loader: Any) -> _Position:
        if not any(loader is known for known in prepared(self._accelerator, "dataloaders")):
            raise WrongUsage("this loader was not prepared", hint="accelerator.prepare(loader)")
        return self._positions.setdefault(id(loader), _Position())


def _order(loader: Any) -> torch.Tensor | None:
    generator = data.order_generator(loader)
    return generator.get_state() if generator is not None else None
