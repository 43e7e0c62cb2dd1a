"""``mvc repack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mvc.cli import complete
from mvc.cli.options import json_option, revision
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.sizes import nbytes
from mvc.cli.tables import Column, show
from mvc.cli.text import count, seconds, size
from mvc.errors import WouldOverwrite
from mvc.model.names import printable
from mvc.repo.checkout.outputs import refuse_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.ids import CommitId
    from mvc.repo.repack.repack import (
        CurvePoint,
        Goal,
        LayoutMetrics,
        RepackCurve,
        Repacked,
        RepackPlan,
    )

_NAMED = 8  # versions listed by id, unless -v


@click.command("repack", cls=Verb, example="mvc repack -n --max-recovery 2")
@revision("REV", nargs=-1, required=False)
@click.option("-n", "--dry-run", is_flag=True, help="Only print the plan with its price.")
@click.option("--interval", metavar="R", type=int, help="A reset point every R commits.")
@click.option(
    "--max-recovery",
    metavar="SECONDS",
    type=float,
    help="Least storage with every version back in SECONDS.",
)
@click.option("--max-size", metavar="BYTES", help="Fastest recovery in packs of BYTES (40MB).")
@click.option(
    "--add",
    metavar="REV...",
    multiple=True,
    shell_complete=complete.revisions,
    help="Make these versions reset points.",
)
@click.option(
    "--remove",
    metavar="REV...",
    multiple=True,
    shell_complete=complete.revisions,
    help="Make these versions reset points no more.",
)
@click.option("--super-step", metavar="M", type=int, help="Longer deltas, over M commits each.")
@click.option("--curve", "as_curve", is_flag=True, help="Show storage against recovery, and stop.")
@click.option("-o", "--output", metavar="FILE", help="With --curve: draw it as .svg or .png.")
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@json_option
@click.pass_obj
def command(
    session: Session,
    rev: tuple[str, ...],
    dry_run: bool,
    interval: int | None,
    max_recovery: float | None,
    max_size: str | None,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    super_step: int | None,
    as_curve: bool,
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Choose which versions are stored in full.

    Names, ids and contents stay as they are; only storage and speed of recovery change.
    Without an aim the settings are applied: store.max_recovery, else store.layout.
    --add and --remove take several versions: the REVs that follow go with them.
    """
    from mvc.repo.lookup.revisions import resolve
    from mvc.repo.repack.repack import draw_curve, goal_of

    if rev and bool(add) == bool(remove):
        raise click.UsageError("revisions follow --add or --remove")
    if output is not None and not as_curve:
        raise click.UsageError("-o goes with --curve")
    context = session.context
    goal = goal_of(
        context,
        interval=interval,
        max_recovery=max_recovery,
        max_size=None if max_size is None else nbytes(max_size),
        add=tuple(resolve(context, each) for each in (*add, *(rev if add else ()))),
        remove=tuple(resolve(context, each) for each in (*remove, *(rev if remove else ()))),
        super_step=super_step,
    )
    if not as_curve:
        _repack(session, goal, dry_run=dry_run, as_json=as_json)
        return
    if interval or max_recovery or max_size or add or remove or super_step or dry_run:
        raise click.UsageError("--curve changes nothing and goes with no other aim")
    target = None if output is None else _free(session, Path(output), force=force)
    with session.progress("planning", counted=True) as progress:
        curve = draw_curve(context, progress)
    if target is not None:
        _save(session, curve, target)
    if as_json:
        session.out.json("mvc.repack/1", {"curve": _curve_json(curve)})
    else:
        _print_curve(session, curve)


def _repack(session: Session, goal: Goal, *, dry_run: bool, as_json: bool) -> None:
    from mvc.repo.repack.repack import repack

    with session.progress("repacking", counted=True) as progress:
        done = repack(session.context, goal, dry_run=dry_run, progress=progress)
    if as_json:
        session.out.json("mvc.repack/1", _json(done, dry_run=dry_run))
    elif dry_run or session.verbosity >= 0:
        _print(session, done)


# -- the plan ------------------------------------------------------------------------------


def _print(session: Session, done: Repacked) -> None:
    out, plan = session.out, done.plan
    out.line(f"Plan: {plan.goal}")
    known = [id_ for id_ in plan.goal.add if id_ in set(plan.before.reset_points)]
    if known:
        are = "is a reset point" if len(known) == 1 else "are reset points"
        out.line(f"{_listed(known, every=session.verbose)} {are} already")
    if not plan:
        why = "" if known else ": no other layout is better for that"
        out.line(f"Nothing to do{why}")
    for verb, ids in (("add", plan.added), ("remove", plan.removed)):
        if ids:
            noun = count(len(ids), "reset point")
            out.line(f"{verb:8}{noun}: {_listed(ids, every=session.verbose)}")
    for verb, full, deltas in (
        ("write", plan.full_added, plan.deltas_added),
        ("drop", plan.full_removed, plan.deltas_removed),
    ):
        if full or deltas:
            out.line(f"{verb:8}{count(full, 'full tensor')}, {count(deltas, 'delta')}")
    out.line()
    columns = [("now", plan.before)]
    if plan:
        columns.append(("planned", plan.after))
    if done.now is not None:
        columns = [("before", plan.before), ("planned", plan.after), ("now", done.now)]
    rows = list(zip(*(_column(metrics) for _, metrics in columns), strict=True))
    titles = [Column(title, right=True) for title, _ in columns]
    show(
        out,
        [Column(""), *titles],
        [(name, *row) for name, row in zip(_ROWS, rows, strict=True)],
    )


_ROWS = (
    "packs",
    "reset points",
    "recovery, worst",
    "recovery, mean",
    "bytes to decode, worst",
    "bytes to decode, mean",
    "deltas, worst",
    "deltas, mean",
)


def _column(metrics: LayoutMetrics) -> tuple[str, ...]:
    return (
        size(metrics.bytes),
        f"{len(metrics.reset_points):,}",
        seconds(metrics.worst_seconds),
        seconds(metrics.mean_seconds),
        size(metrics.worst_bytes),
        size(round(metrics.mean_bytes)),
        f"{metrics.worst_deltas:,}",
        f"{metrics.mean_deltas:.1f}",
    )


def _listed(ids: Sequence[CommitId], *, every: bool) -> str:
    shown = ids if every or len(ids) <= _NAMED else ids[: _NAMED - 1]
    more = f" and {len(ids) - len(shown):,} more" if len(shown) < len(ids) else ""
    return " ".join(id_.short for id_ in shown) + more


def _json(done: Repacked, *, dry_run: bool) -> dict[str, object]:
    plan = done.plan
    return {
        "goal": str(plan.goal),
        "wish": str(plan.goal),  # the key of the release before, for one release
        "dry_run": dry_run,
        "changed": done.now is not None,
        **_changes(plan),
        "before": _metrics_json(plan.before),
        "planned": _metrics_json(plan.after),
        "now": None if done.now is None else _metrics_json(done.now),
    }


def _changes(plan: RepackPlan) -> dict[str, object]:
    return {
        "added": [str(id_) for id_ in plan.added],
        "removed": [str(id_) for id_ in plan.removed],
        "full_added": plan.full_added,
        "full_removed": plan.full_removed,
        "deltas_added": plan.deltas_added,
        "deltas_removed": plan.deltas_removed,
    }


def _metrics_json(metrics: LayoutMetrics) -> dict[str, object]:
    worst = metrics.worst_commit
    return {
        "bytes": metrics.bytes,
        "reset_points": len(metrics.reset_points),
        "recovery_worst": metrics.worst_seconds,
        "recovery_mean": metrics.mean_seconds,
        "recovery_worst_commit": None if worst is None else str(worst),
        "decoded_worst": metrics.worst_bytes,
        "decoded_mean": metrics.mean_bytes,
        "deltas_worst": metrics.worst_deltas,
        "deltas_mean": metrics.mean_deltas,
    }


# -- the curve -----------------------------------------------------------------------------


def _free(session: Session, path: Path, *, force: bool) -> Path:
    refuse_store(session.context.store.fs, path)
    if session.context.store.fs.stat(path) is not None and not force:
        raise WouldOverwrite(f"{printable(str(path))} exists already", hint="add -f to replace it")
    return path


def _save(session: Session, curve: RepackCurve, path: Path) -> None:
    from mvc.cli.figure import draw

    picture = draw(curve, path)
    session.context.store.fs.replace_file(
        path, lambda file: file.write([picture]), mode=None, durable=False
    )
    session.out.note(f"drew the curve in {printable(str(path))}")


def _print_curve(session: Session, curve: RepackCurve) -> None:
    from mvc.cli.chart import chart

    out = session.out
    if not curve.points:
        out.line("There is no version yet")
        return
    out.line("Worst recovery against bytes of packs: * possible, @ stored now")
    out.line()
    points = [(point.bytes, point.worst_seconds) for point in curve.points]
    today = (curve.today.bytes, curve.today.worst_seconds)
    for line in chart(points, today, width=min(80, out.width or 80)):
        out.line(line)
    out.line()
    columns = [Column(title, right=True) for title in ("packs", "worst", "mean")]
    marked = [("", *_point(point)) for point in curve.points]
    marked.append(("now", *_point(curve.today)))
    show(out, [Column(""), *columns], marked)


def _point(point: CurvePoint) -> tuple[str, str, str]:
    return size(point.bytes), seconds(point.worst_seconds), seconds(point.mean_seconds)


def _curve_json(curve: RepackCurve) -> dict[str, object]:
    return {
        "points": [_point_json(point) for point in curve.points],
        "now": _point_json(curve.today),
    }


def _point_json(point: CurvePoint) -> dict[str, object]:
    return {
        "bytes": point.bytes,
        "recovery_worst": point.worst_seconds,
        "recovery_mean": point.mean_seconds,
    }
