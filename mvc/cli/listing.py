"""Lists branches, tags, files and tensors, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import click

from mvc.api import FileDiff, FileEntry, LogicalTensor, Ref, TensorDiff
from mvc.cli.output import Output
from mvc.cli.session import Session
from mvc.cli.tables import Column
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.names import is_training_key, may_hold_tensors, printable
from mvc.text import count, format_time, shape, size

Facts = tuple[Mapping[str, str | int | float], Mapping[str, str]]
_T = TypeVar("_T", LogicalTensor, TensorDiff)


def of_model(tensors: Sequence[_T], *, training: bool) -> list[_T]:
    """The tensors of the model, without tensors of optimizers, schedulers and random generators.

    ``training``: whether the tensors are from a file that has only training state, no model.
    """
    return [tensor for tensor in tensors if not (training or is_training_key(tensor.key))]


def note_hidden(out: Output, left_out: int) -> None:
    """Prints the number of tensors that ``of_model`` left out, if any."""
    if left_out:
        kinds = "of optimizers, schedulers and random generators (-v lists them)"
        out.line("  " + out.paint(f"{count(left_out, 'tensor')} {kinds}", "dim"))


def changes(file: FileDiff) -> str:
    """The changes of a file: ``2 changed, 12 unchanged``, or ``added`` for a new file."""
    if file.kind in {"added", "removed"}:
        return file.kind
    kinds = Counter(tensor.kind for tensor in file.tensors)
    order = ("changed", "resized", "renamed", "added", "removed", "unchanged")
    words = [f"{kinds[kind]:,} {kind}" for kind in order if kinds[kind]]
    if file.renamed_from is not None:
        words.insert(0, f"renamed (was {printable(file.renamed_from)})")
    if file.other_changed:
        whole = (
            "differs (stored as bytes: its tensors are not compared)"
            if may_hold_tensors(file.path)
            else "differs"
        )
        words.append("bytes outside of tensors differ" if file.tensors else whole)
    return ", ".join(words) or file.kind


def file_line(out: Output, entry: FileEntry) -> str:
    """The line of a file: ``model.safetensors  safetensors, 14 tensors, 3.55 MB``."""
    parts = [entry.format, size(entry.size)]
    if entry.tensors:
        parts.insert(1, count(len(entry.tensors), "tensor"))
    return f"{out.paint(printable(entry.path), 'heading')}  {', '.join(parts)}"


def facts_of(session: Session, rev: CommitId, file: FileEntry) -> Facts:
    """The metadata of a file, and a mapping from keys of its tensors to quantisations.

    Both are empty if the file cannot be read.
    """
    with suppress(MvcError):
        return session.repo.open_file(rev, file.path, counted=False).facts
    return {}, {}


def why_opaque(session: Session, rev: CommitId, file: FileEntry) -> tuple[str, str] | None:
    """Why mvc finds no tensors in a model file, and how to save the file so that mvc finds them.

    None if mvc found tensors, if the name is not that of a model file, or if the file cannot be
    read.
    """
    if file.format == "opaque" and may_hold_tensors(file.path):
        with suppress(MvcError):  # the state cannot be read
            return session.repo.open_file(rev, file.path, counted=False).why_opaque()
    return None


def tensor_table(
    out: Output,
    tensors: Sequence[LogicalTensor],
    marks: Mapping[str, str] | None = None,
    *,
    types: Mapping[str, str],
    full: bool = False,
    most: int | None = None,
) -> None:
    """Prints tensors.

    ``marks`` maps keys to kinds of change, and ``types`` maps keys to quantisations.
    """
    rows = [
        (
            tensor.key,
            types.get(tensor.key, tensor.spec.dtype),
            shape(tensor.spec.shape),
            size(tensor.spec.nbytes),
            str(tensor.id) if full else tensor.id.short,
            (marks or {}).get(tensor.key, ""),
        )
        for tensor in tensors
    ]
    out.table("tensor, dtype, shape>, size>, id, change", rows, indent="  ", most=most)


def delete_refs(
    session: Session, kind: Literal["branch", "tag"], names: Sequence[str], *, force: bool
) -> None:
    """Deletes branches or tags."""
    if not names:
        raise click.UsageError(f"name the {kind} to delete")
    for name in names:
        session.repo.delete_ref(kind, name, force=force)
        session.note(f"Deleted {kind} {name}")


def make_ref(session: Session, kind: str, names: Sequence[str], make: Callable[..., Ref]) -> None:
    """Creates or moves the branch or tag NAME. ``names`` are the arguments: NAME [REV]."""
    if len(names) > 2:
        raise click.UsageError(f"too many arguments: mvc {kind} NAME [REV]")
    ref = make(*names)
    session.note(f"{kind.capitalize()} {ref.name} is at {ref.commit.short}")


def print_refs(
    session: Session, refs: Sequence[Ref], style: str, *, current: str | None = None
) -> None:
    """Prints a line for each ref, such as ``* main  1a2b3c4d5e  message``.

    ``current``: the branch that gets the ``*``.
    """
    columns = [
        *(Column("", style=mark) for mark in ("head", style, "id")),
        Column("", shorten="end"),
    ]
    rows = [
        ("*" if ref.name == current else "", ref.name, ref.commit.short, session.title(ref.commit))
        for ref in refs
    ]
    session.table(columns, rows)


def refs_json(session: Session, refs: Sequence[Ref]) -> list[dict[str, Any]]:
    """Name, commit, time and message of each ref."""
    versions = ((ref, session.repo.version(ref.commit)) for ref in refs)
    return [
        {
            "name": ref.name,
            "commit": ref.commit,
            "time": format_time(commit.time_ns, 0),
            "message": commit.message,
        }
        for ref, commit in versions
    ]
