"""Resumes a Lightning training inside an epoch, with the same order of batches.

When an epoch begins, a loader that shuffles draws random numbers twice: a base seed when its
iterator is created, and the order when the first batch is fetched. ``Order`` records the states of
the random generators at these two moments. To resume inside an epoch, ``Order`` sets the generators
to the recorded states, so that the loader draws the same order, and skips the batches that the
model was trained with. Then ``Order`` sets the generators to the states at the recorded version.

Only this module uses private names of Lightning (2.6). Lightning has no hook at these two moments.
So ``Order`` wraps two private methods of the loops during a ``fit``: the method that Lightning
calls just before the first iterator is created, and the start of an epoch's loop, which creates all
later iterators.
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
"""What follows a recorded version: another batch, or a new epoch."""

_WARNING = "You're resuming from a checkpoint that ended before the epoch ended"
_NEEDED = ("_load_combined_loader_states", "is_resuming", "reset_restart_stage")


def comes_next(trainer: Any) -> str:
    """What Lightning does after the batch that has just ended."""
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    if isinstance(fetcher, _DataLoaderIterDataFetcher):
        return "a batch that training_step fetches itself"
    if loop.batch_progress.is_last_batch:
        return "the end of the epoch"
    return "a validation" if loop._should_check_val_fx(fetcher) else BATCH


def checkpoint_of(trainer: Any) -> dict[str, Any]:
    """Lightning's checkpoint, after all hooks."""
    checkpoint: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return checkpoint


def begin(loop: Any, *, middle: bool) -> None:
    """Makes the fit loop, whose states were restored, run as if no checkpoint had been loaded.

    ``middle``: whether training resumes inside an epoch.
    """
    loop._restarting = False
    if middle:  # with the changes below, Lightning would skip schedulers that monitor a metric
        return
    # The fields are set directly: the property ``restarting`` would stay true with ``max_steps``.
    loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
    loop.reset_restart_stage()
    for inner in vars(loop).values():
        if isinstance(inner, _Loop):
            begin(inner, middle=False)


class Order:
    """Records and restores the random states from which a ``fit`` draws the order of batches.

    Call ``release`` after the ``fit``.
    """

    def __init__(self, trainer: Any) -> None:
        self._loop = loop = trainer.fit_loop
        if not all(hasattr(loop, name) for name in _NEEDED):
            raise NotInstalled(
                f"MVCCallback needs Lightning 2.6 or newer, this is {lightning.__version__}",
                hint="pip install -U lightning",
            )
        self._iterator: dict[str, Any] | None = None
        self._first: dict[str, Any] | None = None
        # The arguments of ``resume``, until the loop of the version's epoch starts.
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
        """The present states of the global random generators and of the loaders' generators."""
        return {"rng": rng_state(), "own": self._own()}

    def _own(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators()]

    def _generators(self) -> list[torch.Generator]:
        generators: dict[int, Any] = {}
        for loader in self._loaders():
            batches = getattr(loader, "batch_sampler", None)
            sampler, inner = getattr(loader, "sampler", None), getattr(batches, "sampler", None)
            for owner in (loader, sampler, batches, inner):
                generator = getattr(owner, "generator", None)
                generators.setdefault(id(generator), generator)
        return [one for one in generators.values() if isinstance(one, torch.Generator)]

    def _loaders(self) -> list[Any]:
        combined = self._loop._combined_loader
        return [] if combined is None else list(combined.flattened)

    def state(self) -> dict[str, Any]:
        """The data for ``resume``.

        Contains the states of the random generators now and at the two moments that the module's
        docstring describes, and the amounts of data of the loaders.
        """
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
        """How many batches the Trainer uses per epoch; None for all."""
        limit = self._loop.max_batches
        return {"batches that the Trainer takes": limit if isinstance(limit, int) else None}

    def check_sizes(self, recorded: Mapping[str, Any], *, middle: bool) -> list[str]:
        """How the amount of data differs from the recorded amount.

        ``middle``: whether training resumes inside an epoch. If so, a difference raises
        CannotResume.
        """
        differences = compare(recorded.get("sizes", []), self._loaders(), middle=middle)
        return differences or changed(recorded.get("limit", {}), self._limit())

    def resume(self, recorded: Mapping[str, Any], rng: Mapping[str, Any], *, middle: bool) -> None:
        """Sets the random generators to the states in ``recorded`` (from ``state``) and ``rng``.

        ``middle``: whether training resumes inside an epoch. If so, the generators are set when the
        loop of the epoch starts.
        """
        if middle:
            self._entering = recorded, rng
            self._suppress_warning()
        else:
            self._set(recorded["now"], rng)

    def _suppress_warning(self) -> None:
        """Suppresses Lightning's warning that it cannot resume inside an epoch.

        The warning is wrong here: this module resumes exactly.
        """
        epoch = self._loop.epoch_loop
        reset = epoch.reset

        def quietly() -> None:
            del epoch.reset
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=_WARNING)
                reset()

        epoch.reset = quietly

    def _enter(self, recorded: Mapping[str, Any], rng: Mapping[str, Any], fetcher: Any) -> None:
        if not all(recorded["stateful"]):
            done = self._loop.epoch_loop.batch_progress.current.ready
            self._set(recorded["iterator"]["own"], recorded["iterator"]["rng"])
            iter(fetcher)
            self._set(recorded["first"]["own"], recorded["first"]["rng"])
            for _ in range(done):
                next(fetcher)
            self._iterator, self._first = recorded["iterator"], recorded["first"]
        self._set(recorded["now"], rng)

    def _set(self, own: list[torch.Tensor], rng: Mapping[str, Any]) -> None:
        generators = self._generators()
        if len(generators) != len(own):
            raise CannotResume(
                f"the recorded loaders had {len(own)} generators, these have {len(generators)}",
                hint="create the loaders as in the recorded training",
            )
        for generator, state in zip(generators, own, strict=True):
            generator.set_state(state)
        set_rng_state(rng)


def check_draws(recorded: Mapping[str, Any]) -> None:
    """Raises CannotResume if training cannot resume inside the recorded epoch."""
    if all(recorded["stateful"]):  # Lightning itself restores stateful loaders
        return
    if len(recorded["stateful"]) > 1:
        raise CannotResume(
            "the version is inside an epoch with several training loaders, "
            "whose orders cannot be reproduced together",
            hint="resume from the last version of an epoch",
        )
    for moment in ("iterator", "first"):
        check_rng(recorded[moment]["rng"] if recorded[moment] else None)
