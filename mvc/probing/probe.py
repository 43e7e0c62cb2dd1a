"""``mvc.probe``: checks whether two runs of a model give the same bits, layer by layer.

The first run may be a saved run, such as a run on another machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from safetensors import SafetensorError
from safetensors.torch import load, save

from mvc.documents import decoded, fields_of
from mvc.errors import DamagedData, WrongUsage
from mvc.ids import BlobId
from mvc.limits import MAX_PROBE, MAX_PROBE_TENSORS
from mvc.names import printable
from mvc.probing.cause import Cause, causes
from mvc.probing.compare import COLUMNS, FirstDifference, LayerRow, compare
from mvc.probing.prints import print_of
from mvc.probing.run import Loss, MakeOptimizer, NoDeterministicKernel, Subject, seed_all
from mvc.probing.summary import Conditions, LayerSelection, Summary
from mvc.system import FileSystem
from mvc.text import text_table
from mvc.training.state.rng import same_rng

_SCHEMA = "mvc.probe-summary/1"
_SHOWN = 20  # rows in a text
_BEFORE = 5  # rows before the first row that differs


class Probe(Struct, frozen=True):
    """The comparison of two runs. ``first`` may be a saved run.

    ``rows``: one row for each call of a layer, in forward order. ``difference``: the first
    difference; None if all bits agree. ``causes``: likely causes of the difference, the most likely
    first.
    """

    first: Summary
    second: Summary
    rows: tuple[LayerRow, ...]
    difference: FirstDifference | None
    causes: tuple[Cause, ...]

    @property
    def same(self) -> bool:
        """Whether the runs agree in every recorded bit."""
        return self.difference is None

    @property
    def verdict(self) -> str:
        """One line: that everything agrees, or the first difference."""
        if self.difference is not None:
            where = " first in the" if self.difference.direction else ":"
            return f"differs{where} {self.difference}"
        mode = "forward, backward, one step" if self.second.training else "forward"
        calls = (
            f"{len(self.rows):,} calls of layers" if len(self.rows) != 1 else "1 call of a layer"
        )
        return f"same: {calls}, {mode}"

    def shown(self, most: int) -> tuple[LayerRow, ...]:
        """At most ``most`` rows, from shortly before the first difference.

        If there is no difference, these are the last rows.
        """
        call = None if self.difference is None else self.difference.call
        indices = (i for i, row in enumerate(self.rows) if call and row.forward == call.forward)
        start = max(0, min(next(indices, len(self.rows)) - _BEFORE, len(self.rows) - most))
        return self.rows[start : start + most]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the run ``second`` as JSON. Pass this file as ``against``, on any machine.

        If layers were selected with ``only``, writes their tensors to ``path`` + ``.safetensors``.
        """
        _save(self.second, Path(path))

    def __repr__(self) -> str:
        lines = [self.verdict, *(f"likely cause: {cause}" for cause in self.causes)]
        cells = [row.cells() for row in self.shown(_SHOWN)]
        used = [i for i in range(len(COLUMNS)) if any(row[i] for row in cells)]
        if cells:
            lines.append(text_table([row[i] for i in used] for row in (COLUMNS, *cells)))
        if len(cells) < len(self.rows):
            lines.append(f"... {len(cells):,} of {len(self.rows):,} rows")
        return "\n".join(lines)


def probe(
    model: torch.nn.Module | Callable[[], Any],
    inputs: Any = None,
    *,
    target: Any = None,
    loss: Loss | None = None,
    optimizer: MakeOptimizer | None = None,
    training: bool = True,
    against: str | PathLike[str] | Summary | Probe | None = None,
    only: Iterable[str] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    deterministic: bool | None = None,
) -> Probe:
    """Runs a model twice on the same inputs and compares every layer, forward and backward.

    ``model``: a module, or a function that returns a module or (module, inputs). ``inputs``: a
    tensor, a tuple or list of arguments, or a mapping of named arguments. ``training``: run in
    training mode, with a backward pass of ``loss(output, target)`` and one step of
    ``optimizer(parameters)``. If ``training`` is false, only the forward pass is run, in evaluation
    mode. Without ``target``, the loss is ``loss(output)``. Without ``loss``, the loss is the sum of
    the mean squares of the outputs. Without ``optimizer``, the step is plain SGD. ``against``: a
    run, or a file that ``Probe.save`` wrote on this or another machine. With ``against``, the model
    runs only once, and this run is compared with ``against``. ``only``: names (``block1.*``),
    forward indices (``7``) or ranges (``7-12``) of the layers to record. The tensors of these
    layers stay in memory, so that distances can be computed. ``seed``: seeds torch, numpy and
    Python before the model is created and before each run. ``threads`` and ``deterministic`` are as
    in ``torch.set_num_threads`` and ``torch.use_deterministic_algorithms``; None changes nothing.

    If the runs differ, the model runs up to ten more times to find the cause. Afterwards, weights,
    gradients, modes, random generators and settings are as before. Other attributes that a run
    changes stay changed. Raises WrongUsage for wrong arguments and for a file that
    ``Probe.save`` did not write, and UnsupportedTensor for quantised, distributed and sparse
    tensors (except COO). Exceptions of the model are passed on.
    """
    if isinstance(only, str):
        raise WrongUsage("only is a text: it must be a list of texts", hint=f"only=[{only!r}]")
    conditions = Conditions(
        seed,
        torch.get_num_threads() if threads is None else threads,
        torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic,
    )
    if target is not None and loss is None:
        raise WrongUsage("target needs a loss", hint="pass loss=f, called f(output, target)")
    stored = _stored(against)
    selection = _selection(only, stored)
    if stored is not None and stored.training != training:
        saved_mode, mode = (("evaluation", "training")[x] for x in (stored.training, training))
        raise WrongUsage(
            f"the saved run is in {saved_mode} mode, this one in {mode} mode",
            hint="pass training=False (--eval), or training=True (--training)",
        )
    with same_rng():
        if seed is not None:
            seed_all(seed)
        module, arguments = _module_and_inputs(model, inputs)
        subject = Subject(
            module, arguments, training=training, loss=loss, target=target, optimizer=optimizer
        )  # fmt: skip
        try:
            first = stored.selected(selection) if stored else subject.run(conditions, selection)
            second = subject.run(conditions, selection)
        except NoDeterministicKernel as error:
            hint = "probe without 'deterministic' to compare"
            raise WrongUsage(error.text, hint=hint) from error
        if not (selection.every or first.calls or second.calls):
            raise WrongUsage(
                f"no layer that runs has the name {', '.join(selection.patterns or ())}",
                hint="use layer names or forward indices that a probe without 'only' shows",
            )
        rows, difference = compare(first, second)
        likely_causes: tuple[Cause, ...] = ()
        if difference is not None:
            likely_causes = causes(subject, first, second, difference, stored=stored is not None)
    return Probe(first, second, rows, difference=difference, causes=likely_causes)


def _stored(against: str | PathLike[str] | Summary | Probe | None) -> Summary | None:
    if isinstance(against, str | PathLike):
        return _load(Path(against))
    if isinstance(against, Probe):
        return against.second
    if isinstance(against, Summary | None):
        return against
    raise WrongUsage(f"against is of type {type(against).__name__}: pass a file or a Probe")


def _selection(only: Iterable[str] | None, stored: Summary | None) -> LayerSelection:
    """The layers to record. If ``only`` is None, these are the layers of the saved run."""
    saved = None if stored is None else stored.only
    if only is None:
        return LayerSelection(saved)
    wanted = LayerSelection(map(str, only))
    if saved is not None and wanted.patterns != saved:
        raise WrongUsage(
            f"the saved run has only the layers {', '.join(saved)}", hint="select the same layers"
        )
    return wanted


def _module_and_inputs(model: Any, inputs: Any) -> tuple[torch.nn.Module, Any]:
    if not isinstance(model, torch.nn.Module) and callable(model):
        model = model()
        if isinstance(model, tuple) and len(model) == 2:
            model, default_inputs = model
            inputs = default_inputs if inputs is None else inputs
    if not isinstance(model, torch.nn.Module):
        raise WrongUsage(
            f"the model is of type {type(model).__name__}: it must be a torch.nn.Module",
            hint="pass the module, or a function that returns it or (module, inputs)",
        )
    if inputs is None:
        raise WrongUsage(
            "no inputs were given for the model",
            hint="pass its inputs; for 'mvc probe' define inputs() in the model's file, or give a "
            "shape: --input 1x3x224x224",
        )
    return model, inputs


# -- runs as JSON files: every field is checked, nothing is executed -------------------------------


def _save(run: Summary, path: Path) -> None:
    """Writes a run as JSON to ``path``, and its tensors, if any, to ``path`` + ``.safetensors``.

    Replaces existing files. Raises WrongUsage if the JSON would be too large for ``_load``.
    """
    fs = FileSystem()
    fields = fields_of(replace(run, tensors={}), _SCHEMA)
    del fields["tensors"]
    files = {path: json.dumps(fields, separators=(",", ":")).encode()}
    if len(files[path]) > MAX_PROBE:
        raise WrongUsage(
            f"the run has {len(run.calls):,} calls of layers, too many for one file",
            hint="select layers with 'only'",
        )
    if run.tensors:
        files[_tensors_path(path)] = save(
            {id_.hex(): tensor for id_, tensor in run.tensors.items()}
        )
    for target, data in files.items():
        fs.write_atomic(target, data)


def _tensors_path(path: Path) -> Path:
    return path.with_name(path.name + ".safetensors")


def _load(path: Path) -> Summary:
    """Reads a file that ``_save`` wrote. Raises WrongUsage for any other file, and IoFailed."""
    fs = FileSystem()
    data = fs.read_bytes(path, MAX_PROBE)
    try:
        summary = _ordered(decoded(data, Summary, _SCHEMA))
        if summary.only is not None and fs.stat(_tensors_path(path)) is not None:
            summary = replace(
                summary,
                tensors=_load_tensors(fs.read_bytes(_tensors_path(path), MAX_PROBE_TENSORS)),
            )
    except (ValueError, DamagedData, WrongUsage) as error:
        raise WrongUsage(
            f"{path} is not a summary of 'mvc probe --save': {printable(str(error))[:200]}",
            hint="write the summary again on the machine of the saved run",
        ) from error
    return summary


def _ordered(summary: Summary) -> Summary:
    if len(summary.by_key) < len(summary.calls):
        raise ValueError("a call of a layer occurs twice")
    calls = sorted(summary.calls, key=lambda call: call.forward)
    return replace(summary, calls=tuple(calls), tensors={})


def _load_tensors(data: bytes) -> dict[BlobId, torch.Tensor]:
    """The tensors of a summary's ``.safetensors`` file, each compared with its id."""
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(f"its .safetensors file is damaged: {error}") from error
    if any(print_of(tensor, name).id.hex() != name for name, tensor in tensors.items()):
        raise ValueError("a tensor in its .safetensors file does not match its hash")
    return {BlobId.parse(name): tensor for name, tensor in tensors.items()}
