"""``mvc average``.

The versions must have the same tensors, dtypes and shapes. The mean of each float is

  round(w1*x1 + w2*x2 + ... + wn*xn)

with each product and each sum in float64, from left to right in the order of the REVs; it is
rounded once, to nearest with ties to even, to the dtype of the tensor. The weights w are those of
-w divided by their sum, by default 1/n. With --ema they are those of

  m = DECAY*m + (1-DECAY)*x

over the REVs in their order, beginning with m = x1. So everybody gets the same bits.

Integers that differ, and files without tensors, are those of the last REV: each is named. The
version has all REVs as parents, and their ids and weights as params. The files in the working
folder follow if the current branch gets it; none of them may hold work that is not committed.
"""

from __future__ import annotations

from mvc.api import ema_weights
from mvc.cli.commits import summary
from mvc.cli.verb import CommandOptions, PathText, Session, argument, flag, option, verb


class _AverageOptions(CommandOptions, frozen=True, kw_only=True):
    revs: tuple[str, ...] = argument("REV...")
    weights: tuple[float, ...] = option("W", "The weight of each REV, in order.", "-w", "--weight")
    ema: float | None = option(
        "DECAY", "An exponential moving average.", takes="output revs force branch message deploy"
    )
    output: PathText | None = option(
        "FILE",
        "Write the mean there instead, to a file or a folder.",
        "-o",
        takes="revs weights ema force",
    )
    force: bool = flag("Replace FILE if it exists.", "-f", needs="output")
    branch: str | None = option("NAME", "The branch that gets it, made if there is none.")
    message: str = option("MSG", "Say what this version is.", "-m", default="")
    deploy: str | None = option("TARGET", "Record that it goes live on TARGET.")


@verb("mvc average HEAD~2 HEAD~1 HEAD -w 1 -w 2 -w 4", _AverageOptions)
def command(session: Session, args: _AverageOptions) -> None:
    weights = args.weights if args.ema is None else ema_weights(len(args.revs), args.ema)
    done = session.run(
        "averaging",
        session.repo.average,
        args.revs,
        weights=weights or None,
        message=args.message,
        branch=args.branch,
        deploy=args.deploy,
        to=args.output,
        force=args.force,
    )
    for name in done.copied:
        session.warn(f"{name} differs and has no mean: that of the last version was taken")
    if not session.answered("mvc.average/1", done):
        made = done.result
        session.line(summary(session, made) if made else f"{', '.join(done.written)} written")
