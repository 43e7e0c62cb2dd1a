"""``mvc show``.

REV is HEAD by default ('mvc help revisions'). mvc lists files and tensors that differ from the
first parent; -v lists all. A 'predicted' tensor is stored as the difference from an optimizer step.
With TENSOR, mvc prints some values; with -v, all values. bfloat16 and float8 are printed as
float32. If several files have this TENSOR, write PATH:TENSOR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import click

import mvc.recipes as recipes
from mvc.api import FileDiff, FileEntry, LogEntry, LogOptions
from mvc.cli.commits import as_json as commit_json
from mvc.cli.commits import details, missing_state, names_of, signed_line
from mvc.cli.listing import (
    Facts,
    changes,
    facts_of,
    file_line,
    note_hidden,
    of_model,
    tensor_table,
)
from mvc.cli.receipts import print_receipt
from mvc.cli.tables import Column
from mvc.cli.verb import (
    AT,
    TARGET,
    CommandOptions,
    PathText,
    Session,
    argument,
    fields,
    flag,
    option,
    verb,
)
from mvc.ids import CommitId
from mvc.names import training_files
from mvc.text import count, printable

_FIRST = 20
_LONGEST = 200  # limit of characters of a value of metadata


class _ShowOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[str, ...] = argument("[REV] [TENSOR]")
    at: str | None = AT
    target: str | None = TARGET
    ids: bool = flag("Print only the full id of each REV.", "--id", allows="words at target")
    code: bool = flag(
        "Print the code of the version, and the calls of its recipe.", allows="words at target"
    )
    environment: bool = flag(
        "Print the recorded environment of the version.", allows="words at target"
    )
    output: PathText | None = option(
        "FILE.npy", "With TENSOR: save the values for numpy.load.", "-o"
    )


@verb("mvc show main~2", _ShowOptions, pages=True)
def command(session: Session, args: _ShowOptions) -> None:
    if args.ids:
        _print_ids(session, args)
        return
    named, more = session.moment_or_rev(args.words, args.at, args.target)
    rev = session.repo.find(named)
    if len(more) > 1:
        raise click.UsageError("name one TENSOR")
    if more:
        if args.code or args.environment:
            raise click.UsageError("--code and --environment cannot be combined with a TENSOR")
        from mvc.cli.tensor import show_tensor  # needs numpy

        show_tensor(session, rev, more[0], args.output)
    elif args.output is not None:
        raise click.UsageError("-o needs a TENSOR")
    elif args.code:
        _show_code(session, rev)
    elif args.environment:
        from mvc.cli.environments import show_environment

        show_environment(session, rev)
    else:
        _print_version(session, rev)


def _print_ids(session: Session, args: _ShowOptions) -> None:
    moment = args.at is not None or args.target is not None
    revs = args.words or ((None,) if moment else ("HEAD",))
    ids = [session.repo.find(rev, at=args.at, target=args.target) for rev in revs]
    revisions = [{"rev": rev, "id": id_} for rev, id_ in zip(revs, ids, strict=True)]
    if not session.answered("mvc.show.id/1", {"revisions": revisions}):
        session.lines(map(str, ids))


def _print_version(session: Session, rev: CommitId) -> None:
    entry = session.repo.log(
        rev,
        LogOptions(reset_points=True, relations=True, changes=True),
        limit=1,
        incomplete=session.incomplete,
    )[0]
    stored = entry.forgotten_ns is None
    files = session.repo.manifest(entry.id).entries if stored else ()
    predicted = session.repo.storage.predicted(rev) if stored else {}
    steps = recipes.steps(session.repo, rev) if stored else None
    if session.as_json:
        facts = {file.path: facts_of(session, rev, file) for file in files}
        session.json("mvc.show/1", _json(entry, files, predicted, facts) | {"steps": steps})
        return
    session.lines(
        session.folded(session.paint(f"commit {entry.id}", "id") + names_of(session)(entry))
    )
    session.lines(details(session, entry, signed=signed_line(session, entry.id), steps=steps))
    if stored:
        if entry.changes is None:
            missing = missing_state(session, entry.commit.parents[0])
            hint = f"; {missing.hint}" if missing and missing.hint else ""
            session.note(f"changes are unknown: the parent cannot be read{hint}")
        _print_files(session, entry.id, files, entry.changes or {}, predicted=predicted)
        return
    for receipt in session.repo.storage.receipts():
        if any(state.commit == entry.id for state in receipt.states):
            session.line()
            print_receipt(session, receipt, entry.id)
    if (missing := missing_state(session, entry.id)) and missing.hint:
        session.note(missing.hint)


def _print_files(
    session: Session,
    rev: CommitId,
    files: Sequence[FileEntry],
    changed: Mapping[str, FileDiff],
    *,
    predicted: Mapping[str, Sequence[str]],
) -> None:
    training = training_files({file.path for file in files})
    same = {path for path, change in changed.items() if change.kind == "unchanged"}
    for file in files:
        if session.verbose or file.path not in same:
            session.line()
            _print_file(
                session, file, changed.get(file.path), predicted.get(file.path, ()),
                facts=facts_of(session, rev, file), training=file.path in training,
            )  # fmt: skip
    for path in _removed(changed):
        session.line()
        session.line(f"{session.paint(printable(path), 'removed')}  removed")
    if same and not session.verbose:
        session.line()
        session.line(f"{count(len(same), 'file')} unchanged (-v lists them)")


def _print_file(
    session: Session,
    file: FileEntry,
    change: FileDiff | None,
    predicted: Sequence[str],
    *,
    facts: Facts,
    training: bool,
) -> None:
    """Prints a file. ``predicted``: names of tensors that are stored as an optimizer step."""
    changed = "" if change is None else changes(change)
    steps = f"{len(predicted)} predicted" if predicted else ""
    session.line(", ".join(filter(None, (file_line(session, file), changed, steps))))
    most = None if session.verbose else _FIRST
    longest = None if session.verbose else _LONGEST
    metadata = ((name, str(value)[:longest]) for name, value in facts[0].items())
    session.table([Column("metadata"), Column("", shorten="end")], metadata, indent="  ", most=most)
    marks = _marks(change) | dict.fromkeys(predicted, "predicted")
    tensors = [t for t in file.tensors if session.verbose or t.key in marks]
    shown = tensors if session.verbose else of_model(tensors, training=training)
    tensor_table(session, shown, marks, types=facts[1], full=session.verbosity > 1, most=most)
    note_hidden(session, len(tensors) - len(shown))


def _marks(change: FileDiff | None) -> dict[str, str]:
    """Maps the key of each tensor that differs from the parent to the kind of change."""
    tensors = () if change is None else change.tensors
    return {t.key: t.kind for t in tensors if t.kind not in {"unchanged", "removed"}}


def _removed(changed: Mapping[str, FileDiff]) -> list[str]:
    return [path for path, file in changed.items() if file.kind == "removed"]


def _json(
    entry: LogEntry,
    files: Sequence[FileEntry],
    predicted: Mapping[str, Sequence[str]],
    facts: Mapping[str, Facts],
) -> dict[str, Any]:
    """A version as JSON. If the parent cannot be read, ``changed`` and ``removed`` are None."""
    known, payload = entry.changes, commit_json(entry) | fields(entry, "reset_point relations")
    payload["files"] = [
        fields(file)
        | {
            "renamed_from": known and known[file.path].renamed_from,
            "changed": known and _marks(known[file.path]),
            "predicted": predicted.get(file.path, ()),
            "metadata": facts[file.path][0],
            "types": facts[file.path][1],
        }
        for file in files
    ]
    payload["removed"] = None if known is None else _removed(known)
    return payload


def _show_code(session: Session, rev: CommitId) -> None:
    """Prints the code that ``load_model`` and ``retrain`` would run, without running it."""
    code = recipes.code(session.repo, rev)
    files = {name: data.decode("utf-8", "replace") for name, data in code.items()}
    carrier = recipes.carrier_of(session.repo, rev)
    carried = session.repo.version(carrier).attached
    call = recipes.model(session.repo, carrier).call if "model.json" in carried else None
    calls = recipes.calls(session.repo, rev)
    shown = [fields(part, "text stored") for part in calls]
    if session.answered("mvc.show.code/1", {"call": call, "calls": shown, "code": files}):
        return
    if call is not None:
        session.line(session.paint(f"# call that builds the model: {call}", "heading"))
    if calls:
        session.line(session.paint("# calls of the recipe (*: code that is not stored)", "heading"))
        session.lines(f"{' ' if part.stored else '*'} {part.text}" for part in calls)
    for name, text in files.items():
        session.line()
        session.line(session.paint(f"# {printable(name)}", "heading"))
        session.lines(
            "\t".join(map(printable, line.removesuffix("\n").split("\t")))
            for line in StringIO(text, newline=None)
        )
    if not files:
        session.note("the version has no source files")
