"""``mvc probe``.

Names the first layer and the direction, forward or backward, in which they differ, and the
likely cause. Runs the code that you name: SCRIPT is a file FILE.py, MODEL is FILE.py:NAME. NAME
(by default 'model') is a function that returns a torch module, or the module and its inputs.
Other functions there are used by their names: inputs(), target(), loss(output, target),
optimizer(parameters). The exit code is 1 if the runs differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mvc.cli.script import Script
from mvc.cli.verb import FORCE_FILE, CommandOptions, Session, argument, flag, option, verb
from mvc.errors import WrongUsage

if TYPE_CHECKING:
    from mvc.probing.probe import Probe

_COLUMNS = "layer, type, fwd>, bwd>, inp, out, grad_inp, grad_out, grad_par"
_MOST_ROWS = 40  # unless all are asked for


class _ProbeOptions(CommandOptions, frozen=True, kw_only=True):
    model: str = argument("SCRIPT|MODEL")
    training: bool = flag(
        "Forward, backward and one step (the default), or forward in evaluation mode.",
        "--training/--eval",
        default=True,
    )
    save: Path | None = option("FILE", "Write the run, to compare another machine's with it.")
    force: bool = FORCE_FILE
    against: Path | None = option(
        "FILE", "Compare with the run in FILE, and not with a second one."
    )
    seed: int | None = option(
        "N",
        "Seed torch, numpy and Python before the code is imported and before each run.",
        type=click.IntRange(0, (1 << 32) - 1),
    )
    threads: int | None = option(
        "N", "The number of threads of torch.", type=click.IntRange(1, 1024)
    )
    deterministic: bool = flag("Let torch use deterministic kernels only.")
    only: str | None = option(
        "LAYERS",
        "Record these, with distances: names, wildcards, forward indices: fc,block1.*,7,9-12.",
    )
    shape: str | None = option(
        "SHAPE",
        "Give the model a random tensor, such as 1x3x224x224 (the same in every run).",
        "--input",
    )
    rev: str | None = option("REV", "Load the weights of a version into the model first.")


@verb("mvc probe net.py --save here.json", _ProbeOptions)
def command(session: Session, args: _ProbeOptions) -> int:
    from mvc.probing.probe import probe
    from mvc.probing.run import seed_all

    if args.save is not None:
        session.check_output(args.save, force=args.force)
    script = Script(args.model, session.fs, "model")

    def make() -> Any:
        made = _made(script)
        if args.rev is not None:
            from mvc.training.resume import load

            module = made[0] if isinstance(made, tuple) else made
            load(session.repo, module, args.rev)
        return made

    given = None if args.shape is None else _tensor(args.shape)
    with script.running():
        if args.seed is not None:
            seed_all(args.seed)
        found = probe(
            make,
            script.value("inputs") if given is None else given,
            target=script.value("target"),
            loss=script.get("loss"),
            optimizer=script.get("optimizer"),
            only=None if args.only is None else [each.strip() for each in args.only.split(",")],
            deterministic=args.deterministic or None,
            training=args.training,
            against=args.against,
            seed=args.seed,
            threads=args.threads,
        )
    if args.save is not None:
        found.save(args.save)
        session.note(f"wrote the run to {args.save}")
    if not session.answered("mvc.probe/1", found):
        _print(session, found)
    return int(not found.same)


def _made(script: Script) -> Any:
    made = script.required(script.name)
    import torch

    return made if isinstance(made, torch.nn.Module) or not callable(made) else made()


def _tensor(shape: str) -> Any:
    """Random numbers of the shape; the same for every run of the program."""
    lengths = shape.split("x")
    if not all(length.isdecimal() and int(length) > 0 for length in lengths):
        raise WrongUsage(f"a shape is written 1x3x224x224, not {shape!r}")
    import torch

    return torch.randn([*map(int, lengths)], generator=torch.Generator().manual_seed(0))


def _print(session: Session, found: Probe) -> None:
    rows = found.rows if session.verbose else found.shown(_MOST_ROWS)
    styles = ["bad" if row.differs else None for row in rows]
    session.table(_COLUMNS, [row.cells() for row in rows], styles=styles)
    session.left_out(len(found.rows) - len(rows))
    session.line(session.paint(found.verdict, "good" if found.same else "bad"))
    for cause in found.causes:
        session.line(f"likely cause: {cause}")
        if cause.hint:
            session.note(f"hint: {cause.hint}")
