"""``attach(accelerator, repo)``: every ``accelerator.save_state`` commits a version, too.

Accelerate calls a hook before it writes files. The hook commits the states in memory: models,
optimizers, schedulers, scaler, random generators, positions in the data, registered objects. The
version and the saved folder have the same content, unless a lossy pipeline changes the weights of
the version a little.
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
from mvc.frameworks.common.ranks import refuse_sharded, rng_of_other_processes
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
    """Commits a version on every ``save_state`` until ``close``. ``load`` restores a version.

    ``repo`` is an open Repository, or the path of an existing repository. With ``wait``, the
    version is durable when ``save_state`` returns. Otherwise a thread commits the version later.
    The other options are those of ``mvc.Recorder``. Raises WrongUsage if no process has the whole
    model, or if the pipeline may skip versions.
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
        chosen = self._set_options(repo, options)
        _check_stages(chosen)
        # Use the branch that is current now. Another branch may be current at the first save.
        self._options = replace(chosen, branch=self.repo.head(chosen.branch).branch)
        self.saves = 0
        self._origin: CommitId | None = None
        self._accelerator = accelerator
        self._wait = wait
        self._epochs = Epochs(accelerator)
        self._other_rngs: list[dict[str, Any]] = []  # random generators of the other processes
        self._hook = accelerator.register_save_state_pre_hook(self._on_save)

    def _on_save(self, _models: Any, _weights: Any, _output_dir: Any) -> None:
        """Accelerate's hook. Every process calls it, but only the first process writes."""
        self.saves += 1
        self._other_rngs = rng_of_other_processes()
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
        """The training state except the model. ``step``: the number of calls of ``save_state`` so
        far.
        """
        accelerator = self._accelerator
        model, schedulers = model_of(accelerator), prepared(accelerator, "schedulers")
        states = [optimizer_state(model, one) for one in optimizers_of(accelerator)]
        optimizer, optimizers = alone(states)
        kinds = [component_type(one) for one in schedulers]
        state = TrainingParts(model, scaler=accelerator.scaler).training_state(step, batch)
        scheduler, schedulers_ = alone([one.state_dict() for one in schedulers])
        return {
            **state,
            "kinds": {**state["kinds"], "scheduler": alone(kinds)[0]},
            "optimizer": optimizer,
            "scheduler": scheduler,
            "accelerate": {
                "step": accelerator.step,
                "processes": accelerator.num_processes,
                "others": self._other_rngs,
                "optimizers": optimizers,
                "schedulers": schedulers_,
                "kinds": kinds,
                "objects": [one.state_dict() for one in prepared(accelerator, "custom_objects")],
                "loaders": self._epochs.state(),
                "draws": self._epochs.drawing.seen,
                # Gradients that accumulate until the next step. Accelerate does not save these.
                "gradients": {
                    name: parameter.grad
                    for name, parameter in model.named_parameters()
                    if parameter.grad is not None and not accelerator.sync_gradients
                },
            },
        }

    def close(self) -> None:
        """Removes the hook and commits the queued versions."""
        self._hook.remove()
        super().close()

    def batches(self, loader: Any) -> Iterator[Any]:
        """The batches of one epoch of a prepared loader.

        If you leave an epoch by ``break``, the next call starts another epoch. After ``load``, the
        first call returns the remaining batches of the epoch in which the version was saved.
        """
        return self._epochs.batches(loader)

    def epoch(self, loader: Any) -> int:
        """The number of the epoch that the next call of ``batches`` returns, from 0."""
        return self._epochs.epoch(loader)

    def load(self, rev: str | CommitId | None = None) -> Resumed:
        """Restores from a version everything that ``save_state`` saves.

        ``rev``: by default the newest version of the branch. ``Resumed.step``: the number of the
        save. If the version does not match the prepared and registered objects, raises CannotResume
        before anything changes.
        """
        commit, name = self._find(rev), self._options.name
        recorded = resume.training_state(self.repo, commit, name, by=_BY)
        weights = resume.training_weights(self.repo, commit, name, recorded)
        differs = self._restore(commit, recorded, weights)
        self.saves, self._origin = recorded["step"], commit
        return Resumed(commit, recorded["step"], recorded["batch"], tuple(differs))

    def _restore(self, commit: CommitId, recorded: Any, weights: Mapping[str, Any]) -> list[str]:
        """Makes all checks, then restores a version.

        Returns how data and settings differ from the recorded data and settings.
        """
        saved, accelerator, epochs = recorded["accelerate"], self._accelerator, self._epochs
        states = {
            **saved,
            "optimizers": several(recorded["optimizer"], saved["optimizers"]),
            "schedulers": several(recorded["scheduler"], saved["schedulers"]),
        }
        live = {
            "optimizers": optimizers_of(accelerator),
            "schedulers": prepared(accelerator, "schedulers"),
            "objects": prepared(accelerator, "custom_objects"),
            "loaders": prepared(accelerator, "dataloaders"),
        }
        for part, objects in live.items():
            if len(states[part]) != len(objects):
                raise CannotResume(
                    f"{commit.short} has {len(states[part])} {part}, this training {len(objects)}",
                    hint="prepare and register the same objects in the same order",
                )
        if (recorded["scaler"] is None) != (accelerator.scaler is None):
            raise CannotResume(
                "either the recorded training or this training scales gradients, but not both"
            )
        differs = [
            *resume.differences(recorded["setting"]),
            *resume.check_types(recorded, scaler=accelerator.scaler),
            *check_schedulers(saved.get("kinds", []), live["schedulers"]),
            *epochs.check_sizes(saved["loaders"]),
        ]
        rng = _of_this_process([recorded["rng"], *saved["others"]])
        check_rng(rng)
        model = model_of(accelerator)
        resume.check_model(model, weights, recorded)

        optimizers = zip(live["optimizers"], states["optimizers"], strict=True)
        load_with_optimizers(model, weights, recorded["buffers"], optimizers)
        for key, parameter in model.named_parameters():
            gradient = saved["gradients"].get(key)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for part in ("schedulers", "objects"):
            for obj, state in zip(live[part], states[part], strict=True):
                obj.load_state_dict(resume.typed_as(obj.state_dict(), state))
        if accelerator.scaler is not None:
            accelerator.scaler.load_state_dict(recorded["scaler"])
        accelerator.step = saved["step"]
        set_rng_state(rng)
        epochs.restore(saved["loaders"], rng, draws=saved["draws"])
        then, now = saved["processes"], accelerator.num_processes
        reasons = {
            f"processes: {now}, not {then}": then != now,
            "pending gradients: only those of the first process were recorded": then > 1
            and saved["gradients"],
            "data: the next batches will draw other random numbers": saved["draws"]
            and any(loader["done"] for loader in saved["loaders"]),
        }
        return [*differs, *(reason for reason, applies in reasons.items() if applies)]


attach = Attached


def _hyper(accelerator: Any) -> dict[str, str]:
    """Arguments of the optimizers, and settings of accelerate."""
    names = ("gradient_accumulation_steps", "mixed_precision", "num_processes")
    optimizers = [getattr(one, "defaults", None) for one in optimizers_of(accelerator)]
    several = len(optimizers) > 1
    named = [(f"optimizer.{n}" if several else "optimizer", o) for n, o in enumerate(optimizers)]
    own = {name: getattr(accelerator, name, None) for name in names}
    return hyper_parameters(*named, ("", own))


def _of_this_process(states: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The recorded random generators of this process.

    If fewer processes saved the version than load it, additional processes get the generators of
    the first process.
    """
    index = PartialState().process_index
    return states[index if index < len(states) else 0]


def _check_stages(options: RecorderOptions) -> None:
    """Raises WrongUsage if the pipeline may skip a save, if an option needs the data of each batch,
    or if the pipeline needs the loss and there is no option ``metrics``.
    """
    decides = options.stages.decisions
    if decides:
        raise WrongUsage(
            f"stage {decides[0].text} may skip a version, but save_state always saves",
            hint="remove the stage",
        )
    refuse_data(options, "save_state does not receive it")
    stage = stage_by_loss(options)
    if stage is not None and options.metrics is None:
        raise WrongUsage(
            f"stage {stage} needs the loss, which save_state does not know",
            hint='pass metrics=lambda: {"loss": ...}',
        )


# -- position in the data, so that training can resume inside an epoch -----------------------
# When an epoch starts, accelerate draws random numbers: the order of samples, and the seed of the
# workers. To resume an epoch, the random generators are set to their state at the start of the
# epoch. So accelerate draws the same numbers. Finished batches are skipped without being loaded.
# Then the generators are set to their state at the save.


class _Position(Struct):
    """Position of a loader: complete epochs, and finished batches (``done``) of the current epoch.

    ``rng``: state of the global random generators at the start of the epoch; None between epochs.
    ``order``: state of the loader's own generator at the start of the epoch. ``restored``: state of
    the global generators at the save, from ``load`` until an epoch is resumed.
    """

    epoch: int = 0
    done: int = 0
    rng: Mapping[str, Any] | None = None
    order: torch.Tensor | None = None
    restored: Mapping[str, Any] | None = None


class Epochs:
    """Positions of all prepared loaders.

    ``drawing``: detects whether loading a batch draws random numbers.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._positions: dict[int, _Position] = {}
        self.drawing = data.Drawing()

    def epoch(self, loader: Any) -> int:
        """The number of the epoch that the next call of ``batches`` returns, from 0."""
        position = self._position(loader)
        return position.epoch + (position.rng is not None and position.restored is None)

    def batches(self, loader: Any) -> Iterator[Any]:
        """The batches of an epoch.

        After ``restore``, the remaining batches of the restored epoch.
        """
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
            self.drawing.check()
        position.epoch, position.done, position.rng = position.epoch + 1, 0, None

    def state(self) -> list[dict[str, Any]]:
        """The position of each loader, for a version."""
        return [self._state(loader) for loader in prepared(self._accelerator, "dataloaders")]

    def _state(self, loader: Any) -> dict[str, Any]:
        position = self._position(loader)
        stateful = getattr(loader, "use_stateful_dataloader", False)
        return {
            "epoch": position.epoch,
            "done": position.done,
            "rng": position.rng,
            "order": _order(loader) if position.rng is None else position.order,
            "order_seed": data.order_seed(loader),
            "loader": loader.state_dict() if stateful else None,
            "sizes": data.sizes(loader),
        }

    def check_sizes(self, recorded: list[Mapping[str, Any]]) -> list[str]:
        """How the amount of data differs from the recorded amount.

        Raises CannotResume if the version was saved inside an epoch and the amount differs.
        """
        loaders = prepared(self._accelerator, "dataloaders")
        return [
            line
            for loader, position in zip(loaders, recorded, strict=True)
            for line in data.compare(
                [position.get("sizes", {})], [loader], middle=position["rng"] is not None
            )
        ]

    def restore(self, recorded: list[Any], rng: Mapping[str, Any], *, draws: bool) -> None:
        """Sets the position of every loader. ``rng``: state of the generators at the save."""
        for loader, position in zip(
            prepared(self._accelerator, "dataloaders"), recorded, strict=True
        ):
            inside = None if position["rng"] is None else rng
            self._positions[id(loader)] = _Position(
                epoch=position["epoch"],
                done=position["done"],
                rng=position["rng"],
                order=position["order"],
                restored=inside,
            )
            generator = data.order_generator(loader)
            if generator is not None and position["order"] is not None:
                generator.set_state(position["order"])
            data.set_order_seed(loader, position["order_seed"])
            if position["loader"] is not None and getattr(loader, "use_stateful_dataloader", False):
                loader.load_state_dict(position["loader"])
        self.drawing = data.Drawing(seen=draws)

    def _position(self, loader: Any) -> _Position:
        if not any(loader is known for known in prepared(self._accelerator, "dataloaders")):
            raise WrongUsage("this loader was not prepared", hint="accelerator.prepare(loader)")
        return self._positions.setdefault(id(loader), _Position())


def _order(loader: Any) -> torch.Tensor | None:
    generator = data.order_generator(loader)
    return generator.get_state() if generator is not None else None


# -- private attributes of accelerate 1.15 --------------------------------------------------


def prepared(accelerator: Any, part: str) -> list[Any]:
    """The objects of one kind that were prepared or registered.

    ``part``: ``models``, ``optimizers``, ``schedulers``, ``dataloaders``, ...
    """
    objects = getattr(accelerator, f"_{part}", None)
    if not isinstance(objects, list):
        raise NotInstalled(
            f"mvc needs accelerate 1.15; {accelerate.__version__} stores its {part} differently",
            hint="pip install accelerate==1.15.*",
        )
    return objects


def model_of(accelerator: Any) -> torch.nn.Module:
    """The prepared model.

    Several models become one module. In this module, names begin with the number of the model.
    """
    models = [accelerator.unwrap_model(model) for model in prepared(accelerator, "models")]
    return models[0] if len(models) == 1 else torch.nn.ModuleList(models)


def optimizers_of(accelerator: Any) -> list[torch.optim.Optimizer]:
    """The prepared optimizers without accelerate's wrappers."""
    return [wrapper.optimizer for wrapper in prepared(accelerator, "optimizers")]
