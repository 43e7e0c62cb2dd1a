"""Lightning's loops: what comes next, how an epoch's order was drawn, and drawing it again.

A loader that shuffles draws its order from a generator when the epoch begins: a base seed as
its iterator is made, the order itself when the first batch is fetched. To enter an epoch in the
middle takes the generators of these two moments, then leaves out the batches that were trained
on, then takes the generators as they were after the last of them.

Only this module uses private names of Lightning (of 2.6). There is no hook at either moment, so
two methods of the loops are wrapped while a ``fit`` runs: what is called just before the first
iterator is made, and the start of an epoch's loop, which makes the later ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import lightning
import torch
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.loop import _Loop

from mvc.errors import CannotResume, NotInstalled
from mvc.frameworks.common.data import Sizes, changed, compare, sizes
from mvc.training.state.rng import check_rng, rng_state, set_rng_state

BATCH = "batch"
EPOCH = "epoch"
"""What comes after a version: another batch, or a new epoch."""

_WARNING = "You're resuming from a checkpoint that ended before the epoch ended"
_NEEDED = ("_load_combined_loader_states", "is_resuming", "reset_restart_stage")


def comes_next(trainer: Any) -> str:
    """What Lightning does after the batch that has just ended."""
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    if isinstance(fetcher, _DataLoaderIterDataFetcher):
        return "what training_step fetches itself"
    if loop.batch_progress.is_last_batch:
        return "the end of the epoch"
    return "a validation" if loop._should_check_val_fx(fetcher) else BATCH


def checkpoint_of(trainer: Any) -> dict[str, Any]:
    """What Lightning would put in a checkpoint, after all hooks."""
    made: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return made


def begin(loop: Any, *, middle: bool) -> None:
    """Has the fit loop, its states restored, run as if nothing had been loaded."""
    loop._restarting = False
    if middle:  # but schedulers that watch a metric would be left out at the end of the epoch
        return
    # By its fields, because the setter of ``restarting`` says yes whenever ``max_steps`` is given.
    loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
    loop.reset_restart_stage()
    for inner in vars(loop).values():
        if isinstance(inner, _Loop):
            begin(inner, middle=False)


class Order:
    """Watches the orders that one ``fit`` draws until ``release``."""

    def __init__(self, trainer: Any) -> None:
        self._loop = loop = trainer.fit_loop
        if not all(hasattr(loop, name) for name in _NEEDED):
            raise NotInstalled(
                f"MVCCallback needs Lightning 2.6 or newer, this is {lightning.__version__}",
                hint="pip install -U lightning",
            )
        self._iterator: dict[str, Any] | None = None
        self._first: dict[str, Any] | None = None
        # Order and generators of a version, until its epoch is entered in the middle.
        self._entering: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
        ready, start = loop._load_combined_loader_states, loop.epoch_loop.on_run_start

        def loaders_ready() -> None:
            ready()
            self._iterator = self._draw()

        def on_run_start(fetcher: Any) -> None:
            before, present = self._draw(), loop._combined_loader._iterator
            start(fetcher)
            if loop._combined_loader._iterator is not present:
                self._iterator = before
            self._first = self._draw()
            entering, self._entering = self._entering, None
            if entering is not None:
                self._enter(*entering, fetcher)

        loop._load_combined_loader_states = loaders_ready
        loop.epoch_loop.on_run_start = on_run_start

    def release(self) -> None:
        vars(self._loop).pop("_load_combined_loader_states", None)
        for name in ("on_run_start", "reset"):
            vars(self._loop.epoch_loop).pop(name, None)

    def _draw(self) -> dict[str, Any]:
        """The global generators and those of the loaders, at this moment."""
        return {"rng": rng_state(), "own": self._own()}

    def _own(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators()]

    def _generators(self) -> list[torch.Generator]:
        found: dict[int, Any] = {}
        for loader in self._loaders():
            batches = getattr(loader, "batch_sampler", None)
            sampler, inner = getattr(loader, "sampler", None), getattr(batches, "sampler", None)
            for owner in (loader, sampler, batches, inner):
                generator = getattr(owner, "generator", None)
                found.setdefault(id(generator), generator)
        return [one for one in found.values() if isinstance(one, torch.Generator)]

    def _loaders(self) -> list[Any]:
        combined = self._loop._combined_loader
        return [] if combined is None else list(combined.flattened)

    def state(self) -> dict[str, Any]:
        """What ``go_on`` needs: generators now and at both moments, the loaders there are."""
        loaders = self._loaders()
        return {
            "now": self._own(),
            "iterator": self._iterator,
            "first": self._first,
            "stateful": [hasattr(loader, "load_state_dict") for loader in loaders],
            "sizes": [sizes(loader) for loader in loaders],
            "limit": self._limit(),
        }

    def _limit(self) -> Sizes:
        """The batches that the Trainer takes of an epoch; None where it takes all there are."""
        limit = self._loop.max_batches
        return {"batches that the Trainer takes": limit if isinstance(limit, int) else None}

    def check_sizes(self, kept: Mapping[str, Any], *, middle: bool) -> list[str]:
        """What differs of the data's amount; CannotResume if an epoch is entered in its middle."""
        found = compare(kept.get("sizes", []), self._loaders(), middle=middle)
        return found or changed(kept.get("limit", {}), self._limit())

    def go_on(self, kept: Mapping[str, Any], rng: Mapping[str, Any], *, middle: bool) -> None:
        """Has the next epoch begin with the generators as they were.

        With ``middle`` the epoch is entered where Lightning's loop says it was left.
        """
        if middle:
            self._entering = kept, rng
            self._hush()
        else:
            self._set(kept["now"], rng)

    def _hush(self) -> None:
        """The epoch is entered exactly, of which Lightning warns that it cannot know."""
        epoch = self._loop.epoch_loop
        reset = epoch.reset

        def quietly() -> None:
            del epoch.reset
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=_WARNING)
                reset()

        epoch.reset = quietly

    def _enter(self, kept: Mapping[str, Any], rng: Mapping[str, Any], fetcher: Any) -> None:
        if not all(kept["stateful"]):
            done = self._loop.epoch_loop.batch_progress.current.ready
            self._set(kept["iterator"]["own"], kept["iterator"]["rng"])
            iter(fetcher)
            self._set(kept["first"]["own"], kept["first"]["rng"])
            for _ in range(done):
                next(fetcher)
            self._iterator, self._first = kept["iterator"], kept["first"]
        self._set(kept["now"], rng)

    def _set(self, own: list[torch.Tensor], rng: Mapping[str, Any]) -> None:
        generators = self._generators()
        if len(generators) != len(own):
            raise CannotResume(
                f"the training's loaders had {len(own)} generators of their own, "
                f"here they have {len(generators)}",
                hint="make the loaders as they were made before",
            )
        for generator, state in zip(generators, own, strict=True):
            generator.set_state(state)
        set_rng_state(rng)


def check_draws(kept: Mapping[str, Any]) -> None:
    """Raises CannotResume where an epoch cannot be entered in the middle."""
    if all(kept["stateful"]):  # Lightning itself sets such loaders back
        return
    if len(kept["stateful"]) > 1:
        raise CannotResume(
            "the version lies in the middle of an epoch with several training loaders, "
            "whose orders cannot be drawn again together",
            hint="resume from the last version of an epoch",
        )
    for moment in ("iterator", "first"):
        check_rng(kept[moment]["rng"] if kept[moment] else None)
