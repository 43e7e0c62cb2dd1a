"""A callback for the Trainer of Hugging Face transformers: commits a version of every step.

``MVCCallback(repo)`` records versions. ``callback.resume(trainer)`` continues from a version, with
the same bits as if the training had not stopped. After a step, the Trainer may log, evaluate and
save, which may draw random numbers. So the version of a step is recorded when the Trainer begins
the next step or epoch, or ends the training.

To resume, mvc writes a checkpoint folder with the file names and formats of
``Trainer._save_checkpoint``. The Trainer, not mvc, reads the files in torch's format, with
``weights_only``.
"""

# ruff: noqa: ARG002 (the Trainer prescribes the parameters)

from __future__ import annotations

import copy
import dataclasses
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState
from msgspec.structs import replace
from safetensors.torch import save
from transformers import PreTrainedModel, TrainerCallback
from transformers.dynamic_module_utils import custom_object_save

from mvc.api import Repository
from mvc.errors import CannotResume, WrongUsage
from mvc.frameworks.common import data
from mvc.frameworks.common.hyper_parameters import hyper_parameters
from mvc.frameworks.common.ranks import refuse_sharded, rng_of_other_processes
from mvc.frameworks.common.recording import Records, refuse_data, stage_by_loss
from mvc.frameworks.common.repository import AnyRepository
from mvc.ids import CommitId
from mvc.system import FileSystem
from mvc.training.checks import RecorderKeywords, whole_number
from mvc.training.resume import RecordedBy, check_model, set_back, training_state, training_weights
from mvc.training.state.parts import PRODUCTION, TrainingParts, included, unwrap
from mvc.training.state.rng import rng_state, set_rng_state

_COMPARED = frozenset({
    "learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "max_grad_norm", "per_device_train_batch_size",
    "gradient_accumulation_steps", "num_train_epochs", "max_steps", "label_smoothing_factor",
    "bf16", "fp16", "seed",
})  # fmt: skip
_BY = RecordedBy(name="a Trainer's MVCCallback", part="trainer")
_AMOUNTS = ("rows", "batch size", "batches an epoch", "gradient accumulation")
"""Values that determine which rows the first steps of an epoch have used."""
_NO_HYPER = re.compile(
    "output_dir|run_name|project|report_to|disable_tqdm|local_rank|debug|resume_from_|do_|"
    "log_|logging_|save_|hub_|push_to_|trackio_|dataloader_|skip_memory_"
)
"""Beginnings of the names of TrainingArguments that are not recorded."""


class MVCCallback(Records, TrainerCallback):
    """Records a Trainer's steps: ``Trainer(callbacks=[MVCCallback(repo)])``.

    ``repo`` is an open Repository, or the path of an existing repository. A version is made after
    each optimizer step whose number is divisible by ``every_n_steps``. If ``every_n_steps`` is
    None, a version is made whenever the Trainer saves a checkpoint; a warning is shown if
    ``save_strategy`` is ``no``.

    ``include`` lists the parts to record: ``model``, ``optimizer``, ``scheduler``, ``scaler``,
    ``rng``. ``options`` are options of ``mvc.Recorder``. Options that need the data of each batch
    are refused, because the Trainer does not pass batches to callbacks. In a training with several
    processes, only the process of rank 0 commits.

    A thread commits the versions. The end of the training, ``close``, the next training or the end
    of the interpreter commits the versions that still wait, even after an exception.
    """

    def __init__(
        self,
        repo: AnyRepository,
        *,
        every_n_steps: int | None = 1,
        include: Sequence[str] | None = None,
        **options: Unpack[RecorderKeywords],
    ) -> None:
        if every_n_steps is not None:  # None: when the Trainer saves
            every_n_steps = whole_number("every_n_steps", every_n_steps, 1)
        self._include = None if include is None else included(include)
        chosen = self._set_options(repo, options)
        refuse_data(chosen, "the Trainer does not pass batches to callbacks")
        self._every = every_n_steps
        self._by_loss = None if chosen.metrics is not None else stage_by_loss(chosen)
        self._source: _TrainerSource | None = None
        self._drawing = data.Drawing()
        self._pending = False
        self._logged: dict[str, float] = {}
        self._resuming: tuple[CommitId, Mapping[str, Any]] | None = None
        self._epoch_rng: Mapping[str, Any] | None = None  # set when the epoch begins

    # -- resuming ----------------------------------------------------------------------------

    def resume(self, trainer: Any, rev: str | CommitId | None = None, **options: Any) -> Any:
        """Continues training from a version, bit for bit. Returns the result of ``trainer.train``.

        ``rev`` is by default the newest version of the callback's ``branch``, or HEAD if no
        ``branch`` was set. ``options`` are passed to ``trainer.train``. After the call,
        ``self.resumed`` contains the version, and reasons why results may differ. If the version
        lacks a needed part or does not match the trainer, raises CannotResume before training.
        """
        if self not in trainer.callback_handler.callbacks:
            raise WrongUsage(
                "this callback is not in the trainer", hint="Trainer(callbacks=[callback])"
            )
        if getattr(trainer.args, "restore_callback_states_from_checkpoint", False):
            raise CannotResume(
                "the states of other callbacks are not recorded",
                hint="set restore_callback_states_from_checkpoint=False",
            )
        self.close()
        commit, name = self._find(rev), self._options.name
        recorded = training_state(self.repo, commit, name, by=_BY)
        weights, model = training_weights(self.repo, commit, name, recorded), trainer.model
        # The version may have names with or without the prefixes of a wrapper.
        wrapped = set(weights) == set(model.state_dict())
        check_model(model if wrapped else unwrap(model), weights, recorded)
        self._resuming = commit, recorded
        output = Path(trainer.args.output_dir)
        FileSystem().make_dirs(output)
        try:
            with tempfile.TemporaryDirectory(prefix="mvc-resume-", dir=output) as folder:
                _write_checkpoint(self.repo, commit, Path(folder), name, recorded=recorded)
                return trainer.train(resume_from_checkpoint=folder, **options)
        finally:
            self._resuming = self._epoch_rng = None

    # -- events --------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        refuse_sharded()
        self.close()
        if self._by_loss and (args.logging_strategy != "steps" or state.logging_steps != 1):
            raise WrongUsage(
                f"stage {self._by_loss} needs the loss, which the Trainer does not log "
                "for every step",
                hint="TrainingArguments(logging_steps=1)",
            )
        parts = _parts(live, self._include)
        loader = live.get("train_dataloader")
        files = _pretrained_files(parts.model, _processing(live, loader))
        self._source = _TrainerSource(parts, args, state, loader)
        origin = None
        if self._resuming is not None:
            origin, recorded = self._resuming
            self._restore(self._source, origin, recorded, _parts(live, None))
        if state.is_world_process_zero:
            if self._every is None and _text(args.save_strategy) == "no":
                warnings.warn(
                    "mvc: this training will not be recorded: the Trainer saves no "
                    "checkpoint (save_strategy='no'), and every_n_steps is None",
                    stacklevel=2,
                )
            self._begin(
                self._source, start=state.global_step, origin=origin, hyper=_hyper(args),
                files=files,
            )  # fmt: skip

    def _restore(
        self, source: _TrainerSource, commit: CommitId, recorded: Any, parts: TrainingParts
    ) -> None:
        model, optimizer, name = parts.model, parts.optimizer, self._options.name
        differs = source.differences(commit, recorded)
        components = {"scheduler": parts.scheduler, "scaler": parts.scaler}
        resumed = set_back(self.repo, model, optimizer, **components, rev=commit, name=name)
        data.set_order_seed(source.loader, recorded["order_seed"])
        self._epoch_rng = recorded["epoch_rng"]
        self._drawing = data.Drawing(seen=recorded["data_draws"])
        self.resumed = replace(resumed, differs=(*resumed.differs, *differs))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._settle(state)
        self._drawing.forget()
        if self._epoch_rng is not None:
            set_rng_state(self._epoch_rng)
            self._epoch_rng = None
        if self._source is not None:
            self._source.epoch_rng = rng_state()

    def on_step_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._drawing.check()
        self._settle(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._logged = {}
        self._drawing.watch()
        self._pending = self._every is not None and state.global_step % self._every == 0

    def on_save(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._drawing.watch()
        self._pending = self._pending or self._every is None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **live: Any) -> None:
        self._drawing.watch()
        if logs is not None and "train_runtime" in logs:
            self._settle(state)  # now, because the Trainer may load the best model next
        else:
            numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, int | float)}
            self._logged.update(numbers)

    def on_evaluate(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._drawing.watch()

    def on_train_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._settle(state)
        self.close()

    def _settle(self, state: Any) -> None:
        """Records the step that has just finished, with its logged metrics."""
        pending, self._pending = self._pending, False
        if not pending or self._source is None:
            return
        if self._source.rng:
            # every process must call this (collective)
            self._source.other_rngs = rng_of_other_processes()
        if self._recorder is not None:
            self._source.data_draws = self._drawing.seen
            step = int(state.global_step)
            self._step(step, batch=step, metrics=self._logged)

    def close(self) -> None:
        """Commits the queued versions and stops recording."""
        self._pending = False
        super().close()


def _parts(live: Mapping[str, Any], include: Sequence[str] | None) -> TrainingParts:
    """The objects to record, from the arguments of a callback. Accelerate's wrapper of the
    optimizer is removed; the gradient scaler is an attribute of this wrapper.
    """
    optimizer, scaler = live["optimizer"], getattr(live["optimizer"], "scaler", None)
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return TrainingParts.chosen(
        live["model"], optimizer, live["lr_scheduler"], scaler, include=include
    )


class _TrainerSource:
    """The object from which the Recorder reads the state of a Trainer's training.

    ``epoch_rng``: the states of the random generators at the start of the epoch. ``other_rngs``:
    the current states of the random generators in all processes except the first process.
    """

    def __init__(self, parts: TrainingParts, args: Any, state: Any, loader: Any) -> None:
        self.weights, self.exact, self.model_state = parts.weights, parts.exact, parts.model_state
        self.rng = parts.rng
        self.loader = loader
        self.epoch_rng: Mapping[str, Any] | None = rng_state()
        self.other_rngs: list[dict[str, Any]] = []
        self.data_draws = False
        self._from_the_beginning = bool(args.ignore_data_skip)
        self._parts = parts
        self._state = state
        steps, sizes = int(state.max_steps), data.sizes(loader)
        self._run = {
            "processes": int(args.world_size),
            "batch size": int(args.train_batch_size),
            "gradient accumulation": int(args.gradient_accumulation_steps),
            "batches an epoch": sizes["batches an epoch"],
            "rows": sizes["rows"],
            "mixed precision": str(AcceleratorState().mixed_precision),
            "steps in all": steps,
            "learning-rate schedule": _text(args.lr_scheduler_type),
            "schedule options": _text(args.lr_scheduler_kwargs or {}),
            "warmup steps": int(args.get_warmup_steps(steps)),
        }

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """The chosen parts, the Trainer's own state without logs, and the order of the data."""
        return {
            **self._parts.training_state(step, batch),
            "trainer": dataclasses.asdict(dataclasses.replace(self._state, log_history=[])),
            "epoch_rng": self.epoch_rng,
            "others": self.other_rngs,
            "order_seed": data.order_seed(self.loader),
            "own_order": data.order_generator(self.loader) is not None,
            "data_draws": self.data_draws,
            "run": self._run,
        }

    def differences(self, commit: CommitId, recorded: Mapping[str, Any]) -> list[str]:
        """Reasons why the resumed training will differ from an uninterrupted training.

        Raises CannotResume if the data have changed and training resumes inside an epoch.
        """
        run = recorded["run"]
        if _in_the_middle(recorded) and not self._from_the_beginning:
            amounts = {name: run[name] for name in _AMOUNTS if name in run}
            data.refuse_middle(commit.short, data.changed(amounts, self._run))
        reasons = {
            "ignore_data_skip restarts the epoch": self._from_the_beginning,
            "an unrecorded generator of the program determines the order": recorded["own_order"],
            "the next batches will draw other random numbers": recorded["data_draws"],
        }
        reasons_ = [f"data: {reason}" for reason, applies in reasons.items() if applies]
        return data.unlike(run, self._run) + reasons_


def _in_the_middle(recorded: Mapping[str, Any]) -> bool:
    """Whether the recorded step is inside an epoch, not at its end. If the number of batches is
    unknown, the whole training counts as one epoch.
    """
    run = recorded["run"]
    batches, steps = run["batches an epoch"], run["gradient accumulation"]
    epoch = run["steps in all"] if batches is None else max(1, -(-batches // steps))
    return bool(recorded["step"] % epoch)


def _hyper(args: Any) -> dict[str, str]:
    """The TrainingArguments to record as params: those in ``_COMPARED``, and those that differ from
    their defaults, except those in ``_NO_HYPER``.
    """
    chosen = {
        field.name: value
        for field in dataclasses.fields(args)
        if (value := getattr(args, field.name, None)) is not None
        and (field.name in _COMPARED or getattr(value, "value", value) != field.default)
        and not _NO_HYPER.match(field.name)
    }
    return hyper_parameters(("", chosen))


def _processing(live: Mapping[str, Any], loader: Any) -> Any:
    """The tokenizer or processor. If the Trainer has none, the tokenizer of its data collator."""
    own = live.get("processing_class")
    return own or getattr(getattr(loader, "collate_fn", None), "tokenizer", None)


def _pretrained_files(model: Any, processing: Any) -> dict[str, bytes]:
    """The files that ``from_pretrained`` needs besides the weights, by name.

    Empty for a model that is not from transformers. ``processing``: the tokenizer or processor, or
    None.
    """
    if not isinstance(model, PreTrainedModel):
        return {}
    saves: dict[str, Callable[[str], object]] = {
        "configuration": partial(_save_configuration, model)
    }
    if model.can_generate() and model.generation_config is not None:
        saves["generation configuration"] = model.generation_config.save_pretrained
    if callable(save := getattr(processing, "save_pretrained", None)):
        saves["tokenizer"] = save
    with tempfile.TemporaryDirectory(prefix="mvc-pretrained-") as folder:
        for part, save in saves.items():
            try:
                save(folder)
            except Exception as error:  # an error of transformers must not end the training
                warnings.warn(f"mvc: the {part} is not recorded: {error}", stacklevel=2)
        root = Path(folder)
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _save_configuration(model: PreTrainedModel, folder: str) -> None:
    config: Any = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__.removeprefix("FSDP")]
    config.dtype = str(model.dtype).removeprefix("torch.")
    if model.is_remote_code():
        custom_object_save(model, folder, config=config)
    config.save_pretrained(folder)


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))


def _write_checkpoint(
    repo: Repository, commit: CommitId, folder: Path, name: str, *, recorded: Mapping[str, Any]
) -> None:
    """Writes to ``folder`` the weights, the Trainer's state and the states of random generators.

    ``recorded``: the version's training state. If the version also has production weights (weights
    from a lossy pipeline, to deploy), these are not written.
    """
    state = json.dumps(recorded["trainer"], indent=2, sort_keys=True, default=lambda n: n.item())
    files = {"trainer_state.json": f"{state}\n".encode(), **_generators(recorded)}
    weights = folder / "model.safetensors"
    if recorded["schema"] == PRODUCTION:
        files[weights.name] = save(
            dict(training_weights(repo, commit, name, recorded)), {"format": "pt"}
        )
    else:
        repo.checkout(commit, path=[name], to=weights)
    for file, content in files.items():
        FileSystem().write_atomic(folder / file, content)


def _generators(recorded: Mapping[str, Any]) -> dict[str, bytes]:
    """The files with the states of the random generators, one for each process."""
    if recorded["run"]["processes"] == 1:
        own = _rng(recorded["rng"])
        if "cuda" in own:
            own["cuda"] = own["cuda"][torch.cuda.current_device()]
        return {"rng_state.pth": data.saved_bytes(own)}
    states = [recorded["rng"], *recorded["others"]]
    return {f"rng_state_{i}.pth": data.saved_bytes(_rng(state)) for i, state in enumerate(states)}


def _rng(recorded: Mapping[str, Any]) -> dict[str, Any]:
    python, numpy = recorded["python"], recorded["numpy"]
    states = {
        "python": (python["version"], tuple(python["words"].tolist()), python["gauss"]),
        "numpy": tuple(numpy[key] for key in ("kind", "keys", "position", "has_gauss", "cached")),
        "cpu": recorded["torch"],
    }
    return {**states, "cuda": recorded["cuda"]} if recorded["cuda"] else states
