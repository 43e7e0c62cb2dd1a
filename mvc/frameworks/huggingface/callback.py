"""A callback for the Trainer of Hugging Face transformers: a version of every step.

``MVCCallback(repo)`` records, ``callback.resume(trainer)`` goes on from a version with the
same bits. A version is taken when a step is over: after the logging, evaluation and saving
that belong to it, which draw random numbers too, and before the next one begins.

The names and the form of files in a checkpoint folder are transformers' own
(``Trainer._save_checkpoint``). Files in torch's format are only written here; the Trainer reads
them with ``weights_only``.
"""

# ruff: noqa: ARG002 (the Trainer prescribes what its events take)

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
from mvc.frameworks.common.ranks import refuse_sharded, rng_of_others
from mvc.frameworks.common.recording import Records, refuse_data, stage_by_loss
from mvc.frameworks.common.repository import AnyRepository
from mvc.ids import CommitId
from mvc.system import FileSystem
from mvc.training.checks import RecorderKeywords, whole
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
"""What says which rows the first steps of an epoch have had."""
_NO_HYPER = re.compile(
    "output_dir|run_name|project|report_to|disable_tqdm|local_rank|debug|resume_from_|do_|"
    "log_|logging_|save_|hub_|push_to_|trackio_|dataloader_|skip_memory_"
)
"""Of the TrainingArguments those that say where and how often things are written."""


class MVCCallback(Records, TrainerCallback):
    """Records a Trainer's steps; ``Trainer(callbacks=[MVCCallback(repo)])``.

    ``repo`` is an open Repository, or the path of an existing one. Every ``every_n_steps``-th
    step of the optimizer makes a version; None makes one where the Trainer saves a checkpoint, and
    warns if ``save_strategy`` is ``no``. The last step is no exception to n.
    ``include`` names any of ``model``, ``optimizer``, ``scheduler``, ``scaler``, ``rng``; the
    other options are those of ``mvc.Recorder``. Only the first of several processes writes. A
    pipeline that decides by the data of a batch is refused, since the Trainer does not show it.

    What is queued is completed at the end of training, by ``close``, by the next training, or
    when the interpreter ends; so also after an exception.
    """

    def __init__(
        self,
        repo: AnyRepository,
        *,
        every_n_steps: int | None = 1,
        include: Sequence[str] | None = None,
        **options: Unpack[RecorderKeywords],
    ) -> None:
        if every_n_steps is not None:  # None: where the Trainer saves
            every_n_steps = whole("every_n_steps", every_n_steps, 1)
        self._include = None if include is None else included(include)
        chosen = self._take_options(repo, options)
        refuse_data(chosen, "the Trainer does not hand batches to callbacks")
        self._every = every_n_steps
        self._by_loss = None if chosen.metrics is not None else stage_by_loss(chosen)
        self._source: _TrainerSource | None = None
        self._drawing = data.Drawing()
        self._pending = False
        self._logged: dict[str, float] = {}
        self._going_on: tuple[CommitId, Mapping[str, Any]] | None = None
        self._epoch_rng: Mapping[str, Any] | None = None  # to be set when the epoch begins

    # -- going on ------------------------------------------------------------------------

    def resume(self, trainer: Any, rev: str | CommitId | None = None, **options: Any) -> Any:
        """Trains on from a version, bit for bit; returns what ``trainer.train`` returns.

        ``rev`` is by default the newest version of ``branch``; without that HEAD. ``options``
        go to ``trainer.train``. ``self.resumed`` says afterwards where training went on and what
        was not as before. Raises CannotResume where the version lacks what training needs, or
        does not fit the trainer; then nothing was trained.
        """
        if self not in trainer.callback_handler.callbacks:
            raise WrongUsage(
                "this callback is none of the trainer's", hint="Trainer(callbacks=[callback])"
            )
        if getattr(trainer.args, "restore_callback_states_from_checkpoint", False):
            raise CannotResume(
                "the states of other callbacks are not kept",
                hint="leave restore_callback_states_from_checkpoint at False",
            )
        self.close()
        commit, name = self._find(rev), self._options.name
        kept = training_state(self.repo, commit, name, by=_BY)
        weights, model = training_weights(self.repo, commit, name, kept), trainer.model
        # A version has the names of the wrapper if it was recorded with them.
        wrapped = set(weights) == set(model.state_dict())
        check_model(model if wrapped else unwrap(model), weights, kept)
        self._going_on = commit, kept
        output = Path(trainer.args.output_dir)
        FileSystem().make_dirs(output)
        try:
            with tempfile.TemporaryDirectory(prefix="mvc-resume-", dir=output) as folder:
                _write_checkpoint(self.repo, commit, Path(folder), name, kept=kept)
                return trainer.train(resume_from_checkpoint=folder, **options)
        finally:
            self._going_on = self._epoch_rng = None

    # -- events --------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        refuse_sharded()
        self.close()
        if self._by_loss and (args.logging_strategy != "steps" or state.logging_steps != 1):
            raise WrongUsage(
                f"stage {self._by_loss} goes by the loss, which the Trainer does not log "
                "for every step",
                hint="TrainingArguments(logging_steps=1)",
            )
        parts = _parts(live, self._include)
        loader = live.get("train_dataloader")
        files = _files_beside(parts.model, _processing(live, loader))
        self._source = _TrainerSource(parts, args, state, loader)
        origin = None
        if self._going_on is not None:
            origin, kept = self._going_on
            self._go_on(self._source, origin, kept, _parts(live, None))
        if state.is_world_process_zero:
            if self._every is None and _text(args.save_strategy) == "no":
                warnings.warn(
                    "mvc: nothing of this training will be recorded: the Trainer saves no "
                    "checkpoint (save_strategy='no'), and every_n_steps is None",
                    stacklevel=2,
                )
            self._begin(
                self._source, start=state.global_step, origin=origin, hyper=_hyper(args),
                files=files,
            )  # fmt: skip

    def _go_on(
        self, source: _TrainerSource, commit: CommitId, kept: Any, parts: TrainingParts
    ) -> None:
        model, optimizer, name = parts.model, parts.optimizer, self._options.name
        differs = source.differences(commit, kept)
        others = {"scheduler": parts.scheduler, "scaler": parts.scaler}
        resumed = set_back(self.repo, model, optimizer, **others, rev=commit, name=name)
        data.set_order_seed(source.loader, kept["order_seed"])
        self._epoch_rng = kept["epoch_rng"]
        self._drawing = data.Drawing(seen=kept["data_draws"])
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
        self._drawing.look()
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
            self._settle(state)  # the end: the best model may be loaded right after it
        else:
            numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, int | float)}
            self._logged.update(numbers)

    def on_evaluate(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._drawing.watch()

    def on_train_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._settle(state)
        self.close()

    def _settle(self, state: Any) -> None:
        """Records the finished step, with what was logged for it."""
        pending, self._pending = self._pending, False
        if not pending or self._source is None:
            return
        if self._source.rng:
            self._source.others = rng_of_others()  # every process must call it
        if self._recorder is not None:
            self._source.data_draws = self._drawing.seen
            step = int(state.global_step)
            self._step(step, batch=step, metrics=self._logged)

    def close(self) -> None:
        """Completes the queued versions. Training that continues is no longer recorded."""
        self._pending = False
        super().close()


def _parts(live: Mapping[str, Any], include: Sequence[str] | None) -> TrainingParts:
    """The objects of an event without their wrappers; the optimizer's has the scaler."""
    optimizer, scaler = live["optimizer"], getattr(live["optimizer"], "scaler", None)
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return TrainingParts.chosen(
        live["model"], optimizer, live["lr_scheduler"], scaler, include=include
    )


class _TrainerSource:
    """States for the Recorder. ``epoch_rng``: the generators as the epoch began; ``others``: those
    of the processes after the first, as they are now.
    """

    def __init__(self, parts: TrainingParts, args: Any, state: Any, loader: Any) -> None:
        self.weights, self.exact, self.model_state = parts.weights, parts.exact, parts.model_state
        self.rng = parts.rng
        self.loader = loader
        self.epoch_rng: Mapping[str, Any] | None = rng_state()
        self.others: list[dict[str, Any]] = []
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
        """The parts, the Trainer's own state without its list of logs, and the data's order."""
        return {
            **self._parts.training_state(step, batch),
            "trainer": dataclasses.asdict(dataclasses.replace(self._state, log_history=[])),
            "epoch_rng": self.epoch_rng,
            "others": self.others,
            "order_seed": data.order_seed(self.loader),
            "own_order": data.order_generator(self.loader) is not None,
            "data_draws": self.data_draws,
            "run": self._run,
        }

    def differences(self, commit: CommitId, kept: Mapping[str, Any]) -> list[str]:
        """Why the resumed training will not have the bits of the uninterrupted one.

        Raises CannotResume for other data in the middle of an epoch that is not begun anew.
        """
        run = kept["run"]
        if _in_the_middle(kept) and not self._from_the_beginning:
            amounts = {name: run[name] for name in _AMOUNTS if name in run}
            data.refuse_middle(commit.short, data.changed(amounts, self._run))
        reasons = {
            "ignore_data_skip begins the epoch anew": self._from_the_beginning,
            "their order comes from a generator of its own, which is not kept": kept["own_order"],
            "the next batches draw random numbers of their own": kept["data_draws"],
        }
        found = [f"data: {reason}" for reason, applies in reasons.items() if applies]
        return data.unlike(run, self._run) + found


def _in_the_middle(kept: Mapping[str, Any]) -> bool:
    """Whether the step lies within an epoch; without a length of the data, the steps are one."""
    run = kept["run"]
    batches, steps = run["batches an epoch"], run["gradient accumulation"]
    epoch = run["steps in all"] if batches is None else max(1, -(-batches // steps))
    return bool(kept["step"] % epoch)


def _hyper(args: Any) -> dict[str, str]:
    """What was chosen of the TrainingArguments, and what every training is compared by."""
    chosen = {
        field.name: value
        for field in dataclasses.fields(args)
        if (value := getattr(args, field.name, None)) is not None
        and (field.name in _COMPARED or getattr(value, "value", value) != field.default)
        and not _NO_HYPER.match(field.name)
    }
    return hyper_parameters(("", chosen))


def _processing(live: Mapping[str, Any], loader: Any) -> Any:
    """The tokenizer or processor, which the Trainer takes from the collator if it has none."""
    own = live.get("processing_class")
    return own or getattr(getattr(loader, "collate_fn", None), "tokenizer", None)


def _files_beside(model: Any, processing: Any) -> dict[str, bytes]:
    """The files that ``from_pretrained`` reads next to the weights, by name: what
    ``save_pretrained`` writes without them. None for a model that is not transformers' own.

    ``processing`` is the tokenizer or processor of the training, or None.
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
        for what, save in saves.items():
            try:
                save(folder)
            except Exception as error:  # of transformers: a recording ends no training
                warnings.warn(f"mvc: the {what} is not kept: {error}", stacklevel=2)
        root = Path(folder)
        found = sorted(path for path in root.rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


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
    repo: Repository, commit: CommitId, folder: Path, name: str, *, kept: Mapping[str, Any]
) -> None:
    """Writes what the Trainer itself must find into ``folder``: weights, generators, its own state.

    ``kept``: the version's training state. Of production weights these are the training weights
    that were kept beside them.
    """
    state = json.dumps(kept["trainer"], indent=2, sort_keys=True, default=lambda n: n.item())
    files = {"trainer_state.json": f"{state}\n".encode(), **_generators(kept)}
    weights = folder / "model.safetensors"
    if kept["schema"] == PRODUCTION:
        files[weights.name] = save(
            dict(training_weights(repo, commit, name, kept)), {"format": "pt"}
        )
    else:
        repo.checkout(commit, path=[name], to=weights)
    for file, content in files.items():
        FileSystem().write_atomic(folder / file, content)


def _generators(kept: Mapping[str, Any]) -> dict[str, bytes]:
    """One file, or one for every process."""
    if kept["run"]["processes"] == 1:
        own = _rng(kept["rng"])
        if "cuda" in own:
            own["cuda"] = own["cuda"][torch.cuda.current_device()]
        return {"rng_state.pth": data.saved_bytes(own)}
    states = [kept["rng"], *kept["others"]]
    return {f"rng_state_{i}.pth": data.saved_bytes(_rng(state)) for i, state in enumerate(states)}


def _rng(kept: Mapping[str, Any]) -> dict[str, Any]:
    python, numpy = kept["python"], kept["numpy"]
    states = {
        "python": (python["version"], tuple(python["words"].tolist()), python["gauss"]),
        "numpy": tuple(numpy[key] for key in ("kind", "keys", "position", "has_gauss", "cached")),
        "cpu": kept["torch"],
    }
    return {**states, "cuda": kept["cuda"]} if kept["cuda"] else states
