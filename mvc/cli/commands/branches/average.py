"""``mvc average``.

The versions must have the same tensors, dtypes and shapes. The mean of each float is

  round(w1*x1 + w2*x2 + ... + wn*xn)

The sum is computed in float64, in the order of the REVs, and rounded once to the tensor's dtype. So
every machine computes the same bits. The factors w are 1/n, or the values of -w divided by their
sum. Integers and files without tensors are those of the last REV; mvc warns if they differ. The
REVs become parents. mvc refuses uncommitted work.
"""

from __future__ import annotations

from mvc.api import ema_weights
from mvc.cli.commits import summary
from mvc.cli.verb import CommandOptions, PathText, Session, argument, flag, option, verb


class _AverageOptions(CommandOptions, frozen=True, kw_only=True):
    revs: tuple[str, ...] = argument("REV...")
    weights: tuple[float, ...] = option(
        "W",
        "How much a REV counts. Name one number for each REV, in their order.",
        "-w",
        "--weight",
    )
    ema: float | None = option(
        "DECAY",
        "Use the weights of an exponential moving average with this decay.",
        allows="output revs force branch message deploy",
    )
    output: PathText | None = option(
        "FILE",
        "Write the mean to a file or folder; do not commit it.",
        "-o",
        allows="revs weights ema force",
    )
    force: bool = flag("Replace FILE if it exists.", "-f", needs="output")
    branch: str | None = option("NAME", "Commit to this branch; create it if it is missing.")
    message: str = option("MSG", "The message.", "-m", default="")
    deploy: str | None = option("TARGET", "Record that the version goes live on TARGET.")


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
        session.warn(f"{name} differs and has no mean: copied from the last version")
    if not session.answered("mvc.average/1", done):
        written = f"{', '.join(done.written)} written"
        session.lines(session.folded(summary(session, done.result) if done.result else written))
