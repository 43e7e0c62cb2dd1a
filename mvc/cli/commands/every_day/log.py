"""``mvc log``.

Lists the newest version first. A..B lists the versions of B that are not versions of A. With PATHs,
mvc lists only versions that changed one of these files. A CONDITION may contain and, or, not,
parentheses and texts in quotes. With --graph, each training run has its own column. With --target,
--since and --until are times of deployments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter

from msgspec import Struct

from mvc.api import LogEntry, LogOptions
from mvc.cli.commits import (
    as_json,
    details,
    live_now,
    names_of,
    one_liner,
)
from mvc.cli.tables import Column, titled
from mvc.cli.transfers import note_unsent
from mvc.cli.verb import LIMIT, CommandOptions, PathText, Session, argument, flag, option, verb
from mvc.errors import UnknownRevision
from mvc.ids import CommitId
from mvc.text import format_time, number, one_line, printable

_FILTERS = "rev paths limit every oneline where grep target since until"


class _LogOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str | None = argument("[REV]")
    paths: tuple[PathText, ...] = argument("[PATH]...")
    limit: int | None = LIMIT
    every: bool = flag("List the versions of all branches and tags.", "--all")
    oneline: bool = flag("Print one line for each version.")
    graph: bool = flag(
        "Draw the graph of versions.",
        allows=_FILTERS,
    )
    as_table: bool = flag("Print a table with a column for each metric and param.", "--metrics")
    patch: bool = flag(
        "Print the tensors that each version changed.", "-p", "--patch", allows=_FILTERS
    )
    stat: bool = flag("Print the files that each version changed.", allows=_FILTERS)
    where: str | None = option(
        "CONDITION", "List only versions that satisfy CONDITION, such as 'auc > 0.9 and lr < 1e-3'."
    )
    grep: str | None = option(
        "REGEX", "List only versions whose message, notes, run or params match."
    )
    sort: str | None = option(
        "NAME",
        "Sort by a metric or param, highest first; -NAME: lowest first.",
        completes="ORDER",
    )
    target: str | None = option("T", "List only versions that were deployed to T.")
    since: str | None = option("TIME", "List only versions since TIME.")
    until: str | None = option("TIME", "List only versions until TIME.")


@verb("mvc log -n 20 --oneline", _LogOptions, pages=True)
def command(session: Session, args: _LogOptions) -> None:
    rev, paths = _rev_and_paths(session, args.rev, args.paths)
    entries = session.repo.log(
        rev,
        LogOptions(
            every=args.every,
            paths=session.names(paths),
            where=args.where,
            grep=args.grep,
            sort=args.sort,
            target=args.target,
            since=args.since,
            until=args.until,
        ),
        limit=args.limit,
        incomplete=session.incomplete,
    )
    if session.as_json:
        session.json("mvc.log/1", {"commits": [as_json(entry) for entry in entries]})
    elif args.as_table:
        _print_table(session, entries)
    else:
        plain = (GraphRow(entry, "", "", ()) for entry in entries)
        _print(session, graph_lines(entries) if args.graph else plain, args)
    if not session.as_json:
        note_unsent(session)


def _rev_and_paths(
    session: Session, rev: str | None, paths: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """The revision and the paths. If the first argument is a path, the revision is HEAD."""
    if rev is None:
        return "HEAD", paths
    try:
        for end in rev.split(".."):
            session.repo.find(end or "HEAD")
    except UnknownRevision:
        if session.fs.stat(session.fs.cwd() / rev) is None and not session.tracks(rev):
            raise
        return "HEAD", (rev, *paths)
    return rev, paths


def _print_table(session: Session, entries: Iterable[LogEntry]) -> None:
    rows, live = list(entries), live_now(session)
    metrics = _names(entry.metrics for entry in rows)
    params = _names(entry.params for entry in rows)
    params.sort(key=lambda name: len({e.params.get(name) for e in rows}) == 1)
    measured = [Column(printable(name), right=True, optional=True) for name in metrics]
    texts = [Column(printable(name), shorten="end", optional=True) for name in params]
    session.table(
        [
            *titled("version, refs, live on, date"),
            *measured,
            *texts,
            Column("message", shorten="end"),
        ],
        [
            (
                session.id_text(entry.id),
                printable(", ".join(entry.refs)),
                printable(", ".join(d.target for d in entry.deployments if live(d))),
                format_time(entry.commit.time_ns, precise=False)[:19],
                *(number(m[n]) if n in (m := entry.metrics) else "" for n in metrics),
                *(printable(entry.params.get(n, "")) for n in params),
                one_line(entry.commit.message),
            )
            for entry in rows
        ],
    )


def _names(values: Iterable[Mapping[str, object]]) -> list[str]:
    """The names of metrics or params, the most frequent first."""
    counts = Counter(name for mapping in values for name in mapping)
    return sorted(counts, key=lambda name: (-counts[name], name))


def _print(session: Session, rows: Iterable[GraphRow], args: _LogOptions) -> None:
    names = names_of(session)
    for n, row in enumerate(rows):
        if n and not args.oneline and not row.first:
            session.line()
        entry = row.entry
        if args.oneline:
            title, lines = one_liner(session, entry, names(entry), len(row.first)), []
        else:
            id_ = session.paint(f"commit {session.id_text(entry.id)}", "id")
            title, lines = id_ + names(entry), details(session, entry, prefix=len(row.rest))
        session.line(row.first + title)
        session.lines(
            (row.rest + line).rstrip() for line in lines + [""] * bool(row.first and lines)
        )
        if (args.patch or args.stat) and (parents := entry.commit.parents):
            session.lines([] if args.oneline else [""])
            from mvc.cli.commands.every_day.diff import print_diff  # it imports numpy

            diff = session.run("comparing", session.repo.diff, parents[0], entry.id)
            print_diff(session, diff, stat=not args.patch)
        session.lines(row.links)


# -- the graph, as in ``git log --graph``
# ``columns``: for each column of the drawing, the version that is drawn next in this column.


class GraphRow(Struct, frozen=True):
    """A version, and the part of the graph to draw for the version.

    ``first`` precedes the first line of the version's text, and ``rest`` precedes the other lines.
    ``links``: lines to draw below the text.
    """

    entry: LogEntry
    first: str
    rest: str
    links: tuple[str, ...]


def graph_lines(entries: Iterable[LogEntry]) -> Iterator[GraphRow]:
    """Yields one row for each version.

    If the parent of a version is not in ``entries``, the column continues to the last row.
    """
    shown, columns = list(entries), list[CommitId]()
    behind = _behind(shown)
    for entry in shown:
        if entry.id not in columns:
            columns.append(entry.id)
        at, parents = columns.index(entry.id), behind[entry.id]
        first = "".join("* " if i == at else "| " for i in range(len(columns)))
        rest = first.replace("*", "|" if parents else " ")
        yield GraphRow(entry, first, rest, tuple(_replace(columns, at, parents)))


def _behind(entries: Sequence[LogEntry]) -> dict[CommitId, tuple[CommitId, ...]]:
    """Maps each version to the older versions to which the graph draws a line from the version.

    A merge has a line to each parent. Any other version has a line to the newest earlier version of
    the same training run. The first version of a run has a line to the newest earlier version
    without a run. If the parent of this first version has several children, the line leads to the
    parent instead.
    """
    commits = {entry.id: entry.commit for entry in entries}
    behind = {id_: commit.parents for id_, commit in commits.items()}
    before = {id_: [p for p in parents[:1] if p in commits] for id_, parents in behind.items()}
    children = Counter(parent for parents in before.values() for parent in parents)
    # Maps a version to the newest version of each run up to this version.
    newest: dict[CommitId, dict[str, CommitId]] = {}
    for id_ in TopologicalSorter(before).static_order():
        run, known = commits[id_].run, dict[str, CommitId]()
        for parent in before[id_]:  # at most one parent
            forks = children[parent] > 1
            known = dict(newest[parent]) if forks else newest[parent]
            if len(behind[id_]) == 1:
                line = known.get(run, parent if forks else known.get(""))
                behind[id_] = () if line is None else (line,)
        known[run] = id_
        newest[id_] = known
    return behind


def _replace(columns: list[CommitId], at: int, parents: tuple[CommitId, ...]) -> Iterator[str]:
    """Replaces the version in column ``at`` by its parents. Yields lines that draw the change."""
    if not parents:
        width = len(columns)
        del columns[at]
        if at < width - 1:
            yield _line(at, {2 * i - 1: "/" for i in range(at + 1, width)})
        return
    columns[at] = parents[0]
    for place, parent in enumerate(parents[1:], at + 1):
        columns.insert(place, parent)
        marks = {2 * i - 1: "\\" for i in range(place, len(columns))}
        yield _line(place, marks)
    yield from _joined(columns)


def _joined(columns: list[CommitId]) -> Iterator[str]:
    """Joins columns that wait for the same version. Yields the lines that draw the change."""
    place = 1
    while place < len(columns):
        first = columns.index(columns[place])
        if first == place:
            place += 1
            continue
        marks = {2 * i - 1: "_" for i in range(first + 2, place)}
        marks[2 * place - 1] = "/"
        if place > first + 1:
            marks[2 * first + 1] = "_"
        marks |= {2 * i - 1: "/" for i in range(place + 1, len(columns))}
        del columns[place]
        yield _line(place, marks)


def _line(bars: int, marks: dict[int, str]) -> str:
    """A line with ``|`` in the first ``bars`` columns, and with ``marks`` at their positions."""
    width = max(2 * bars, *(position + 1 for position in marks))
    chars = [" "] * width
    for i in range(bars):
        chars[2 * i] = "|"
    for position, mark in marks.items():
        chars[position] = mark
    return "".join(chars).rstrip()
