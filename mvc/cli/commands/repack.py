"""``mvc repack``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mvc.cli.completing import complete_files, complete_revisions
from mvc.cli.options import revision
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.retraining import TIMEOUT, TRUST, training_progress
from mvc.cli.session import Session
from mvc.cli.tables import Column, numbers, show
from mvc.cli.text import count, listed, nbytes, seconds, size
from mvc.ids import CommitId
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.repo.repack.repack import CurvePoint, LayoutMetrics, RepackCurve, Repacked

_NAMED = 8  # versions listed by id, unless -v


@verb("repack", "mvc repack -n --max-recovery 2")
@revision("REV", nargs=-1, required=False)
@click.option("-n", "--dry-run", is_flag=True, help="Only print the plan with its price.")
@click.option("--interval", metavar="R", type=int, help="A reset point every R commits.")
@click.option(
    "--max-recovery", metavar="SECONDS", type=float,
    help="The least storage that recovers every version in SECONDS.",
)  # fmt: skip
@click.option("--max-size", metavar="BYTES", help="The fastest recovery in BYTES (40MB, 40MiB).")
@click.option(
    "--add", metavar="REV...", multiple=True, shell_complete=complete_revisions,
    help="Make these versions reset points.",
)  # fmt: skip
@click.option(
    "--remove", metavar="REV...", multiple=True, shell_complete=complete_revisions,
    help="Make these reset points ordinary versions.",
)  # fmt: skip
@click.option(
    "--add-queried", metavar="N", type=int,
    help="Make the N versions asked for most often reset points.",
)  # fmt: skip
@click.option(
    "--drop-weights", metavar="REV...", multiple=True, shell_complete=complete_revisions,
    help="Give up weights that a proven recipe makes again.",
)  # fmt: skip
@click.option(
    "--trust-code",
    is_flag=True,
    help="Run the stored code of the versions: to prove a recipe, or for --add.",
)
@TRUST
@TIMEOUT
@click.option(
    "--outside-data", is_flag=True, help="With --drop-weights: even if data are only referred to."
)
@click.option(
    "--super-step", metavar="M", type=int, help="Add longer deltas, over M versions each."
)
@click.option(
    "--curve", "as_curve", is_flag=True, help="Print what each recovery bound would cost."
)
@click.option(
    "-o", "--output", metavar="FILE", shell_complete=complete_files,
    help="With --curve: draw it as .svg or .png.",
)  # fmt: skip
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
def command(
    session: Session,
    rev: tuple[str, ...],
    dry_run: bool,
    interval: int | None,
    max_recovery: float | None,
    max_size: str | None,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    add_queried: int | None,
    drop_weights: tuple[str, ...],
    trust_code: bool,
    trust: tuple[str, ...],
    timeout: float | None,
    outside_data: bool,
    super_step: int | None,
    as_curve: bool,
    output: str | None,
    force: bool,
) -> None:
    """Choose which versions are stored in full.

    Names, ids and contents stay as they are; only storage and speed of recovery change.
    Without an aim the settings are applied: store.storage_weight, else store.max_recovery,
    else store.layout.
    --add, --remove and --drop-weights take several versions: the REVs that follow go with them.
    """
    if rev and sum(map(bool, (add, remove, drop_weights))) != 1:
        raise click.UsageError("revisions follow --add, --remove or --drop-weights")
    trains = {"--trust-code": trust_code, "--trust": trust, "--timeout": timeout}
    for name in (name for name, given in trains.items() if given):
        if not (add or drop_weights):
            raise click.UsageError(f"{name} is for --drop-weights and --add")
    if outside_data and not drop_weights:
        raise click.UsageError("--outside-data goes with --drop-weights")
    if output is not None and not as_curve:
        raise click.UsageError("-o goes with --curve")
    if as_curve:
        numbers_given = (interval, max_recovery, max_size, add_queried, super_step)
        if add or remove or drop_weights or dry_run or set(numbers_given) != {None}:
            raise click.UsageError("--curve changes nothing and goes with no other aim")
        _curve(session, None if output is None else Path(output), force=force)
        return
    add, dropped = (*add, *rev * bool(add)), (*drop_weights, *rev * bool(drop_weights))
    bar = session.progress("repacking", counted=True)
    with training_progress(session) if trust or trust_code else bar as progress:
        done = session.repository.storage.repack(
            interval=interval,
            max_recovery=max_recovery,
            max_size=None if max_size is None else nbytes(max_size),
            add=add or None,
            remove=(*remove, *(rev if remove else ())) or None,
            add_queried=add_queried,
            super_step=super_step,
            drop_weights=dropped or None,
            outside_data=outside_data,
            trust=(*trust, *(*add, *dropped) * trust_code),
            timeout=timeout,
            dry_run=dry_run,
            progress=progress,
        )
    gone = [session.repository.find(each) for each in dropped]
    if session.as_json:
        named = {"dropped": gone} if gone else {}
        session.out.json("mvc.repack/1", _json(done, dry_run=dry_run) | named)
    elif gone:
        session.out.note(
            f"given up: the weights of {_listed(session, gone)}; 'mvc gc' deletes what no other "
            "version has"
        )
    elif dry_run or session.verbosity >= 0:
        _print(session, done)


# -- the plan ------------------------------------------------------------------------------


def _print(session: Session, done: Repacked) -> None:
    out, plan = session.out, done.plan
    out.line(f"Plan: {plan.goal}")
    known = [id_ for id_ in plan.goal.add if id_ in set(plan.before.reset_points)]
    if known:
        are = "is a reset point" if len(known) == 1 else "are reset points"
        out.line(f"{_listed(session, known)} {are} already")
    if not plan:
        why = "" if known else ": no other layout is better for that"
        out.line(f"Nothing to do{why}")
    for what, ids in (("add", plan.added), ("remove", plan.removed)):
        if ids:
            out.line(f"{what:8}{count(len(ids), 'reset point')}: {_listed(session, ids)}")
    if plan.given_up:
        out.line(f"give up weights: {_listed(session, list(plan.given_up))} (recipes stay)")
    if plan.prices is not None:
        out.line(f"price   {seconds(plan.prices[0])} -> {seconds(plan.prices[1])}")
    for what, full, deltas in (
        ("write", plan.full_added, plan.deltas_added),
        ("drop", plan.full_removed, plan.deltas_removed),
    ):
        if full or deltas:
            out.line(f"{what:8}{count(full, 'full tensor')}, {count(deltas, 'delta')}")
    if plan.joined:
        steps = count(plan.joined, "approximate step")
        out.line(f"join    {steps}; the planned recovery counts them as single")
    out.line()
    columns = {"now": plan.before}
    if done.now is not None:
        columns = {"before": plan.before, "planned": plan.after, "now": done.now}
    elif plan:
        columns["planned"] = plan.after
    figures = [_figures(metrics) for metrics in columns.values()]
    rows = [(name, *(each[name] for each in figures)) for name in figures[0]]
    show(out, [Column(""), *numbers(*columns)], rows)


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


def _json(done: Repacked, *, dry_run: bool) -> dict[str, Any]:
    plan = done.plan
    return {
        "goal": str(plan.goal),
        "wish": str(plan.goal),  # the key of the release before, for one release
        "dry_run": dry_run,
        "changed": done.now is not None,
        **fields(plan, "added", "removed", "full_added", "full_removed"),
        **fields(plan, "deltas_added", "deltas_removed", "given_up", "prices"),
        "before": _metrics_json(plan.before),
        "planned": _metrics_json(plan.after),
        "now": done.now and _metrics_json(done.now),
    }


def _metrics_json(metrics: LayoutMetrics) -> dict[str, Any]:
    return {
        **_point_json(metrics),
        "reset_points": len(metrics.reset_points),
        "recovery_worst_commit": metrics.worst_commit,
        "decoded_worst": metrics.worst_bytes,
        "decoded_mean": metrics.mean_bytes,
        "deltas_worst": metrics.worst_deltas,
        "deltas_mean": metrics.mean_deltas,
    }


# -- the curve -----------------------------------------------------------------------------


def _curve(session: Session, picture: Path | None, *, force: bool) -> None:
    from mvc.cli.curve import draw

    if picture is not None:
        session.check_output(picture, force=force)
    with session.progress("planning", counted=True) as progress:
        curve = session.repository.storage.curve(progress=progress)
    if picture is not None:
        session.write_output(picture, draw(curve, picture))
        session.out.note(f"drew the curve in {printable(str(picture))}")
    if session.as_json:
        points = [_point_json(point) for point in curve.points]
        found = {"points": points, "now": _point_json(curve.today)}
        session.out.json("mvc.repack/1", {"curve": found})
    else:
        _print_curve(session, curve)


def _print_curve(session: Session, curve: RepackCurve) -> None:
    from mvc.cli.curve import chart

    out = session.out
    if not curve.points:
        out.line("There is no version yet")
        return
    out.line("Worst recovery against bytes of packs: * possible, @ stored now")
    out.line()
    points = [(point.bytes, point.worst_seconds) for point in (*curve.points, curve.today)]
    for line in chart(points[:-1], points[-1], width=min(80, out.width or 80)):
        out.line(line)
    out.line()
    rows = [
        (name, size(point.bytes), seconds(point.worst_seconds), seconds(point.mean_seconds))
        for name, point in [*(("", point) for point in curve.points), ("now", curve.today)]
    ]
    show(out, [Column(""), *numbers("packs", "worst", "mean")], rows)


def _point_json(point: CurvePoint | LayoutMetrics) -> dict[str, Any]:
    return {
        "bytes": point.bytes,
        "recovery_worst": point.worst_seconds,
        "recovery_mean": point.mean_seconds,
    }
