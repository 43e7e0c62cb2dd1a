"""``mvc verify``.

Who vouches for each deployment, on T or on any target: the allowed signer whose signature it
has. Named is what was rewritten, inserted or taken out, and what a revoked key signed. With
REVs: who signed these versions. The exit code is 1 if nobody vouches for one of them.
"""

from __future__ import annotations

from mvc.api import Vouched
from mvc.cli.commits import IsLive, live_now
from mvc.cli.verb import CommandOptions, Session, argument, option, verb
from mvc.text import count, format_time


class _VerifyOptions(CommandOptions, frozen=True, kw_only=True):
    revs: tuple[str, ...] = argument("[REV]...", takes="")
    target: str | None = option("T", "Only what was deployed to T.")
    since: str | None = option("TIME", "Only what was recorded from TIME on.")


@verb("mvc verify --target prod", _VerifyOptions)
def command(session: Session, args: _VerifyOptions) -> int:
    if args.revs:
        return _verify_versions(session, args.revs)
    found = session.repo.verify(args.target, since=args.since)
    if not session.answered("mvc.verify/1", {"deployments": found}) and found:
        live = live_now(session)
        styles = ["bad" if each.problems else None for each in found]
        session.table(
            "time, target, commit, state, signed by, problem",
            [_row(session, each, live) for each in found],
            styles=styles,
        )
    bad = sum(bool(each.problems) for each in found)
    if not session.as_json:
        good, total = len(found) - bad, count(len(found), "deployment")
        session.note(f"{good:,} of {total} {'has' if good == 1 else 'have'} a trusted signature")
    return int(bad > 0)


def _row(session: Session, vouched: Vouched, live: IsLive) -> tuple[str, ...]:
    deployed, signature = vouched.deployment, vouched.signature
    return (
        format_time(deployed.time_ns),
        deployed.target,
        session.id_text(deployed.commit),
        "retracted" if deployed.retracted else "live" if live(deployed) else "",
        signature.signer if signature.trust == "good" else "",
        "; ".join(vouched.problems),
    )


def _verify_versions(session: Session, revs: tuple[str, ...]) -> int:
    found = [(commit, session.repo.verify(commit)) for commit in map(session.repo.find, revs)]
    versions = [{"commit": commit, "signature": checked} for commit, checked in found]
    if not session.answered("mvc.verify.versions/1", {"versions": versions}):
        for commit, checked in found:
            said = session.paint(checked.words, None if checked.trust == "good" else "bad")
            session.line(f"{session.paint(commit.short, 'id')} {said}")
    return int(any(checked.trust != "good" for _, checked in found))
