"""``mvc repack``.

Names, ids and contents stay as they are; only storage and speed of recovery change.
Without an aim the settings are applied: store.storage_weight, else store.max_recovery,
else store.layout.
--add, --remove and --drop-weights take several versions: the REVs that follow go with them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from mvc.cli.elsewhere import at_remote
from mvc.cli.options import (
    FORCE_FILE,
    REMOTE,
    CommandOptions,
    argument,
    flag,
    given,
    option,
    reason,
    timeout,
    trust,
)
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.retraining import training_progress
from mvc.cli.session import Session
from mvc.cli.tables import Column, numbers, show
from mvc.cli.text import count, listed, nbytes, seconds, size
from mvc.errors import NotInstalled, WrongUsage, how_to_install
from mvc.ids import CommitId
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.maintenance.repack.metrics import LayoutMetrics
    from mvc.maintenance.repack.plan import RepackCurve
    from mvc.maintenance.repack.repack import Repacked

_POINT = "bytes recovery_worst=worst_seconds recovery_mean=mean_seconds"
_PICTURES = {".svg": "svg", ".png": "png"}
_AIMS = "interval max_recovery add_queried super_step"
_NAMED = 8  # versions listed by id, unless -v


class _RepackOptions(CommandOptions, frozen=True, kw_only=True):
    rev: tuple[str, ...] = argument("[REV...]")
    dry_run: bool = flag("Only print the plan with its price.", "-n")
    reason: str | None = reason()
    interval: int | None = option("R", "A reset point every R commits.")
    max_recovery: float | None = option(
        "SECONDS", "The least storage that recovers every version in SECONDS."
    )
    max_size: str | None = option("BYTES", "The fastest recovery in BYTES (40MB, 40MiB).")
    add: tuple[str, ...] = option("REV...", "Make these versions reset points.")
    remove: tuple[str, ...] = option("REV...", "Make these reset points ordinary versions.")
    add_queried: int | None = option("N", "Make the N versions asked for most often reset points.")
    drop_weights: tuple[str, ...] = option(
        "REV...", "Give up weights that a proven recipe makes again."
    )
    trust_code: bool = flag(
        "Run the stored code of the versions: to prove a recipe, or for --add.",
        needs="add drop_weights",
    )
    trust: tuple[str, ...] = trust("add drop_weights")
    timeout: float | None = timeout("add drop_weights")
    outside_data: bool = flag(
        "With --drop-weights: even if data are only referred to.", needs="drop_weights"
    )
    super_step: int | None = option("M", "Add longer deltas, over M versions each.")
    as_curve: bool = flag("Print what each recovery bound would cost.", "--curve")
    output: str | None = option(
        "FILE", "With --curve: draw it as .svg or .png.", "-o", needs="as_curve"
    )
    force: bool = FORCE_FILE
    remote: str | None = REMOTE


@verb("mvc repack -n --max-recovery 2", _RepackOptions)
def command(session: Session, args: _RepackOptions) -> int | None:
    if args.output is not None:
        args = replace(args, output=str(Path(args.output).absolute()))
    changes = not args.dry_run and not args.as_curve
    return at_remote(session, args.remote, lambda: _repack(session, args), changes=changes)


def _repack(session: Session, args: _RepackOptions) -> None:
    _check(args)
    if args.as_curve:
        _show_curve(session, None if args.output is None else Path(args.output), force=args.force)
        return
    add, remove, dropped = (
        (*named, *args.rev * bool(named)) for named in (args.add, args.remove, args.drop_weights)
    )
    bar = session.progress("repacking", counted=True)
    with training_progress(session) if args.trust or args.trust_code else bar as progress:
        done = session.repository.storage.repack(
            max_size=None if args.max_size is None else nbytes(args.max_size),
            add=add or None,
            remove=remove or None,
            drop_weights=dropped or None,
            reason=args.reason or "",
            trust=(*args.trust, *(*add, *dropped) * args.trust_code),
            progress=progress,
            **fields(args, f"{_AIMS} outside_data timeout dry_run"),
        )
    gone = [session.repository.find(each) for each in dropped]
    if session.as_json:
        named = {"dropped": gone} if gone else {}
        session.out.json("mvc.repack/1", _json(done, dry_run=args.dry_run) | named)
    elif gone:
        session.out.note(
            f"given up: the weights of {_listed(session, gone)}; 'mvc gc' deletes what no other "
            "version has"
        )
    elif args.dry_run or session.verbosity >= 0:
        _print(session, done)


def _check(args: _RepackOptions) -> None:
    if args.rev and sum(map(bool, (args.add, args.remove, args.drop_weights))) != 1:
        raise click.UsageError("revisions follow --add, --remove or --drop-weights")
    aims = given(args, "add remove drop_weights dry_run")
    numbers_given = {getattr(args, name) for name in (*_AIMS.split(), "max_size")} != {None}
    if args.as_curve and (aims or numbers_given):
        raise click.UsageError("--curve changes nothing and goes with no other aim")


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
    show(out, [Column(""), *numbers(", ".join(columns))], rows)


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
        **fields(plan, "added removed full_added full_removed"),
        **fields(plan, "deltas_added deltas_removed given_up prices"),
        "before": _metrics_json(plan.before),
        "planned": _metrics_json(plan.after),
        "now": done.now and _metrics_json(done.now),
    }


def _metrics_json(metrics: LayoutMetrics) -> dict[str, Any]:
    return {
        **fields(metrics, _POINT),
        "reset_points": len(metrics.reset_points),
        **fields(metrics, "recovery_worst_commit=worst_commit decoded_worst=worst_bytes"),
        **fields(metrics, "decoded_mean=mean_bytes deltas_worst=worst_deltas"),
        "deltas_mean": metrics.mean_deltas,
    }


# -- the storage/recovery curve: in plain characters, and as a picture drawn by matplotlib


def _show_curve(session: Session, picture: Path | None, *, force: bool) -> None:
    if picture is not None:
        session.check_output(picture, force=force)
    with session.progress("planning", counted=True) as progress:
        curve = session.repository.storage.curve(progress=progress)
    if picture is not None:
        session.write_output(picture, _draw(curve, picture))
        session.out.note(f"drew the curve in {printable(str(picture))}")
    if session.as_json:
        found = {"points": curve.points, "now": fields(curve.today, _POINT)}
        session.out.json("mvc.repack/1", {"curve": found})
    else:
        _print_curve(session, curve)


def _print_curve(session: Session, curve: RepackCurve) -> None:
    out = session.out
    if not curve.points:
        out.line("There is no version yet")
        return
    points = [(point.bytes, point.worst_seconds) for point in (*curve.points, curve.today)]
    shown = {(size(amount), seconds(time)) for amount, time in points}
    if len(shown) == 1:
        ((packs, worst),) = shown
        out.line(f"No other layout makes a difference: {packs} stored, worst recovery {worst}")
        return
    out.line("Worst recovery against bytes of packs: * possible, @ stored now")
    out.line()
    for line in chart(points[:-1], points[-1], width=min(80, out.width or 80)):
        out.line(line)
    out.line()
    rows = [
        (name, size(point.bytes), seconds(point.worst_seconds), seconds(point.mean_seconds))
        for name, point in [*(("", point) for point in curve.points), ("now", curve.today)]
    ]
    show(out, [Column(""), *numbers("packs, worst, mean")], rows)


def chart(
    points: Sequence[tuple[float, float]],
    today: tuple[float, float],
    *,
    width: int = 72,
    height: int = 15,
) -> list[str]:
    """Lines of at most ``width`` columns: ``*`` possible layouts, ``@`` the stored one.

    A point is bytes and seconds. Bytes grow to the right, seconds upwards by ratio.
    """
    every = [*points, today]
    left = max(len(seconds(s)) for _, s in every) + 2
    columns = width - left - 1
    low, high = min(b for b, _ in every), max(b for b, _ in every)
    bottom, top = (math.log(f(max(s, 1e-9) for _, s in every)) for f in (min, max))
    grid = [[" "] * columns for _ in range(height)]
    for mark, (amount, time) in [*(("*", p) for p in points), ("@", today)]:
        x = _place(amount, low, high, columns)
        grid[-1 - _place(math.log(max(time, 1e-9)), bottom, top, height)][x] = mark
    labels = {
        i: seconds(math.exp(at))
        for i, at in ((0, top), (height // 2, (top + bottom) / 2), (height - 1, bottom))
    }
    first, last = size(round(low)), size(round(high))
    gap = max(1, columns - len(first) - len(last))
    return [
        *(f"{labels.get(i, ''):>{left - 1}} |{''.join(r).rstrip()}" for i, r in enumerate(grid)),
        " " * left + "+" + "-" * columns,
        " " * (left + 1) + first + " " * gap + last,
    ]


def _place(value: float, low: float, high: float, count: int) -> int:
    return 0 if high <= low else round((value - low) / (high - low) * (count - 1))


def _draw(curve: RepackCurve, path: Path) -> bytes:
    kind = _PICTURES.get(path.suffix.lower())
    if kind is None:
        raise WrongUsage(f"a curve is drawn as .svg or .png, not as {path.name}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NotInstalled(
            "drawing the curve needs matplotlib", hint=how_to_install("plots")
        ) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [point.bytes / 1e6 for point in curve.points]
    for label, style, times in (
        ("worst recovery", "o-", [point.worst_seconds for point in curve.points]),
        ("mean recovery", "o--", [point.mean_seconds for point in curve.points]),
    ):
        axes.plot(sizes, times, style, markersize=3, label=label)
    stored = [curve.today.bytes / 1e6] * 2
    today = [curve.today.worst_seconds, curve.today.mean_seconds]
    axes.plot(stored, today, "k*", markersize=10, label="stored now")
    axes.set(yscale="log", xlabel="packs (MB)", ylabel="estimated recovery (s)")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    out = io.BytesIO()
    plain = {"Date": None} if kind == "svg" else None  # equal curves are equal files
    figure.savefig(out, format=kind, metadata=plain)
    return out.getvalue()
