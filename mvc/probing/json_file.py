"""Summaries as JSON files. What is read is checked completely, and nothing in it is executed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from msgspec.structs import replace
from safetensors import SafetensorError
from safetensors.torch import load, save

from mvc.errors import DamagedData, WrongUsage
from mvc.ids import BlobId
from mvc.io.files import FileSystem, WriteFile
from mvc.limits import MAX_PROBE, MAX_PROBE_TENSORS
from mvc.model.documents import decoded, fields_of
from mvc.model.names import printable
from mvc.probing.prints import print_of
from mvc.probing.summary import Summary

_SCHEMA = "mvc.probe-summary/1"


def save_summary(run: Summary, path: Path) -> None:
    """Writes the summary as JSON, in place of a file of that name.

    If tensors were kept, they are written beside it, to the name with ``.safetensors`` appended.
    Raises WrongUsage if the file would be too large to be read again.
    """
    fs = FileSystem()
    fields = fields_of(replace(run, kept={}), _SCHEMA)
    del fields["kept"]
    files = {path: json.dumps(fields, separators=(",", ":")).encode()}
    if len(files[path]) > MAX_PROBE:
        raise WrongUsage(
            f"the run has {len(run.calls):,} calls of layers, too many for one file",
            hint="select layers with 'only'",
        )
    if run.kept:
        files[_beside(path)] = save({id_.hex(): tensor for id_, tensor in run.kept.items()})
    for place, data in files.items():
        fs.replace_file(place, partial(_write, data), mode=None, durable=False)


def _write(data: bytes, out: WriteFile) -> None:
    out.write([data])


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".safetensors")


def load_summary(path: Path) -> Summary:
    """Reads what ``save_summary`` wrote. Raises WrongUsage for anything else, IoFailed."""
    fs = FileSystem()
    data = fs.read_bytes(path, MAX_PROBE)
    try:
        found = _ordered(decoded(data, Summary, _SCHEMA))
        if found.only is not None and fs.stat(_beside(path)) is not None:
            found = replace(found, kept=_kept(fs.read_bytes(_beside(path), MAX_PROBE_TENSORS)))
    except (ValueError, DamagedData, WrongUsage) as error:
        raise WrongUsage(
            f"{path} is no summary that 'mvc probe --save' wrote: {printable(str(error))[:200]}",
            hint="write it again on the machine that it is from",
        ) from error
    return found


def _ordered(found: Summary) -> Summary:
    if len(found.by_key) < len(found.calls):
        raise ValueError("a call of a layer occurs twice")
    calls = sorted(found.calls, key=lambda call: call.forward)
    return replace(found, calls=tuple(calls), kept={})


def _kept(data: bytes) -> dict[BlobId, torch.Tensor]:
    """The tensors of the file beside a summary, each compared with its id."""
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(f"the file of tensors beside it is damaged: {error}") from error
    if any(print_of(tensor, name).id.hex() != name for name, tensor in tensors.items()):
        raise ValueError("a tensor in the file beside it does not match its hash")
    return {BlobId.parse(name): tensor for name, tensor in tensors.items()}
