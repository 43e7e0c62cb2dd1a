"""``mvc forget``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mvc.cli import complete
from mvc.cli.commits import forgotten_on
from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.cli.text import count, one_line, size
from mvc.errors import NotConfirmed
from mvc.model.names import printable
from mvc.repo.lookup import manifests
from mvc.repo.retention import forget
from mvc.repo.retention.rules import Best, Retention
from mvc.repo.times import format_time

if TYPE_CHECKING:
    from mvc.repo.retention.forget import Chosen, ForgetPreview
    from mvc.store.journal.frames import Recorded

_FIRST = 10
_COLUMNS = (
    Column("version", style="id"),
    Column("time"),
    Column("message", give="end"),
    Column("live on", style="target"),
)


@click.command("forget", cls=Verb, example="mvc forget --keep-daily 30 --keep-best acc:5")
@click.argument("revs", metavar="[REV...]", nargs=-1, shell_complete=complete.revisions)
@click.option(
    "--unused",
    metavar="TARGET",
    shell_complete=complete.targets,
    help="Forget what no deployment on TARGET served.",
)
@click.option("--keep-last", metavar="N", type=click.IntRange(min=1), help="Keep the last N.")
@click.option(
    "--keep-hourly",
    metavar="N",
    type=click.IntRange(min=1),
    help="Keep the last of each of N hours.",
)
@click.option(
    "--keep-daily",
    metavar="N",
    type=click.IntRange(min=1),
    help="Keep the last of each of N days.",
)
@click.option(
    "--keep-best",
    metavar="METRIC:N",
    multiple=True,
    help="Keep the N best; -METRIC:N where lower is better.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    revs: tuple[str, ...],
    unused: str | None,
    keep_last: int | None,
    keep_hourly: int | None,
    keep_daily: int | None,
    keep_best: tuple[str, ...],
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Delete the states of versions for good.

    Either of those named, or of those that the rules give up. Commits, ids and history stay; the
    next 'mvc gc' removes the bytes.
    """
    from mvc.repo.gc.gc import grace_of

    session: Session = ctx.obj
    best = tuple(Best.parse(text) for text in keep_best)
    rules = Retention(keep_last, keep_hourly, keep_daily, best, unused)
    chosen = forget.choose(session.context, revs, rules or None)
    asks = bool(chosen.commits) and not dry_run and not force
    if asks:
        _check_can_ask(as_json=as_json)
    with session.progress("looking at", counted=True) as progress:
        grace = grace_of(session.context)
        cost = forget.preview(session.context, chosen, grace=grace, progress=progress)
    if not as_json and (asks or dry_run or session.verbosity >= 0):
        _print(session, chosen, cost)
    if not as_json:
        _warn(session, chosen)
    if asks and not click.confirm(_question(chosen), err=True):
        ctx.exit(1)
    done = None if dry_run else forget.forget(session.context, chosen)
    if as_json:
        session.out.json("mvc.forget/1", _json(chosen, cost, done, dry_run=dry_run))
    elif done is not None:
        states = count(len(done.entry.forgotten), "state")
        session.out.note(f"Forgot {states}; 'mvc gc' removes the bytes")
    if chosen.already and not chosen.commits:
        ctx.exit(1)


def _check_can_ask(*, as_json: bool) -> None:
    """Raises NotConfirmed where nobody could answer."""
    if as_json or not sys.stdin.isatty():
        raise NotConfirmed(
            "what is forgotten is gone for good, and there is nobody to ask",
            hint="look with -n, then add -f",
        )


def _warn(session: Session, chosen: Chosen) -> None:
    for short in chosen.short:
        session.out.warn(
            f"{count(short.have, 'version')} of the {short.best.count:,} to keep "
            f"{'has' if short.have == 1 else 'have'} the metric {printable(short.best.metric)}; "
            f"{count(len(short.without), 'version')} without it "
            f"{'is' if len(short.without) == 1 else 'are'} to be forgotten"
        )


def _question(chosen: Chosen) -> str:
    return f"Forget {count(len(chosen.commits), 'state')} for good?"


def _print(session: Session, chosen: Chosen, cost: ForgetPreview) -> None:
    out, context = session.out, session.context
    for id_ in chosen.already:
        when = forgotten_on(manifests.forgotten_ns(context, id_) or 0)
        out.note(f"the state of {id_.short} was {when} already")
    if not chosen.commits:
        if not chosen.already:
            out.line("Nothing to forget")
        return
    shown = chosen.commits if session.verbose else chosen.commits[:_FIRST]
    out.line(f"{count(len(chosen.commits), 'state')} to forget:")
    rows = [
        (
            str(commit.id) if session.verbose else commit.id.short,
            format_time(commit.time_ns, commit.zone_minutes, precise=False),
            one_line(commit.message),
            ", ".join(printable(target) for target in cost.live.get(commit.id, ())),
        )
        for commit in shown
    ]
    show(out, _COLUMNS, rows, indent="  ")
    if len(shown) < len(chosen.commits):
        out.line(f"  ... and {len(chosen.commits) - len(shown):,} more (-v lists all)")
    _print_preview(session, chosen, cost)


def _print_preview(session: Session, chosen: Chosen, cost: ForgetPreview) -> None:
    out = session.out
    out.line(_going(cost))
    for commit in chosen.commits:
        if same := cost.same.get(commit.id):
            more = f" and {len(same) - 1:,} more" if len(same) > 1 else ""
            out.line(
                f"The state of {commit.id.short} is also that of {same[0].short}{more}: "
                "there it stays"
            )
        if live := cost.live.get(commit.id):
            targets = ", ".join(printable(target) for target in live)
            out.line(f"{commit.id.short} is live on {targets}: it cannot be recovered from here")
    if cost.collection is None:
        out.line("What the next 'mvc gc' frees is not known, because something is damaged")
    else:
        out.line(f"The next 'mvc gc' frees about {size(cost.collection.freed)}")


def _going(cost: ForgetPreview) -> str:
    """``6 tensors go; 1 stays, because other versions have it``."""
    shared = cost.shared + cost.shared_files
    going = cost.tensors + cost.files
    text = f"{_counted(cost.tensors, cost.files)} {'goes' if going == 1 else 'go'}"
    if not shared:
        return text
    mixed = (cost.tensors or cost.shared) and (cost.files or cost.shared_files)
    staying = _counted(cost.shared, cost.shared_files) if mixed else f"{shared:,}"
    if shared == 1:
        return f"{text}; {staying} stays, because other versions have it"
    return f"{text}; {staying} stay, because other versions have them"


def _counted(tensors: int, files: int) -> str:
    if not files:
        return count(tensors, "tensor")
    return (
        f"{count(tensors, 'tensor')} and {count(files, 'file')}"
        if tensors
        else count(files, "file")
    )


def _json(
    chosen: Chosen, cost: ForgetPreview, done: Recorded | None, *, dry_run: bool
) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "number": None if done is None else done.sequence,
        "named": chosen.named,
        "rules": None if chosen.rules is None else chosen.rules.text,
        "versions": [
            {
                "id": str(commit.id),
                "time": format_time(commit.time_ns, 0),
                "time_ns": commit.time_ns,
                "message": commit.message,
                "live": list(cost.live.get(commit.id, ())),
                "same": [str(id_) for id_ in cost.same.get(commit.id, ())],
            }
            for commit in chosen.commits
        ],
        "already": [str(id_) for id_ in chosen.already],
        "short": [
            {
                "metric": short.best.metric,
                "keep": short.best.count,
                "have": short.have,
                "without": [str(id_) for id_ in short.without],
            }
            for short in chosen.short
        ],
        "tensors": cost.tensors,
        "shared": cost.shared,
        "files": cost.files,
        "shared_files": cost.shared_files,
        "freed_bytes": None if cost.collection is None else cost.collection.freed,
    }
