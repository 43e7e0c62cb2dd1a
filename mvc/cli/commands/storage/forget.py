"""``mvc forget``.

Deletes the states of the REVs. Without REVs, rules (options such as --keep-last) select the
versions. Commits stay. The next 'mvc gc' removes the bytes. With --weights, mvc deletes
("drops") only weights that 'mvc retrain' can compute again.
"""

from __future__ import annotations

import sys
from typing import Any

import click

import mvc.recipes as recipes
from mvc.api import Chosen, Commit, ForgetPreview
from mvc.cli.payload import stamped
from mvc.cli.receipts import print_receipt
from mvc.cli.verb import (
    DRY_RUN,
    REMOTE,
    CommandOptions,
    Session,
    argument,
    fields,
    flag,
    option,
    reason,
    verb,
)
from mvc.errors import NotConfirmed
from mvc.text import count, format_time, listed, one_line, size

_FIRST = 10
_AT_LEAST_1 = click.IntRange(min=1)


class _ForgetOptions(CommandOptions, frozen=True, kw_only=True):
    rev: tuple[str, ...] = argument("[REV...]")
    weights: bool = flag(
        "Drop only weights whose recipe is proven: a replay gave the same bits.",
        allows="rev trust_code reason remote",
    )
    trust_code: bool = flag(
        "With --weights: run the stored code of each REV to prove its recipe.", needs="weights"
    )
    unused: str | None = option(
        "TARGET", "Forget only versions that were never deployed to TARGET."
    )
    unqueried: bool = flag("Forget only versions whose state was never read.")
    listed: bool = flag(
        "Print the receipts of forgotten states.",
        "--list",
        allows="rev remote",
    )
    keep_last: int | None = option("N", "Keep the newest N versions.", type=_AT_LEAST_1)
    keep_hourly: int | None = option(
        "N",
        "Keep the newest version of an hour, for the newest N hours that have versions.",
        type=_AT_LEAST_1,
    )
    keep_daily: int | None = option(
        "N",
        "Keep the newest version of a day, for the newest N days that have versions.",
        type=_AT_LEAST_1,
    )
    keep_best: tuple[str, ...] = option(
        "METRIC:N",
        "Keep the N versions with the highest METRIC; with -METRIC:N, the lowest METRIC.",
    )
    dry_run: bool = DRY_RUN
    reason: str | None = reason()
    force: bool = flag("Do not ask for confirmation. Required if stdin is no terminal.", "-f")
    remote: str | None = REMOTE


@verb("mvc forget --keep-daily 30 --keep-best acc:5", _ForgetOptions)
def command(session: Session, args: _ForgetOptions) -> int | None:
    return session.at_remote(
        args.remote,
        lambda: _command(session, args),
        changes=not (args.dry_run or args.listed),
    )


def _command(session: Session, args: _ForgetOptions) -> int | None:
    if args.listed:
        _print_receipts(session, args.rev)
    elif args.weights:
        _drop_weights(session, args)
    else:
        return _forget(session, args)
    return None


def _forget(session: Session, args: _ForgetOptions) -> int:
    storage = session.repo.storage
    chosen = storage.forget(
        args.rev,
        **fields(args, "unused unqueried keep_last keep_hourly keep_daily keep_best"),
        dry_run=True,
    )
    asks = bool(chosen.commits) and not args.dry_run and not args.force
    if asks and (session.as_json or not sys.stdin.isatty()):
        raise NotConfirmed(
            "this cannot be undone, and stdin is no terminal",
            hint="preview it with -n, confirm it with -f",
        )
    cost = session.run("checking", storage.preview, chosen, counted=True)
    if not session.as_json:
        if asks or args.dry_run or session.verbosity >= 0:
            _print(session, chosen, cost)
        _warn(session, chosen, cost)
    if asks and not click.confirm(
        f"Forget {count(len(chosen.commits), 'state')} for good?", err=True
    ):
        return 1
    if not args.dry_run:
        chosen = storage.forget(chosen, reason=args.reason or "")
    receipts = () if chosen.number is None else storage.receipts()
    new = [receipt for receipt in receipts if receipt.number == chosen.number]
    head = {
        "dry_run": args.dry_run,
        "number": chosen.number,
        "receipt": new[0] if new else None,
    }
    if not session.answered("mvc.forget/1", head | _json(chosen, cost)):
        for receipt in new:
            session.note(
                f"Forgot {count(len(receipt.states), 'state')}; 'mvc gc' removes the bytes"
            )
            if session.verbosity >= 0:
                print_receipt(session, receipt)
    return int(bool(chosen.already) and not chosen.commits)


def _drop_weights(session: Session, args: _ForgetOptions) -> None:
    if not args.rev:
        raise click.UsageError("name the versions whose weights are dropped")
    done = session.run(
        "proving",
        recipes.drop_weights,
        session.repo,
        args.rev,
        trust=args.trust_code,
        reason=args.reason or "",
        counted=True,
    )
    versions = [{"version": id_, "kept": why} for id_, why in done.items()]
    session.answered("mvc.forget.weights/1", {"versions": versions})
    for why in dict.fromkeys(done.values()):
        names = listed(
            [id_.short for id_ in done if done[id_] == why], None if session.verbose else _FIRST
        )
        retained = f"stored: the weights of {names}: {why}"
        dropped = f"dropped: the weights of {names}; 'mvc gc' deletes their bytes"
        session.note(dropped if why is None else retained)


def _print_receipts(session: Session, revs: tuple[str, ...]) -> None:
    wanted = {session.repo.find(rev) for rev in revs}
    receipts = [
        receipt
        for receipt in session.repo.storage.receipts()
        if not wanted or wanted & {state.commit for state in receipt.states}
    ]
    if not session.answered("mvc.forget.list/1", {"receipts": receipts}):
        for receipt in receipts:
            print_receipt(session, receipt)
        if not receipts:
            session.note("nothing was forgotten")


def _warn(session: Session, chosen: Chosen, cost: ForgetPreview) -> None:
    for id_, targets in cost.live.items():
        session.warn(
            f"{id_.short} is live on {listed([*targets])}: "
            "the live version will be unrecoverable from this repository"
        )
    for short in chosen.short:
        session.warn(
            f"only {count(short.have, 'version')} of the {short.best.count:,} to keep "
            f"{'has' if short.have == 1 else 'have'} the metric {short.best.metric}; "
            f"{count(len(short.without), 'version')} without it will be forgotten"
        )


def _print(session: Session, chosen: Chosen, cost: ForgetPreview) -> None:
    if chosen.queries_since_ns is not None:
        since = format_time(chosen.queries_since_ns, precise=False)
        session.note(f"reads are recorded since {since}; older versions stay")
    for id_ in chosen.restored:
        session.note(
            f"the weights of {id_.short} become stored again, because its base is forgotten"
        )
    for id_ in chosen.already:
        session.note(f"the state of {id_.short} is already forgotten")
    if not chosen.commits:
        if not chosen.already:
            session.line("Nothing to forget")
        return
    session.line(f"{count(len(chosen.commits), 'state')} to forget:")
    session.table(
        "version, time, message, live on, same state",
        [_row(session, commit, cost) for commit in chosen.commits],
        indent="  ",
        most=None if session.verbose else _FIRST,
    )
    session.line(
        f"{count(cost.tensors, 'tensor')} and {count(cost.files, 'file')} will be deleted; "
        f"{cost.shared + cost.shared_files:,} stay, because other versions have them"
    )
    freed = "an unknown size, because something is damaged"
    if cost.collection is not None:
        freed = f"about {size(max(cost.collection.freed, 0))}"
    session.line(f"The next 'mvc gc' frees {freed}")


def _row(session: Session, commit: Commit, cost: ForgetPreview) -> tuple[str, ...]:
    return (
        session.id_text(commit.id),
        session.moment(commit.time_ns, cell=True),
        one_line(commit.message),
        ", ".join(cost.live.get(commit.id, ())),
        ", ".join(id_.short for id_ in cost.same.get(commit.id, ())),
    )


def _json(chosen: Chosen, cost: ForgetPreview) -> dict[str, Any]:
    return {
        "named": chosen.named,
        "rules": chosen.rules and chosen.rules.text,
        "versions": [
            {
                "id": commit.id,
                **stamped("time", commit.time_ns),
                "message": commit.message,
                "live": cost.live.get(commit.id, ()),
                "same": cost.same.get(commit.id, ()),
            }
            for commit in chosen.commits
        ],
        "already": chosen.already,
        **stamped("queries_since", chosen.queries_since_ns),
        "short": chosen.short,
        **fields(cost, "tensors shared files shared_files"),
        "freed_bytes": cost.collection and cost.collection.freed,
    }
