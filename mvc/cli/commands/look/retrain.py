"""``mvc retrain``.

Runs the recipe of each REV in another process and compares the hashes. Weights that were given up
are stored again. Weights that are stored stay, and the recipe counts as proven: 'mvc forget
--weights' may then give them up.
"""

from __future__ import annotations

import click

import mvc.recipes as recipes
from mvc.cli.verb import CommandOptions, Session, argument, flag, option, verb


class _RetrainOptions(CommandOptions, frozen=True, kw_only=True):
    rev: tuple[str, ...] = argument("REV...", required=True)
    anyway: bool = flag("Even if the environment differs; the result is verified.")
    trust_code: bool = flag("Run the stored code of each REV.")
    trust: tuple[str, ...] = option(
        "REV", "Run the stored code of REV, too: a base that is trained first."
    )
    timeout: float | None = option(
        "SECONDS",
        "End the training of a version that takes longer.",
        type=click.FloatRange(0, min_open=True),
    )


@verb("mvc retrain HEAD --trust-code", _RetrainOptions)
def command(session: Session, args: _RetrainOptions) -> None:
    commits = [session.repo.find(rev) for rev in args.rev]
    trust = (*args.trust, *(commits if args.trust_code else ()))
    found = []
    for commit in commits:
        gone = session.repo.log(commit, limit=1)[0].dropped is not None
        make = recipes.store_weights if gone else recipes.retrain
        with session.progress("training", counted=True) as progress:
            make(
                session.repo,
                commit,
                trust=trust,
                anyway=args.anyway,
                timeout=args.timeout,
                progress=progress,
            )
        found.append({"version": commit, "made": "stored" if gone else "proven"})
        what = "stored the weights of" if gone else "proved the recipe of"
        session.note(f"{what} {commit.short}")
    session.answered("mvc.retrain/1", {"versions": found})
