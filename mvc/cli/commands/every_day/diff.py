"""``mvc diff``.

A and B are revisions, files or folders. A..B is the same as A B. Without B, mvc compares A with the
working folder. Without A and B, mvc compares HEAD with the working folder. 'changed' is the share
of elements whose bits differ. L2 and max |d| are norms of the difference, and cosine is the cosine
of the angle between old and new values. mvc lists at most 40 tensors of a file, or all with -v. The
words in brackets compare a model with the old model. If the names and shapes of all tensors agree,
all tensors are equal ('equal'), some ('fine-tuned version') or none ('fully updated'). If only some
agree, some of these tensors are equal ('extended') or none ('derived architecture'). If none
agrees, the words are 'nothing in common'.

With --environment, mvc compares the recorded environments of A and B (versions of Python and
packages, CPU, settings). Without B, mvc compares A with this machine. If a field of grade 'exact'
differs, results may differ. If a field of grade 'compatible' differs, results should be equal. -v
lists ignored fields, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mvc.api import Diff, FileDiff, TensorDiff
from mvc.cli.listing import changes, note_hidden, of_model
from mvc.cli.verb import CommandOptions, PathText, Session, argument, fields, flag, verb
from mvc.names import training_files
from mvc.text import count, listed, number, percent, printable, shape

_COLUMNS = "tensor, kind, shape>, changed>, L2>, max |d|>, cosine>, not finite>"
_MOST_ROWS = 40  # limit of tensors of one file, without -v
_MOST_UNCHANGED = 12  # limit of names of unchanged tensors
_Types = tuple[Mapping[str, str], Mapping[str, str]]
_STYLES = {"added": "added", "removed": "removed", "changed": None, "unchanged": "dim"}


class _DiffOptions(CommandOptions, frozen=True, kw_only=True):
    a: PathText | None = argument("[A]")
    b: PathText | None = argument("[B]")
    paths: tuple[PathText, ...] = argument("[PATH]...")
    stat: bool = flag("Print one line for each file.")
    environment: bool = flag("Compare environments, not files.", allows="a b exit_code")
    exit_code: bool = flag(
        "Exit with 1 if files differ; with --environment, if a field of grade 'exact' differs."
    )


@verb("mvc diff HEAD~1 HEAD", _DiffOptions, pages=True)
def command(session: Session, args: _DiffOptions) -> int:
    a, b, paths = _ends(session, args)
    if args.environment:
        from mvc.cli.environments import compare_environments

        return int(compare_environments(session, a or "HEAD", b) and args.exit_code)
    diff = session.run("comparing", session.repo.diff, a, b, paths=session.names(paths))
    _note_from_head(session, diff, named=a)
    for path, why in diff.unmeasured.items():
        session.note(f"{session.from_here(path)}: only hashes are compared: {why}")
    if diff.unmeasured:
        session.note("hint: 'mvc retrain REV --trust-code' stores the weights again")
    if not session.answered("mvc.diff/1", {"differs": _differs(diff)} | fields(diff)):
        print_diff(session, diff, stat=args.stat)
    return int(args.exit_code and _differs(diff))


def _ends(session: Session, args: _DiffOptions) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Splits the arguments into A, B and PATHs.

    If the first argument is ``A..B``, and no file has this name, all other arguments are PATHs.
    """
    ends = (args.a or "").split("..")
    if len(ends) != 2 or not any(ends) or session.fs.stat(session.fs.cwd() / str(args.a)):
        return args.a, args.b, args.paths
    paths = args.paths if args.b is None else (args.b, *args.paths)
    return ends[0] or "HEAD", ends[1] or "HEAD", paths


def _note_from_head(session: Session, diff: Diff, named: str | None) -> None:
    """Prints the paths without a file on disk. For these paths, files in HEAD were compared."""
    if diff.from_head:
        paths = listed([session.from_here(path) for path in diff.from_head], 3)
        more = "; for the changes of HEAD: mvc diff HEAD~1" if named is None else ""
        session.note(f"{paths}: no file on disk, compared as in HEAD{more}")


def _differs(diff: Diff) -> bool:
    return any(f.kind != "unchanged" for f in diff.files)


def print_diff(session: Session, diff: Diff, *, stat: bool) -> None:
    """Prints metrics, params and files that differ. Without ``stat``, prints tensors, too."""
    training = training_files({f.path for f in diff.files})
    for title, pairs in (("Metrics", diff.metrics), ("Params", diff.params)):
        words = [f"{printable(n)} {_word(a)} -> {_word(b)}" for n, (a, b) in pairs.items()]
        if words:
            session.line(f"{title + ':':9} {session.few(words, (session.width or 0) - 10, ', ')}")
    for file in diff.files:
        if file.kind == "unchanged" and not session.verbose:
            continue
        session.line(
            f"{session.paint(printable(file.path), 'heading')}  "
            f"{changes(file)}{_relation(diff, file)}"
        )
        tensors = [t for t in file.tensors if session.verbose or t.kind != "unchanged"]
        whole = file.kind in {"added", "removed"} and not session.verbose
        if tensors and not stat and not whole:
            _print_tensors(session, file, tensors, training=file.path in training)
    changed = sum(f.kind != "unchanged" for f in diff.files)
    files = count(len(diff.files), "file")
    differ = "differs" if changed == 1 else "differ"
    session.line(f"{changed:,} of {files} {differ}" if changed else f"No difference in {files}")


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
    session.table(
        _COLUMNS,
        (_row(tensor, file.types) for tensor in tensors),
        indent="  ",
        styles=styles,
        most=most,
    )
    note_hidden(session, len(changed) - len(tensors))
    unchanged = [t for t in file.tensors if t.kind == "unchanged"]
    same = [printable(t.key) for t in of_model(unchanged, training=training)]
    if same and len(same) <= _MOST_UNCHANGED and not session.verbose:
        session.line("  " + session.paint(f"unchanged: {', '.join(same)}", "dim"))
    session.line()


def _relation(diff: Diff, file: FileDiff) -> str:
    """How a model differs from the old model, such as `` (fine-tuned version)``.

    If the old model has another path, the text names this path. The text is empty if the file is
    no model. It is empty, too, for an added file without a related old model, and for a renamed
    file with equal tensors, because the line already says this.
    """
    related = diff.relations.get(file.path)
    implied = {("base", "added"), ("equal", "renamed")}
    if related is None or (related.kind, file.kind) in implied:
        return ""
    moved = related.base_path not in {None, related.path}
    base = f" of {printable(related.base_path or '')}" if moved else ""
    return " (nothing in common)" if related.kind == "base" else f" ({related.kind}{base})"


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
    """The shape of a tensor, or its old and new shapes.

    The text has dtypes if the dtypes differ, or if a tensor is quantised.
    """
    quantised = types[0].get(tensor.renamed_from or tensor.key), types[1].get(tensor.key)
    specs = zip(quantised, (tensor.old_spec, tensor.new_spec), strict=True)
    sides = [(kind or spec.dtype, shape(spec.shape)) for kind, spec in specs if spec]
    (old, before), (new, after) = sides[0], sides[-1]
    if old == new:
        shapes = before if before == after else f"{before} -> {after}"
        return f"{old} {shapes}" if any(quantised) else shapes
    return f"{old} -> {new} {after}" if before == after else f"{old} {before} -> {new} {after}"
