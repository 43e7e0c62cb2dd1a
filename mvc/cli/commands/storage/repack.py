"""``mvc repack`` chooses which versions are stored in full (reset points), and which as deltas.

Ids and contents of versions do not change. The aim is one option, from --interval to --add-queried.
Without such an option, the setting store.storage_weight, else store.max_recovery, else store.layout
is the aim. All REVs belong to the given --add or --remove.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

import mvc.recipes as recipes
from mvc.api import LayoutMetrics, Repacked
from mvc.cli.verb import (
    DRY_RUN,
    REMOTE,
    CommandOptions,
    Session,
    argument,
    fields,
    nbytes,
    option,
    reason,
    verb,
)
from mvc.ids import CommitId
from mvc.text import count, listed, seconds, size

_NAMED = 8  # limit of versions that are listed by their ids, unless -v


class _RepackOptions(CommandOptions, frozen=True, kw_only=True):
    rev: tuple[str, ...] = argument("[REV...]")
    dry_run: bool = DRY_RUN
    reason: str | None = reason()
    interval: int | None = option("R", "Make every R-th version a reset point.")
    max_recovery: float | None = option(
        "SECONDS", "Use as little storage as possible, with recovery times of at most SECONDS."
    )
    max_size: int | None = option(
        "BYTES",
        "Minimize recovery times, with at most BYTES of storage (40MB, 40MiB).",
        type=nbytes,
    )
    add: tuple[str, ...] = option("REV...", "Make these versions reset points.")
    remove: tuple[str, ...] = option("REV...", "Store these reset points as deltas instead.")
    add_queried: int | None = option("N", "Make the N most frequently read versions reset points.")
    remote: str | None = REMOTE


@verb("mvc repack -n --max-recovery 2", _RepackOptions)
def command(session: Session, args: _RepackOptions) -> int | None:
    return session.at_remote(args.remote, lambda: _repack(session, args), changes=not args.dry_run)


def _repack(session: Session, args: _RepackOptions) -> None:
    if args.rev and bool(args.add) == bool(args.remove):
        raise click.UsageError("revisions follow --add or --remove")
    add, remove = ((*named, *args.rev * bool(named)) for named in (args.add, args.remove))
    proven = bool(session.repo.storage.proofs())
    if proven and (late := recipes.late(session.repo)):
        session.warn(
            f"a replay of {_listed(session, late)} takes longer than store.max_recovery: "
            f"'mvc retrain {late[0].short} --trust-code' stores weights again"
        )
    done = session.run(
        "repacking",
        session.repo.storage.repack,
        alternatives=recipes.alternatives(session.repo) if proven else None,
        reason=args.reason or "",
        interval=args.interval,
        max_recovery=args.max_recovery,
        max_size=args.max_size,
        add=add or None,
        remove=remove or None,
        add_queried=args.add_queried,
        dry_run=args.dry_run,
        counted=True,
    )
    head = {"goal": str(done.plan.goal), "dry_run": args.dry_run, "changed": done.now is not None}
    answered = session.answered("mvc.repack/1", head | fields(done))
    if not answered and (args.dry_run or not session.quiet):
        _print(session, done)


def _print(session: Session, done: Repacked) -> None:
    plan = done.plan
    session.line(f"Plan: {plan.goal}")
    known = {*plan.before.reset_points}
    named = {
        "kept": [id_ for id_ in plan.goal.add if id_ in known],
        "add": plan.added,
        "remove": plan.removed,
    }
    for action, ids in named.items():
        if ids:
            session.line(f"{action:8}{count(len(ids), 'reset point')}: {_listed(session, ids)}")
    codings = {
        "write": (plan.full_added, plan.deltas_added),
        "drop": (plan.full_removed, plan.deltas_removed),
    }
    for action, (full, deltas) in codings.items():
        if full or deltas:
            session.line(f"{action:8}{count(full, 'full tensor')}, {count(deltas, 'delta')}")
    if plan.dropped:
        session.line(f"drop weights: {_listed(session, list(plan.dropped))} (recipes stay)")
    if plan.prices is not None:
        session.line(f"price   {seconds(plan.prices[0])} -> {seconds(plan.prices[1])}")
    if not plan:
        session.line("Nothing to do")
    session.line()
    columns = {"before": plan.before, "planned": plan.after}
    if done.now is not None:
        columns["now"] = done.now
    figures = [_figures(metrics) for metrics in columns.values()]
    rows = [(name, *(column[name] for column in figures)) for name in figures[0]]
    session.table(f", {'>, '.join(columns)}>", rows)


def _figures(metrics: LayoutMetrics) -> dict[str, str]:
    return {
        "packs": size(metrics.bytes),
        "reset points": f"{len(metrics.reset_points):,}",
        "recovery, worst": seconds(metrics.worst_seconds),
        "recovery, mean": seconds(metrics.mean_seconds),
        "bytes to decode, worst": size(metrics.worst_bytes),
        "bytes to decode, mean": size(round(metrics.mean_bytes)),
        "deltas to apply, worst": f"{metrics.worst_deltas:,}",
        "deltas to apply, mean": f"{metrics.mean_deltas:.1f}",
    }


def _listed(session: Session, ids: Sequence[CommitId]) -> str:
    most = None if session.verbose or len(ids) <= _NAMED else _NAMED - 1
    return listed([id_.short for id_ in ids], most, " ")
