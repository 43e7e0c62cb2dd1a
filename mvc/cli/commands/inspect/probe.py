"""``mvc probe`` compares two runs of a model layer by layer.

Prints the first layer that differs, the pass (forward or backward), and the likely cause. The
argument is FILE.py or FILE.py:NAME. mvc runs your code in FILE.py. NAME (default: model) is a
function that returns a torch module, or a module and its inputs. FILE.py may also define inputs(),
target(), loss(output, target) and optimizer(parameters). If the runs differ, the exit code is 1.
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
_MOST_ROWS = 40  # limit of rows without -v


class _ProbeOptions(CommandOptions, frozen=True, kw_only=True):
    model: str = argument("SCRIPT|MODEL")
    training: bool = flag(
        "Run forward, backward and one step (default), or only forward in evaluation mode.",
        "--training/--eval",
        default=True,
    )
    save: Path | None = option(
        "FILE", "Write a summary of the run to FILE, for --against on another machine."
    )
    force: bool = FORCE_FILE
    against: Path | None = option("FILE", "Compare with the run in FILE, not with a second run.")
    seed: int | None = option(
        "N",
        "Seed torch, numpy and Python before the import and before each run.",
        type=click.IntRange(0, (1 << 32) - 1),
    )
    threads: int | None = option(
        "N", "The number of threads of torch.", type=click.IntRange(1, 1024)
    )
    deterministic: bool = flag("Use only deterministic kernels.")
    only: str | None = option(
        "LAYERS",
        "Record only these layers (fc,block1.*,7,9-12), with their values, to measure differences.",
    )
    shape: str | None = option(
        "SHAPE",
        "Use a random input of this shape, such as 1x3x224x224. Each run uses the same input.",
        "--input",
    )
    rev: str | None = option("REV", "Load the weights of REV into the model.")


@verb("mvc probe net.py --save here.json", _ProbeOptions)
def command(session: Session, args: _ProbeOptions) -> int:
    from mvc.probing.probe import probe
    from mvc.probing.run import seed_all

    if args.save is not None:
        session.check_output(args.save, force=args.force)
    script = Script(args.model, session.fs, "model")

    def make() -> Any:
        model = _model_of(script)
        if args.rev is not None:
            from mvc.training.resume import load

            load(session.repo, model[0] if isinstance(model, tuple) else model, args.rev)
        return model

    example = None if args.shape is None else _tensor(args.shape)
    with script.running():
        if args.seed is not None:
            seed_all(args.seed)
        result = probe(
            make,
            script.value("inputs") if example is None else example,
            target=script.value("target"),
            loss=script.get("loss"),
            optimizer=script.get("optimizer"),
            only=None if args.only is None else [p.strip() for p in args.only.split(",")],
            deterministic=args.deterministic or None,
            training=args.training,
            against=args.against,
            seed=args.seed,
            threads=args.threads,
        )
    if args.save is not None:
        result.save(args.save)
        session.note(f"wrote the run to {args.save}")
    if not session.answered("mvc.probe/1", result):
        _print(session, result)
    return int(not result.same)


def _model_of(script: Script) -> Any:
    value = script.required(script.name)
    import torch

    return value if isinstance(value, torch.nn.Module) or not callable(value) else value()


def _tensor(shape: str) -> Any:
    """Random numbers of this shape, the same in every run of the program."""
    lengths = shape.split("x")
    if not all(length.isdecimal() and int(length) > 0 for length in lengths):
        raise WrongUsage(f"{shape!r} is not a shape; write 1x3x224x224")
    import torch

    return torch.randn([*map(int, lengths)], generator=torch.Generator().manual_seed(0))


def _print(session: Session, result: Probe) -> None:
    rows = result.rows if session.verbose else result.shown(_MOST_ROWS)
    session.table(
        _COLUMNS,
        [row.cells() for row in rows],
        styles=["bad" if row.differs else None for row in rows],
    )
    session.left_out(len(result.rows) - len(rows))
    session.line(session.paint(result.verdict, "good" if result.same else "bad"))
    for cause in result.causes:
        session.line(f"likely cause: {cause}")
        if cause.hint:
            session.note(f"hint: {cause.hint}")
