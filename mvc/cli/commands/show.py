"""``mvc show``.

REV is HEAD by default. The files and tensors listed are those that differ from the first
parent; -v lists all. Predicted is what is stored as an optimizer's step; -v marks it. With a
TENSOR its values are printed, with -v all of them; bfloat16 and float8, which numpy lacks, as
float32, which holds them exactly. Where several files have a TENSOR, it is PATH:TENSOR. 'mvc help
revisions' says how a REV is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from io import StringIO

import click
from msgspec import Struct, field

import mvc.recipes as recipes
from mvc.cli.commits import as_json as commit_json
from mvc.cli.commits import details, forgotten_on, heading, live_now, signed_line
from mvc.cli.listing import Folding, entry_json, file_line, tensor_table
from mvc.cli.receipts import print_receipt
from mvc.cli.verb import (
    AT,
    TARGET,
    CommandOptions,
    Session,
    argument,
    check_alone,
    fields,
    flag,
    option,
    verb,
)
from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId
from mvc.model.manifest import FileEntry, Manifest
from mvc.names import printable
from mvc.repo.content.compare import compare_files, renames
from mvc.repo.history.log import LogEntry, LogOptions
from mvc.text import count

_FIRST = 20
_CALL = 2000  # characters
_EMPTY = Manifest(())


class _ShowOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[str, ...] = argument("[REV] [TENSOR]")
    at: str | None = AT
    target: str | None = TARGET
    ids: bool = flag("Print the full id, of one REV or several.", "--id")
    code: bool = flag("Print the code that it carries and what would run.")
    environment: bool = flag("Print the environment in which it was made.")
    output: str | None = option("FILE.npy", "With TENSOR: save the values for numpy.load.", "-o")


@verb("mvc show main~2", _ShowOptions, pages=True)
def command(session: Session, args: _ShowOptions) -> None:
    if args.ids:
        check_alone("ids", takes="words at target")
        _print_ids(session, args)
        return
    named, more = session.moment_or_rev(args.words, args.at, args.target)
    rev = session.repository.find(named)
    if len(more) > 1:
        raise click.UsageError("name one TENSOR")
    if args.code or args.environment:
        check_alone("code" if args.code else "environment", takes="words at target")
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
    repository, command = session.repository, click.get_current_context().info_name
    if args.at is not None or args.target is not None:
        if args.words:
            raise WrongUsage("name a REV, or a moment with --at (and its --target)")
        rev = args.at or args.target
        ids = [(rev, repository.find(at=args.at, target=args.target))]
    else:
        if command == "rev-parse" and not args.words:  # in scripts, an empty variable is no HEAD
            raise WrongUsage("name a REV, or a moment with --at (and its --target)")
        ids = [(rev, repository.find(rev)) for rev in args.words or ("HEAD",)]
    if session.as_json:
        found = [{"rev": text, "id": id_} for text, id_ in ids]
        schema = "mvc.rev-parse/1" if command == "rev-parse" else "mvc.show.id/1"
        session.out.json(schema, {"revisions": found})
        return
    for _, id_ in ids:
        session.out.line(str(id_))


def _print_commit(session: Session, rev: CommitId) -> None:
    out, repository = session.out, session.repository
    incomplete: list[DamagedData] = []
    found = repository.log(
        rev, LogOptions(reset_points=True, relations=True), limit=1, incomplete=incomplete
    )
    entry = found[0]
    manifest = repository.manifest(entry.id) if entry.forgotten_ns is None else _EMPTY
    parent = _parent(session, entry, incomplete)
    files, removed = _compared(parent, manifest)
    predicted = repository.storage.predicted(rev) if entry.forgotten_ns is None else {}
    if session.as_json:
        payload = commit_json(entry) | fields(entry, "reset_point relations")
        payload["files"] = [
            entry_json(file.entry)
            | {
                "renamed_from": file.renamed_from,
                "changed": None if parent is None else file.marks,
                "predicted": predicted.get(file.entry.path, ()),
            }
            for file in files
        ]
        payload["removed"] = removed
        out.json("mvc.show/1", payload, incomplete=incomplete)
        session.tell_incomplete(incomplete)
        return
    live = live_now(session)
    out.line(heading(out, entry, repository.head(if_known=True).branch, live, full=True))
    signed = signed_line(session, entry.id)
    for line in details(entry, session.now_ns(), full=session.verbose, signed=signed):
        out.line(line)
    if entry.forgotten_ns is not None:
        for receipt in repository.storage.receipts():
            if any(state.commit == entry.id for state in receipt.states):
                out.line()
                print_receipt(session, receipt, entry.id)
        if (way := repository.way_to_state(entry.id)) is not None:
            out.note(way)
    else:
        if parent is None:
            out.note(f"what it changed is not known: {_why_unknown(session, entry, incomplete)}")
        folding = Folding.of(manifest.by_path, unfold=session.verbose)
        _print_changes(session, files, removed or (), folding=folding, predicted=predicted)
    session.tell_incomplete(incomplete)


def _print_changes(
    session: Session,
    files: Sequence[_Shown],
    removed: Sequence[str],
    *,
    folding: Folding,
    predicted: Mapping[str, Sequence[str]],
) -> None:
    out, same = session.out, 0
    for file in files:
        if file.what == "unchanged" and not session.verbose:
            same += 1
            continue
        out.line()
        _print_file(session, file, folding, predicted.get(file.entry.path, ()))
    for path in removed:
        out.line()
        out.line(f"{out.paint(printable(path), 'removed')}  removed")
    if same:
        out.line()
        out.line(f"{count(same, 'file')} unchanged (-v lists them)")


class _Shown(Struct, frozen=True):
    """A file of the version, beside the first parent's.

    ``what`` became of it, empty if that is not known. ``marks``: added or changed, by the keys of
    the tensors that are not as in the parent.
    """

    entry: FileEntry
    what: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    renamed_from: str | None = None


def _compared(parent: Manifest | None, manifest: Manifest) -> tuple[list[_Shown], list[str] | None]:
    """The files of a version, and the paths that it removed; None if that is not known."""
    if parent is None:
        return [_Shown(entry) for entry in manifest.entries], None
    old, new = parent.by_path, manifest.by_path
    gone = sorted(old.keys() - new)
    added = [entry for entry in manifest.entries if entry.path not in old]
    origins = renames([old[path] for path in gone], added)
    files = [_against(entry, old, origins.get(entry.path)) for entry in manifest.entries]
    return files, [path for path in gone if path not in origins.values()]


def _against(entry: FileEntry, parent: Mapping[str, FileEntry], origin: str | None) -> _Shown:
    if origin is not None:
        return _Shown(entry, f"renamed (was {printable(origin)})", {}, origin)
    file = compare_files(parent.get(entry.path), entry, entry.path)
    kinds = Counter(tensor.kind for tensor in file.tensors)
    marks = {
        each.key: "added" if each.kind in {"added", "renamed"} else "changed"
        for each in file.tensors
        if each.kind not in {"unchanged", "removed"}
    }
    what = "new" if file.kind == "added" else file.kind
    if entry.tensors and file.kind == "changed":
        gone = kinds["removed"] + kinds["renamed"]
        removed = f", {count(gone, 'tensor')} removed" if gone else ""
        what = f"{len(marks):,} changed{removed}"
    return _Shown(entry, what, marks)


def _parent(session: Session, entry: LogEntry, incomplete: list[DamagedData]) -> Manifest | None:
    """The first parent's manifest; None if one of the two states is forgotten or lost."""
    if entry.forgotten_ns is not None:
        return None
    if not entry.commit.parents:
        return _EMPTY
    try:
        parent = entry.commit.parents[0]
        if session.repository.forgotten_ns(parent) is not None:
            return None
        return session.repository.manifest(parent)
    except DamagedData as error:
        incomplete.append(error)
        return None


def _why_unknown(session: Session, entry: LogEntry, incomplete: list[DamagedData]) -> str:
    if incomplete:
        return "its parent cannot be read"
    parent, repository = entry.commit.parents[0], session.repository
    when, way = forgotten_on(repository.forgotten_ns(parent)), repository.way_to_state(parent)
    what = "is not here" if repository.is_absent(parent) else f"was {when}"
    return f"the state of its parent {what}" + ("" if way is None else f"; {way}")


def _print_file(session: Session, file: _Shown, folding: Folding, predicted: Sequence[str]) -> None:
    """``predicted``: the tensors that are stored as an optimizer's step."""
    out, verbose, marks = session.out, session.verbose, file.marks
    stored = f"{len(predicted)} predicted" if predicted else ""
    out.line(", ".join(filter(None, (file_line(out, file.entry), file.what, stored))))
    changed = [t for t in file.entry.tensors if verbose or t.key in marks]
    tensors = [t for t in changed if folding.keeps(file.entry.path, t.key)]
    if not verbose:  # all of them changed: only what is new needs a word
        new = file.what != "new"
        marks = {key: word for key, word in marks.items() if word == "added" and new}
    words = ((key, filter(None, (marks.get(key), "predicted"))) for key in predicted)
    marks = {**marks, **({key: ", ".join(each) for key, each in words} if verbose else {})}
    most = None if verbose else _FIRST
    tensor_table(out, tensors, marks, full=session.verbosity > 1, most=most)
    folding.tell(out, len(changed) - len(tensors))


def _show_code(session: Session, rev: CommitId) -> None:
    """Prints what ``load_model`` and ``retrain`` would run; nothing is run here."""
    repository, out = session.repository, session.out
    files = {
        name: data.decode("utf-8", "replace")
        for name, data in recipes.code(repository, rev).items()
    }
    carries_model = "model.json" in repository.version(rev).attached
    call = recipes.model(repository, rev).call if carries_model else None
    calls = recipes.calls(repository, rev)
    if session.as_json:
        shown = [fields(each, "text stored") for each in calls]
        out.json("mvc.show.code/1", {"call": call, "calls": shown, "code": files})
        return
    if call is not None:
        out.line(out.paint(f"# builds the model: {call}", "heading"))
    if calls:
        out.line(out.paint("# trains it again (*: of installed code)", "heading"))
    for each in calls:
        more = len(each.text) - _CALL
        cut = f"... ({more:,} more characters: --json)" if more > 0 else ""
        out.line(f"{' ' if each.stored else '*'} {each.text[:_CALL]}{cut}")
    for name, text in files.items():
        out.line()
        out.line(out.paint(f"# {printable(name)}", "heading"))
        for line in StringIO(text, newline=None):  # its lines end where Python's do
            out.line("\t".join(map(printable, line.removesuffix("\n").split("\t"))))
    if not files:
        out.note("the version carries no source files")
