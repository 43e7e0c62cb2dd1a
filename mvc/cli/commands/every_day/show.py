"""``mvc show``.

REV is HEAD by default. The files and tensors listed are those that differ from the first
parent; -v lists all. Predicted is what is stored as an optimizer's step; -v marks it. With a
TENSOR its values are printed, with -v all of them; bfloat16 and float8, which numpy lacks, as
float32, which holds them exactly. Where several files have a TENSOR, it is PATH:TENSOR. 'mvc help
revisions' says how a REV is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import click

import mvc.recipes as recipes
from mvc.api import FileDiff, FileEntry, LogEntry, LogOptions
from mvc.cli.commits import as_json as commit_json
from mvc.cli.commits import details, forgotten_on, gone, heading, live_now, signed_line
from mvc.cli.listing import Folding, entry_json, file_line, tensor_table
from mvc.cli.receipts import print_receipt
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
from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId
from mvc.text import count, printable

_FIRST = 20
_CALL = 2000  # characters


class _ShowOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[str, ...] = argument("[REV] [TENSOR]")
    at: str | None = AT
    target: str | None = TARGET
    ids: bool = flag("Print the full id, of one REV or several.", "--id", takes="words at target")
    code: bool = flag("Print the code that it carries and what would run.", takes="words at target")
    environment: bool = flag("Print the environment in which it was made.", takes="words at target")
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
            raise click.UsageError("--code and --environment take no TENSOR")
        from mvc.cli.tensor import show_tensor  # needs numpy

        show_tensor(session, rev, more[0], args.output)
    elif args.output is not None:
        raise click.UsageError("-o goes with a TENSOR")
    elif args.code:
        _show_code(session, rev)
    elif args.environment:
        from mvc.cli.environments import show_environment

        show_environment(session, rev)
    else:
        _print_commit(session, rev)


def _print_ids(session: Session, args: _ShowOptions) -> None:
    by_moment = args.at is not None or args.target is not None
    if by_moment and args.words:
        raise WrongUsage("name a REV, or a moment with --at (and its --target)")
    ids = [(rev, session.repo.find(rev)) for rev in args.words or ("HEAD",)]
    if by_moment:
        ids = [(args.at or args.target or "", session.repo.find(at=args.at, target=args.target))]
    found = [{"rev": text, "id": id_} for text, id_ in ids]
    answered = session.answered("mvc.show.id/1", {"revisions": found})
    session.lines(str(id_) for _, id_ in (() if answered else ids))


def _print_commit(session: Session, rev: CommitId) -> None:
    incomplete: list[DamagedData] = []
    options = LogOptions(reset_points=True, relations=True, changes=True)
    entry = session.repo.log(rev, options, limit=1, incomplete=incomplete)[0]
    stored = entry.forgotten_ns is None
    files = session.repo.manifest(entry.id).entries if stored else ()
    changes = entry.changes or {}
    predicted = session.repo.storage.predicted(rev) if stored else {}
    if session.as_json:
        payload = commit_json(entry) | fields(entry, "reset_point relations")
        payload["files"] = [
            entry_json(file) | _json(changes.get(file.path), predicted.get(file.path, ()))
            for file in files
        ]
        payload["removed"] = None if entry.changes is None else _removed(changes)
        session.json("mvc.show/1", payload, incomplete=incomplete)
        session.tell_incomplete(incomplete)
        return
    branch, live = session.repo.head(if_known=True).branch, live_now(session)
    session.line(heading(session, entry, branch, live, full=True))
    signed = signed_line(session, entry.id)
    session.lines(details(entry, session.now_ns(), full=session.verbose, signed=signed))
    if stored:
        if entry.changes is None:
            session.note(
                f"what it changed is not known: {_why_unknown(session, entry, incomplete)}"
            )
        _print_changes(session, files, changes, predicted)
    else:
        for receipt in session.repo.storage.receipts():
            if any(state.commit == entry.id for state in receipt.states):
                session.line()
                print_receipt(session, receipt, entry.id)
        if (left := gone(session, entry.id)) and left.way:
            session.note(left.way)
    session.tell_incomplete(incomplete)


def _print_changes(
    session: Session,
    files: Sequence[FileEntry],
    changes: Mapping[str, FileDiff],
    predicted: Mapping[str, Sequence[str]],
) -> None:
    same = 0
    folding = Folding.of({each.path for each in files}, unfold=session.verbose)
    for entry in files:
        change = changes.get(entry.path)
        if change is not None and change.kind == "unchanged" and not session.verbose:
            same += 1
            continue
        session.line()
        _print_file(
            session, entry, change, folding=folding, predicted=predicted.get(entry.path, ())
        )
    for path in _removed(changes):
        session.line()
        session.line(f"{session.paint(printable(path), 'removed')}  removed")
    if same:
        session.line()
        session.line(f"{count(same, 'file')} unchanged (-v lists them)")


def _removed(changes: Mapping[str, FileDiff]) -> list[str]:
    return [path for path, file in changes.items() if file.kind == "removed"]


def _json(change: FileDiff | None, predicted: Sequence[str]) -> dict[str, Any]:
    return {
        "renamed_from": None if change is None else change.renamed_from,
        "changed": None if change is None else _marks(change),
        "predicted": predicted,
    }


def _marks(change: FileDiff) -> dict[str, str]:
    """Added or changed, by the keys of the tensors that are not as in the parent."""
    return {
        each.key: "added" if each.kind in {"added", "renamed"} else "changed"
        for each in change.tensors
        if each.kind not in {"unchanged", "removed"}
    }


def _what(change: FileDiff, entry: FileEntry) -> str:
    if change.renamed_from is not None:
        return f"renamed (was {printable(change.renamed_from)})"
    if not entry.tensors or change.kind != "changed":
        return "new" if change.kind == "added" else change.kind
    gone = len(change.tensors) - len(entry.tensors)
    gone += sum(tensor.kind == "renamed" for tensor in change.tensors)
    removed = f", {count(gone, 'tensor')} removed" if gone else ""
    return f"{len(_marks(change)):,} changed{removed}"


def _why_unknown(session: Session, entry: LogEntry, incomplete: list[DamagedData]) -> str:
    if incomplete:
        return "its parent cannot be read"
    parent = entry.commit.parents[0]
    left = gone(session, parent)
    when = forgotten_on(left.time_ns if left else None)
    what = "is not here" if left and left.why == "absent" else f"was {when}"
    return f"the state of its parent {what}" + (f"; {left.way}" if left and left.way else "")


def _print_file(
    session: Session,
    entry: FileEntry,
    change: FileDiff | None,
    *,
    folding: Folding,
    predicted: Sequence[str],
) -> None:
    """``predicted``: the tensors that are stored as an optimizer's step."""
    verbose = session.verbose
    marks, what = ({}, "") if change is None else (_marks(change), _what(change, entry))
    stored = f"{len(predicted)} predicted" if predicted else ""
    session.line(", ".join(filter(None, (file_line(session, entry), what, stored))))
    changed = [t for t in entry.tensors if verbose or t.key in marks]
    tensors = [t for t in changed if folding.keeps(entry.path, t.key)]
    if not verbose:  # all of them changed: only what is new needs a word
        marks = {key: word for key, word in marks.items() if word == "added" and what != "new"}
    words = ((key, filter(None, (marks.get(key), "predicted"))) for key in predicted)
    marks = {**marks, **({key: ", ".join(each) for key, each in words} if verbose else {})}
    most = None if verbose else _FIRST
    tensor_table(session, tensors, marks, full=session.verbosity > 1, most=most)
    folding.tell(session, len(changed) - len(tensors))


def _show_code(session: Session, rev: CommitId) -> None:
    """Prints what ``load_model`` and ``retrain`` would run; nothing is run here."""
    files = {
        name: data.decode("utf-8", "replace")
        for name, data in recipes.code(session.repo, rev).items()
    }
    carries_model = "model.json" in session.repo.version(rev).attached
    call = recipes.model(session.repo, rev).call if carries_model else None
    calls = recipes.calls(session.repo, rev)
    shown = [fields(each, "text stored") for each in calls]
    if session.answered("mvc.show.code/1", {"call": call, "calls": shown, "code": files}):
        return
    if call is not None:
        session.line(session.paint(f"# builds the model: {call}", "heading"))
    if calls:
        session.line(session.paint("# trains it again (*: of installed code)", "heading"))
    for each in calls:
        more = len(each.text) - _CALL
        cut = f"... ({more:,} more characters: --json)" if more > 0 else ""
        session.line(f"{' ' if each.stored else '*'} {each.text[:_CALL]}{cut}")
    for name, text in files.items():
        session.line()
        session.line(session.paint(f"# {printable(name)}", "heading"))
        session.lines(
            "\t".join(map(printable, line.removesuffix("\n").split("\t")))
            for line in StringIO(text, newline=None)
        )
    if not files:
        session.note("the version carries no source files")
