"""``mvc diff``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mvc.cli.options import json_option, revision
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.cli.text import count, number, percent, shape
from mvc.model.names import printable
from mvc.repo.diff.diff import diff

if TYPE_CHECKING:
    from mvc.model.tensor import TensorSpec
    from mvc.repo.diff.diff import Diff, FileDiff, TensorDiff

_COLUMNS = (
    Column("tensor", give="middle"),
    Column("kind"),
    Column("shape", right=True, give="middle"),
    Column("changed", right=True),
    Column("L2", right=True),
    Column("max |d|", right=True),
    Column("cosine", right=True),
    Column("not finite", right=True),
)
_MOST_ROWS = 40  # of one file, unless all are asked for
_MOST_UNCHANGED = 12  # more are only counted
_STYLES = {"added": "added", "removed": "removed", "changed": None, "unchanged": "dim"}


@click.command("diff", cls=Verb, example="mvc diff HEAD~1 HEAD")
@revision("A", required=False)
@revision("B", required=False)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--stat", is_flag=True, help="One line a file.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if anything differs.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    a: str | None,
    b: str | None,
    paths: tuple[str, ...],
    stat: bool,
    exit_code: bool,
    as_json: bool,
) -> None:
    """Compare two versions tensor by tensor.

    A and B are revisions or files on disk. Without B, A is compared with the files of the
    working folder; without A, HEAD is. A state recorded from Python that has no file is
    compared as HEAD has it. Only tensors whose hashes differ are read, and 40 of
    them are listed; -v lists all, unchanged ones too. 'changed' is the share of elements whose
    bits differ, L2 and max |d| are of the difference, cosine is between old and new.
    """
    session: Session = ctx.obj
    with session.progress("comparing") as progress:
        found = diff(session.context, a, b, session.names(paths), progress=progress)
    _tell_from_head(session, found, named=a)
    if as_json:
        session.out.json("mvc.diff/1", _json(found))
    else:
        _print(session, found, stat=stat)
    if exit_code and _differs(found):
        ctx.exit(1)


def _tell_from_head(session: Session, found: Diff, named: str | None) -> None:
    """Says that HEAD stood in for files; without a revision, how to name two."""
    if not found.from_head:
        return
    paths = ", ".join(map(session.from_here, found.from_head[:3]))
    if (more := len(found.from_head) - 3) > 0:
        paths += f" and {more:,} more"
    text = f"{paths}: recorded from Python and not written as a file, taken as in HEAD"
    if named is None:
        text += "; for what it changed: mvc diff HEAD~1"
    session.out.note(text)


def _differs(found: Diff) -> bool:
    return any(f.kind != "unchanged" for f in found.files)


def _print(session: Session, found: Diff, *, stat: bool) -> None:
    out = session.out
    for file in found.files:
        if file.kind == "unchanged" and not session.verbose:
            continue
        out.line(f"{out.paint(printable(file.path), 'heading')}  {_headline(file)}")
        listed = [t for t in file.tensors if session.verbose or t.kind != "unchanged"]
        if file.kind in {"added", "removed"} and not session.verbose:
            listed = []
        if listed and not stat:
            _print_tensors(session, file, listed)
    changed = sum(f.kind != "unchanged" for f in found.files)
    of = count(len(found.files), "file")
    verb = "differs" if changed == 1 else "differ"
    text = f"{changed:,} of {of} {verb}" if changed else f"No difference in {of}"
    out.line(f"{text}, compared by {count(found.comparisons, 'hash', 'hashes')}")


def _print_tensors(session: Session, file: FileDiff, listed: Sequence[TensorDiff]) -> None:
    out = session.out
    shown = listed if session.verbose else listed[:_MOST_ROWS]
    styles = [_STYLES.get(t.kind, "changed") for t in shown]
    show(out, _COLUMNS, [_row(t) for t in shown], indent="  ", styles=styles)
    if len(shown) < len(listed):
        out.line(f"  ... and {len(listed) - len(shown):,} more (-v lists all)")
    same = [printable(t.key) for t in file.tensors if t.kind == "unchanged"]
    if same and len(same) <= _MOST_UNCHANGED and not session.verbose:
        out.line("  " + out.paint(f"unchanged: {', '.join(same)}", "dim"))
    out.line()


def _headline(file: FileDiff) -> str:
    if file.kind in {"added", "removed"}:
        tensors = f", {count(len(file.tensors), 'tensor')}" if file.tensors else ""
        return file.kind + tensors
    kinds: dict[str, int] = {}
    for tensor in file.tensors:
        kinds[tensor.kind] = kinds.get(tensor.kind, 0) + 1
    order = ("changed", "resized", "renamed", "added", "removed", "unchanged")
    words = [f"{kinds[k]:,} {k}" for k in order if k in kinds]
    if file.renamed_from is not None:
        words.insert(0, f"was {printable(file.renamed_from)}")
    if file.other_changed:
        words.append("other bytes differ")
    return ", ".join(words) or file.kind


def _row(tensor: TensorDiff) -> tuple[str, ...]:
    name = printable(tensor.key)
    if tensor.renamed_from is not None and tensor.renamed_from != tensor.key:
        name = f"{printable(tensor.renamed_from)} -> {name}"
    share = tensor.changed_share
    return (
        name,
        "" if tensor.kind == "changed" else tensor.kind,
        _shapes(tensor.old_spec, tensor.new_spec),
        "" if share is None else percent(share, 1),
        "" if tensor.l2 is None else number(tensor.l2),
        "" if tensor.max_abs is None else number(tensor.max_abs),
        "" if tensor.cosine is None else f"{tensor.cosine:.6f}",
        f"{tensor.nonfinite:,}" if tensor.nonfinite else "",
    )


def _shapes(old: TensorSpec | None, new: TensorSpec | None) -> str:
    """One shape, or old and new; dtypes only where they differ."""
    if old is None or new is None or old == new:
        spec = new or old
        return shape(spec.shape) if spec else ""
    if old.dtype == new.dtype:
        return f"{shape(old.shape)} -> {shape(new.shape)}"
    if old.shape == new.shape:
        return f"{old.dtype} -> {new.dtype} {shape(new.shape)}"
    return f"{old.dtype} {shape(old.shape)} -> {new.dtype} {shape(new.shape)}"


def _spec_json(spec: TensorSpec | None) -> dict[str, Any] | None:
    return None if spec is None else {"dtype": spec.dtype, "shape": list(spec.shape)}


def _json(found: Diff) -> dict[str, Any]:
    return {
        "a": found.a,
        "b": found.b,
        "differs": _differs(found),
        "comparisons": found.comparisons,
        "from_head": list(found.from_head),
        "files": [
            {
                "path": f.path,
                "kind": f.kind,
                "renamed_from": f.renamed_from,
                "comparisons": f.comparisons,
                "other_changed": f.other_changed,
                "tensors": [
                    {
                        "key": t.key,
                        "kind": t.kind,
                        "renamed_from": t.renamed_from,
                        "old": _spec_json(t.old_spec),
                        "new": _spec_json(t.new_spec),
                        "changed_share": t.changed_share,
                        "l2": t.l2,
                        "max_abs": t.max_abs,
                        "cosine": t.cosine,
                        "nonfinite": t.nonfinite,
                    }
                    for t in f.tensors
                ],
            }
            for f in found.files
        ],
    }
