"""``mvc diff``.

A and B are revisions or files on disk. Without B, A is compared with the files of the
working folder; without A, HEAD is. A state recorded from Python, or imported, that was
never written as a file is compared as HEAD has it. Only tensors whose hashes differ are
read, and 40 of them are listed; -v lists all, unchanged ones too. 'changed' is the share of
elements whose bits differ, L2 and max |d| are of the difference, cosine is between old and new.
With --environment, the environment of A is compared with that of B, or of this machine:
fields that must be equal (exact) and that should not matter (compatible); -v also lists
ignored ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mvc.api import Diff, FileDiff, TensorDiff
from mvc.cli.listing import changes, of_model, tell_folded
from mvc.cli.verb import CommandOptions, PathText, Session, argument, fields, flag, verb
from mvc.names import training_files
from mvc.text import count, listed, number, percent, printable, shape

_COLUMNS = "tensor, kind, shape>, changed>, L2>, max |d|>, cosine>, not finite>"
_MOST_ROWS = 40  # of one file, unless all are asked for
_MOST_UNCHANGED = 12  # more are only counted
_Types = tuple[Mapping[str, str], Mapping[str, str]]
_STYLES = {"added": "added", "removed": "removed", "changed": None, "unchanged": "dim"}


class _DiffOptions(CommandOptions, frozen=True, kw_only=True):
    a: PathText | None = argument("[A]")
    b: PathText | None = argument("[B]")
    paths: tuple[PathText, ...] = argument("[PATH]...")
    stat: bool = flag("One line a file.")
    environment: bool = flag(
        "Compare the environments in which they were made.", takes="a b exit_code"
    )
    exit_code: bool = flag("Exit with 1 if anything differs; of environments, if results may.")


@verb("mvc diff HEAD~1 HEAD", _DiffOptions, pages=True)
def command(session: Session, args: _DiffOptions) -> int:
    if args.environment:
        from mvc.cli.environments import compare_environments

        return int(compare_environments(session, args.a or "HEAD", args.b) and args.exit_code)
    found = session.run(
        "comparing", session.repo.diff, args.a, args.b, paths=session.names(args.paths)
    )
    _tell_from_head(session, found, named=args.a)
    for path, why in found.unmeasured.items():
        session.note(f"{session.from_here(path)}: compared by hashes only: {why}")
    if found.unmeasured:
        session.note("hint: 'mvc retrain REV --trust-code' stores the weights again")
    if not session.answered("mvc.diff/1", {"differs": _differs(found)} | fields(found)):
        _print(session, found, stat=args.stat)
    return int(args.exit_code and _differs(found))


def _tell_from_head(session: Session, found: Diff, named: str | None) -> None:
    """Says for which paths HEAD replaced a file that is not there; how to name two versions."""
    if found.from_head:
        paths = listed([session.from_here(path) for path in found.from_head], 3)
        more = "; for what it changed: mvc diff HEAD~1" if named is None else ""
        session.note(f"{paths}: no file here, taken as in HEAD{more}")


def _differs(found: Diff) -> bool:
    return any(f.kind != "unchanged" for f in found.files)


def _print(session: Session, found: Diff, *, stat: bool) -> None:
    training = training_files({f.path for f in found.files})
    for what, pairs in (("Metrics", found.metrics), ("Params", found.params)):
        words = [f"{printable(n)} {_word(a)} -> {_word(b)}" for n, (a, b) in pairs.items()]
        if words:
            session.line(f"{what + ':':9} {', '.join(words)}")
    for file in found.files:
        if file.kind == "unchanged" and not session.verbose:
            continue
        headline = changes(file) + _relation(found, file)
        session.line(f"{session.paint(printable(file.path), 'heading')}  {headline}")
        tensors = [t for t in file.tensors if session.verbose or t.kind != "unchanged"]
        whole = file.kind in {"added", "removed"} and not session.verbose
        if tensors and not stat and not whole:
            _print_tensors(session, file, tensors, training=file.path in training)
    changed = sum(f.kind != "unchanged" for f in found.files)
    of = count(len(found.files), "file")
    differ = "differs" if changed == 1 else "differ"
    session.line(f"{changed:,} of {of} {differ}" if changed else f"No difference in {of}")


def _word(value: float | str | None) -> str:
    if value is None:
        return "(none)"
    return printable(value) if isinstance(value, str) else number(value)


def _print_tensors(
    session: Session, file: FileDiff, changed: Sequence[TensorDiff], *, training: bool
) -> None:
    tensors = changed if session.verbose else of_model(changed, training=training)
    most = None if session.verbose else _MOST_ROWS
    styles = [_STYLES.get(t.kind, "changed") for t in tensors]
    rows = (_row(tensor, file.types) for tensor in tensors)
    session.table(_COLUMNS, rows, indent="  ", styles=styles, most=most)
    tell_folded(session, len(changed) - len(tensors))
    unchanged = [t for t in file.tensors if t.kind == "unchanged"]
    same = [printable(t.key) for t in of_model(unchanged, training=training)]
    if same and len(same) <= _MOST_UNCHANGED and not session.verbose:
        session.line("  " + session.paint(f"unchanged: {', '.join(same)}", "dim"))
    session.line()


def _relation(found: Diff, file: FileDiff) -> str:
    """`` (fine-tuned version)``, with the base's path if it is another one.

    Empty for no model, and for what the rest of the line says already: a new file without a base,
    and a model whose file is renamed and otherwise the same.
    """
    related = found.relations.get(file.path)
    told = {("base", "added"), ("equal", "renamed")}
    if related is None or (related.kind, file.kind) in told:
        return ""
    moved = related.base_path not in {None, related.path}
    of = f" of {printable(related.base_path or '')}" if moved else ""
    return " (nothing in common)" if related.kind == "base" else f" ({related.kind}{of})"


def _row(tensor: TensorDiff, types: _Types) -> tuple[str, ...]:
    name = printable(tensor.key)
    if tensor.renamed_from is not None and tensor.renamed_from != tensor.key:
        name = f"{printable(tensor.renamed_from)} -> {name}"
    return (
        name,
        "" if tensor.kind == "changed" else tensor.kind,
        _shapes(tensor, types),
        "" if tensor.changed_share is None else percent(tensor.changed_share, 1),
        "" if tensor.l2 is None else number(tensor.l2),
        "" if tensor.max_abs is None else number(tensor.max_abs),
        "" if tensor.cosine is None else f"{tensor.cosine:.6f}",
        f"{tensor.nonfinite:,}" if tensor.nonfinite else "",
    )


def _shapes(tensor: TensorDiff, types: _Types) -> str:
    """One shape, or old and new; dtypes where they differ, and always how it is quantised."""
    quantised = types[0].get(tensor.renamed_from or tensor.key), types[1].get(tensor.key)
    specs = zip(quantised, (tensor.old_spec, tensor.new_spec), strict=True)
    sides = [(kind or spec.dtype, shape(spec.shape)) for kind, spec in specs if spec]
    (old, before), (new, after) = sides[0], sides[-1]
    if old == new:
        shapes = before if before == after else f"{before} -> {after}"
        return f"{old} {shapes}" if any(quantised) else shapes
    return f"{old} -> {new} {after}" if before == after else f"{old} {before} -> {new} {after}"
