"""``mvc deploy``.

No file is copied. Without REV and TARGET, or with --list, mvc lists all deployments, even retracted
deployments, newest first. --retract withdraws the newest deployment of REV on TARGET. To
withdraw an older deployment, add --at TIME.
"""

from __future__ import annotations

from mvc.api import Deployed
from mvc.cli.commits import (
    IsLive,
    forgotten_on,
    live_now,
    missing_state,
    print_deployed,
    recorded_late,
    state_json,
    who,
)
from mvc.cli.verb import (
    CommandOptions,
    Session,
    argument,
    fields,
    flag,
    option,
    reason,
    sign,
    verb,
)
from mvc.errors import DamagedData, WrongUsage
from mvc.text import one_line


class _DeployOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str | None = argument("[REV]")
    target: str | None = argument("[TARGET]")
    at: str | None = option("TIME", "The time of the deployment, if not now.", needs="rev")
    retract: bool = flag("Withdraw the deployment: record that it did not happen.", needs="rev")
    reason: str | None = reason("rev")
    sign: bool | None = sign("rev")
    anyway: bool = flag("Deploy even if the target is protected or a file of the model is missing.")
    push: bool = flag(
        "Push the deployment first. If the remote refuses it, record nothing.", needs="rev"
    )
    listed: str | None = option(
        "[TARGET]", "List the deployments of TARGET, or all.", "--list", "-l", allows="",
        is_flag=False, flag_value="",
    )  # fmt: skip


@verb("mvc deploy HEAD prod --at 2026-11-20T10:00", _DeployOptions)
def command(session: Session, args: _DeployOptions) -> None:
    if args.listed is not None or args.rev is None:
        _print_deployments(session, args.listed or None)
        return
    if args.target is None:
        raise WrongUsage(
            "TARGET is missing",
            hint=f"mvc deploy {args.rev} TARGET; 'mvc deploy --list TARGET' lists deployments",
        )

    deployed = (session.repo.retract if args.retract else session.repo.deploy)(
        args.rev,
        args.target,
        at=args.at,
        reason=args.reason or "",
        sign=args.sign,
        anyway=args.anyway,
        push=args.push,
    )
    words = "Retracted {commit} on {target}" if args.retract else "Deployed {commit} to {target}"
    print_deployed(session, "mvc.deploy/1", deployed, words)


def _print_deployments(session: Session, target: str | None) -> None:
    listed = session.repo.deployments(target, incomplete=session.incomplete)[::-1]
    live = live_now(session)
    if session.as_json:
        rows = [fields(d) | {"live": live(d)} | state_json(*_missing(session, d)) for d in listed]
        session.json("mvc.deploy.list/1", {"deployments": rows})
    elif listed:
        session.table(
            "time, recorded, target, commit, state, who, why, message",
            [_row(session, d, live) for d in listed],
            styles=["dim" if d.retracted else None for d in listed],
        )
    elif not session.incomplete:
        session.note("no deployments yet")


def _row(session: Session, deployed: Deployed, live: IsLive) -> tuple[str, ...]:
    status = "retracted" if deployed.retracted else "live" if live(deployed) else ""
    column = [status, forgotten_on(*_missing(session, deployed))]
    try:
        message = session.title(deployed.commit)
    except DamagedData:  # the journal entry of the commit is lost
        message = "(lost)"
    return (
        session.moment(deployed.time_ns, cell=True),
        recorded_late(session, deployed, cell=True),
        deployed.target,
        deployed.commit.short,
        ", ".join(filter(None, column)),
        deployed.retracted_by or who(deployed.author, deployed.sent_by),
        one_line(deployed.retracted_reason or deployed.reason),
        message,
    )


def _missing(session: Session, deployed: Deployed) -> tuple[int | None, bool]:
    """When the version's state was forgotten, and whether the state is absent."""
    missing = missing_state(session, deployed.commit)
    return (missing.time_ns, missing.why == "absent") if missing else (None, False)
