"""``mvc retrain``.

Runs the recipe of each REV in a separate process. If the new weights have the recorded hash, the
recipe is proven, and dropped weights are stored again. 'mvc forget --weights' may drop weights with
a proven recipe.
"""

from __future__ import annotations

from functools import partial

import click

import mvc.recipes as recipes
from mvc.cli.verb import CommandOptions, Session, argument, flag, option, verb

_TEXTS = {
    "stored": "stored the weights of {}",
    "proven": "proved the recipe of {}",
    "near": "replayed {} within {:.3g}: not bit for bit, so its recipe is not proven",
}


class _RetrainOptions(CommandOptions, frozen=True, kw_only=True):
    rev: tuple[str, ...] = argument("REV...", required=True)
    anyway: bool = flag("Replay even if the environment differs. The result is verified as usual.")
    trust_code: bool = flag("Run the stored code of each REV.")
    trust: tuple[str, ...] = option(
        "REV", "Run the stored code of REV, too, if its dropped weights are needed (repeatable)."
    )
    timeout: float | None = option(
        "SECONDS",
        "Stop a replay that takes longer.",
        type=click.FloatRange(0, min_open=True),
    )
    tolerance: float | None = option(
        "X",
        "Accept weights that differ by at most X. The recipe then stays unproven.",
        type=click.FloatRange(0),
    )


@verb("mvc retrain HEAD --trust-code", _RetrainOptions)
def command(session: Session, args: _RetrainOptions) -> None:
    commits = [session.repo.find(rev) for rev in args.rev]
    trust = (*args.trust, *(commits if args.trust_code else ()))
    versions = []
    for commit in commits:
        lost = session.repo.log(commit, limit=1)[0].dropped is not None
        make = recipes.store_weights if lost else partial(recipes.retrain, tolerance=args.tolerance)
        with session.progress("training", counted=True) as progress:
            done = make(
                session.repo,
                commit,
                trust=trust,
                anyway=args.anyway,
                timeout=args.timeout,
                progress=progress,
            )
        near = None if done is None else done.distance
        outcome = "stored" if lost else "proven" if near is None else "near"
        versions.append({"version": commit, "made": outcome, "distance": near})
        session.note(_TEXTS[outcome].format(commit.short, near))
    session.answered("mvc.retrain/1", {"versions": versions})
