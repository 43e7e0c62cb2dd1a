"""``attach(accelerator, repo)``: what ``accelerator.save_state`` saves becomes a version as well.

Accelerate's own hook is called before files are written, so the version is made of the states
themselves: models, optimizers, schedulers, scaler, random generators, positions in the data,
registered objects. Version and folder have the same content, unless a lossy pipeline makes
production weights for the version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import accelerate
import torch
from accelerate.state import PartialState
from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import CannotResume, NotInstalled, WrongUsage
from mvc.frameworks.common import data
from mvc.frameworks.common.hyper_parameters import hyper_parameters
from mvc.frameworks.common.ranks import refuse_sharded, rng_of_others
from mvc.frameworks.common.recording import Records, refuse_data, stage_by_loss
from mvc.frameworks.common.repository import AnyRepository
from mvc.frameworks.common.resume import alone, check_schedulers, load_with_optimizers, several
from mvc.ids import CommitId
from mvc.training import resume
from mvc.training.checks import RecorderKeywords, RecorderOptions
from mvc.training.resume import Resumed
from mvc.training.state.component_types import component_type
from mvc.training.state.optimizers import optimizer_state
from mvc.training.state.parts import TrainingParts, no_weights
from mvc.training.state.rng import check_rng, rng_state, set_rng_state

_BY = resume.RecordedBy(name="accelerate", part="accelerate")


class Attached(Records):
    """Makes a version of every ``save_state`` from now on, until ``close``; ``load`` restores one.

    ``repo`` is an open Repository, or the path of an existing one. With ``wait`` the version is
    durable when ``save_state`` returns, without it is on its way. The other options are those
    of ``mvc.Recorder``, which also calls ``exact``, ``model_state`` and ``training_state``. Raises
    WrongUsage where no process holds the whole model, and for a pipeline that decides whether to
    save: ``save_state`` is told to.
    """

    weights = True

    def __init__(
        self,
        accelerator: Any,
        repo: AnyRepository,
        *,
        wait: bool = True,
        **options: Unpack[RecorderKeywords],
    ) -> None:
        refuse_sharded()
        chosen = self._take_options(repo, options)
        _check_stages(chosen)
        # The branch is that of now, not of the first save.
        self._options = replace(chosen, branch=self.repo.head(chosen.branch).branch)
        self.saves = 0
        self._origin: CommitId | None = None
        self._accelerator = accelerator
        self._wait = wait
        self._epochs = Epochs(accelerator)
        self._others: list[dict[str, Any]] = []  # the generators of the other processes
        self._hook = accelerator.register_save_state_pre_hook(self._on_save)

    def _on_save(self, _models: Any, _weights: Any, _output_dir: Any) -> None:
        """Accelerate's hook; every process calls it, the first one writes."""
        self.saves += 1
        self._others = rng_of_others()
        if not self._accelerator.is_main_process:
            return
        if self._recorder is None:
            hyper = _hyper(self._accelerator)
            start, origin = self.saves - 1, self._origin
            self._begin(self, start=start, origin=origin, hyper=hyper)
        self._step(self.saves)
        if self._wait:
            self.flush()

    def exact(self) -> list[str]:
        return no_weights(model_of(self._accelerator))

    def model_state(self) -> dict[str, Any]:
        return dict(model_of(self._accelerator).state_dict())

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """Everything else; ``step`` is the number of the save."""
        accelerator = self._accelerator
        model, schedulers = model_of(accelerator), prepared(accelerator, "schedulers")
        states = [optimizer_state(model, one) for one in optimizers_of(accelerator)]
        optimizer, optimizers = alone(states)
        kinds = [component_type(one) for one in schedulers]
        state = TrainingParts(model, scaler=accelerator.scaler).training_state(step, batch)
        scheduler, others = alone([one.state_dict() for one in schedulers])
        return {
            **state,
            "kinds": {**state["kinds"], "scheduler": alone(kinds)[0]},
            "optimizer": optimizer,
            "scheduler": scheduler,
            "accelerate": {
                "step": accelerator.step,
                "processes": accelerator.num_processes,
                "others": self._others,
                "optimizers": optimizers,
                "schedulers": others,
                "kinds": kinds,
                "objects": [one.state_dict() for one in prepared(accelerator, "custom_objects")],
                "loaders": self._epochs.state(),
                "draws": self._epochs.drawing.seen,
                # Accumulated and not yet applied; accelerate does not save them.
                "gradients": {
                    name: parameter.grad
                    for name, parameter in model.named_parameters()
                    if parameter.grad is not None and not accelerator.sync_gradients
                },
            },
        }

    def close(self) -> None:
        """Removes the hook and completes the queued versions."""
        self._hook.remove()
        super().close()

    def batches(self, loader: Any) -> Iterator[Any]:
        """One epoch of a prepared loader; after ``load`` what was left of the one kept.

        An epoch that is left by ``break`` counts as begun: the next call begins another one,
        but after ``load`` what was left of it comes first.
        """
        return self._epochs.batches(loader)

    def epoch(self, loader: Any) -> int:
        """The number of the epoch that ``batches`` would give now, from 0."""
        return self._epochs.epoch(loader)

    def load(self, rev: str | CommitId | None = None) -> Resumed:
        """Sets everything that ``save_state`` saves to a version, by default the branch's newest.

        ``Resumed.step`` is the number of the save. Raises CannotResume where the version does
        not fit what was prepared and registered; then nothing has changed.
        """
        commit, name = self._find(rev), self._options.name
        kept = resume.training_state(self.repo, commit, name, by=_BY)
        weights = resume.training_weights(self.repo, commit, name, kept)
        differs = self._restore(commit, kept, weights)
        self.saves, self._origin = kept["step"], commit
        return Resumed(commit, kept["step"], kept["batch"], tuple(differs))

    def _restore(self, commit: CommitId, kept: Any, weights: Mapping[str, Any]) -> list[str]:
        """Restores a version, after all checks; returns what is not as it was then."""
        saved, accelerator, epochs = kept["accelerate"], self._accelerator, self._epochs
        states = {
            **saved,
            "optimizers": several(kept["optimizer"], saved["optimizers"]),
            "schedulers": several(kept["scheduler"], saved["schedulers"]),
        }
        live = {
            "optimizers": optimizers_of(accelerator),
            "schedulers": prepared(accelerator, "schedulers"),
            "objects": prepared(accelerator, "custom_objects"),
            "loaders": prepared(accelerator, "dataloaders"),
        }
        for what, objects in live.items():
            if len(states[what]) != len(objects):
                raise CannotResume(
                    f"{commit.short} has {len(states[what])} {what}, here are {len(objects)}",
                    hint="prepare and register the same things in the same order",
                )
        if (kept["scaler"] is None) != (accelerator.scaler is None):
            raise CannotResume("gradients were scaled then or are now, but not both")
        differs = [
            *resume.differences(kept["setting"]),
            *resume.check_types(kept, scaler=accelerator.scaler),
            *check_schedulers(saved.get("kinds", []), live["schedulers"]),
            *epochs.check_sizes(saved["loaders"]),
        ]
        rng = _of_this_process([kept["rng"], *saved["others"]])
        check_rng(rng)
        model = model_of(accelerator)
        resume.check_model(model, weights, kept)

        optimizers = zip(live["optimizers"], states["optimizers"], strict=True)
        load_with_optimizers(model, weights, kept["buffers"], optimizers)
        for key, parameter in model.named_parameters():
            gradient = saved["gradients"].get(key)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for what in ("schedulers", "objects"):
            for obj, state in zip(live[what], states[what], strict=True):
                obj.load_state_dict(resume.typed_as(obj.state_dict(), state))
        if accelerator.scaler is not None:
            accelerator.scaler.load_state_dict(kept["scaler"])
        accelerator.step = saved["step"]
        set_rng_state(rng)
        epochs.restore(saved["loaders"], rng, draws=saved["draws"])
        then, now = saved["processes"], accelerator.num_processes
        reasons = {
            f"processes: {now}, not {then}": then != now,
            "pending gradients: only those of the first process were kept": then > 1
            and saved["gradients"],
            "data: the next batches draw random numbers of their own": saved["draws"]
            and any(loader["done"] for loader in saved["loaders"]),
        }
        return [*differs, *(reason for reason, applies in reasons.items() if applies)]


attach = Attached


def _hyper(accelerator: Any) -> dict[str, str]:
    """What the optimizers were made with, and how accelerate trains."""
    names = ("gradient_accumulation_steps", "mixed_precision", "num_processes")
    optimizers = [getattr(one, "defaults", None) for one in optimizers_of(accelerator)]
    several = len(optimizers) > 1
    named = [(f"optimizer.{n}" if several else "optimizer", o) for n, o in enumerate(optimizers)]
    own = {name: getattr(accelerator, name, None) for name in names}
    return hyper_parameters(*named, ("", own))


def _of_this_process(states: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The stored generators of this process, or of the first one if fewer processes saved."""
    index = PartialState().process_index
    return states[index if index < len(states) else 0]


def _check_stages(options: RecorderOptions) -> None:
    """Raises WrongUsage for a pipeline that may skip a save, or asks for an unknown loss."""
    decides = options.stages.decisions
    if decides:
        raise WrongUsage(
            f"stage {decides[0].text} decides whether there is a version, "
            "but save_state always saves",
            hint="leave it out",
        )
    refuse_data(options, "save_state does not show it")
    stage = stage_by_loss(options)
    if stage is not None and options.metrics is None:
        raise WrongUsage(
            f"stage {stage} goes by the loss, which save_state does not know",
            hint='pass metrics=lambda: {"loss": ...}',
        )


# -- where a training stands in its data, so that an epoch can be entered in the middle
#
# The order of an epoch is drawn as it begins, and so is a number for the workers. To have the
# same order again the generators are set to what they were then, the batches that were done are
# skipped without being made, and the generators are set to what they were at the save.


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


# -- what an accelerator has prepared, by private names of accelerate (of 1.15) ------------------


def prepared(accelerator: Any, what: str) -> list[Any]:
    """The ``models``, ``optimizers``, ``schedulers``, ``dataloaders`` or ``custom_objects``."""
    found = getattr(accelerator, f"_{what}", None)
    if not isinstance(found, list):
        raise NotInstalled(
            f"mvc needs accelerate 1.15, and {accelerate.__version__} keeps its {what} elsewhere",
            hint="pip install accelerate==1.15.*",
        )
    return found


def model_of(accelerator: Any) -> torch.nn.Module:
    """The prepared model. Several models become one whose names begin with their numbers."""
    models = [accelerator.unwrap_model(model) for model in prepared(accelerator, "models")]
    return models[0] if len(models) == 1 else torch.nn.ModuleList(models)


def optimizers_of(accelerator: Any) -> list[torch.optim.Optimizer]:
    """The prepared optimizers themselves."""
    return [wrapper.optimizer for wrapper in prepared(accelerator, "optimizers")]
