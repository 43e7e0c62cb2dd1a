"""``mvc verify`` checks the signatures of deployments or versions.

Checks that an allowed signer has signed each deployment. Reports deployments that were rewritten,
inserted or removed, and signatures by revoked keys. With REVs, mvc checks the signatures of these
versions instead. If a trusted signature is missing, the exit code is 1.
"""

from __future__ import annotations

from mvc.api import Vouched
from mvc.cli.commits import IsLive, live_now
from mvc.cli.verb import CommandOptions, Session, argument, option, verb
from mvc.text import count
from mvc.types import Counted


class _VerifyOptions(CommandOptions, frozen=True, kw_only=True):
    revs: tuple[str, ...] = argument("[REV]...", allows="")
    target: str | None = option("T", "Check only deployments to T.")
    since: str | None = option("TIME", "Check only deployments that were recorded since TIME.")


@verb("mvc verify --target prod", _VerifyOptions)
def command(session: Session, args: _VerifyOptions) -> int:
    if args.revs:
        return _verify_versions(session, args.revs)
    deployments = session.run(
        "checking", session.repo.verify, args.target, counted=True, since=args.since
    )
    if not session.answered("mvc.verify/1", {"deployments": deployments}) and deployments:
        live = live_now(session)
        styles = ["bad" if deployment.problems else None for deployment in deployments]
        session.table(
            "time, target, commit, state, signed by, problem",
            [_row(session, deployment, live) for deployment in deployments],
            styles=styles,
        )
    bad = sum(bool(deployment.problems) for deployment in deployments)
    if not session.as_json:
        good, total = len(deployments) - bad, count(len(deployments), "deployment")
        session.note(f"{good:,} of {total} {'has' if good == 1 else 'have'} a trusted signature")
    return int(bad > 0)


def _row(session: Session, vouched: Vouched, live: IsLive) -> tuple[str, ...]:
    deployed, signature = vouched.deployment, vouched.signature
    return (
        session.moment(deployed.time_ns, cell=True),
        deployed.target,
        session.id_text(deployed.commit),
        "retracted" if deployed.retracted else "live" if live(deployed) else "",
        signature.signer if signature.trust == "good" else "",
        "; ".join(vouched.problems),
    )


def _verify_versions(session: Session, revs: tuple[str, ...]) -> int:
    with session.progress("checking", counted=True) as progress:
        checks = [
            (commit, session.repo.verify(commit))
            for commit in Counted(progress, len(revs)).iterate(
                map(session.repo.find, revs), "versions"
            )
        ]
    versions = [{"commit": commit, "signature": checked} for commit, checked in checks]
    if not session.answered("mvc.verify.versions/1", {"versions": versions}):
        for commit, checked in checks:
            words = session.paint(checked.words, None if checked.trust == "good" else "bad")
            session.line(f"{session.paint(commit.short, 'id')} {words}")
    return int(any(checked.trust != "good" for _, checked in checks))
