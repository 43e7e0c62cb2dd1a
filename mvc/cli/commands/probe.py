"""``mvc probe``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mvc.cli.completing import complete_files, complete_revisions
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.retraining import Retraining, retrain_options, with_weights
from mvc.cli.script import Script
from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.errors import WrongUsage
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.provenance.probe.compare import LayerRow
    from mvc.provenance.probe.probe import Probe

_COLUMNS = (
    Column("layer", give="middle"),
    Column("type", give="end"),
    Column("fwd", right=True),
    Column("bwd", right=True),
    *map(Column, ("inp", "out", "grad_inp", "grad_out", "grad_par")),
)
_MOST_ROWS = 40  # unless all are asked for
_PARTS = ("input", "output", "grad_input", "grad_output", "gradient")


@verb("probe", "mvc probe net.py --save here.json")
@click.argument("model", metavar="SCRIPT|MODEL", shell_complete=complete_files)
@click.option(
    "--training/--eval", default=True,
    help="Forward, backward and one step (the default), or forward in evaluation mode.",
)  # fmt: skip
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the run, to compare another machine's with it.",
)  # fmt: skip
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="FILE",
    help="Compare with the run in FILE, and not with a second one.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0, (1 << 32) - 1), metavar="N",
    help="Seed torch, numpy and Python before the code is imported and before each run.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1, 1024), metavar="N", help="The number of threads of torch."
)
@click.option("--deterministic", is_flag=True, help="Let torch use deterministic kernels only.")
@click.option(
    "--only", metavar="LAYERS",
    help="Record these, with distances: names, wildcards, forward indices: fc,block1.*,7,9-12.",
)  # fmt: skip
@click.option(
    "--input", "shape", metavar="SHAPE",
    help="Give the model a random tensor, such as 1x3x224x224 (the same in every run).",
)  # fmt: skip
@click.option(
    "--rev", metavar="REV", shell_complete=complete_revisions,
    help="Load the weights of a version into the model first.",
)  # fmt: skip
@click.option("--path", metavar="PATH", help="The file of REV, where it has several states.")
@retrain_options()
def command(
    session: Session,
    model: str,
    training: bool,
    save: Path | None,
    force: bool,
    against: Path | None,
    seed: int | None,
    threads: int | None,
    deterministic: bool,
    only: str | None,
    shape: str | None,
    rev: str | None,
    path: str | None,
    retrain: Retraining,
) -> int:
    """Compare two runs of a model layer by layer.

    Names the first layer and the direction, forward or backward, in which they differ, and the
    likely cause. Runs the code that you name: SCRIPT is a file FILE.py, MODEL is FILE.py:NAME or
    package.module:NAME. NAME (by default 'model') is a function that returns a torch module, or
    the module and its inputs. Other functions there are used by their names: inputs(), target(),
    loss(output, target), optimizer(parameters). The exit code is 1 if the runs differ.
    """
    from mvc.provenance.probe.probe import probe
    from mvc.provenance.probe.run import seed_all

    if (path is not None or retrain.asked) and rev is None:
        name = "--path" if path is not None else "--retrain"
        raise WrongUsage(f"{name} goes with --rev", hint="name the version with --rev")
    if save is not None:
        session.check_output(save, force=force)
    script = Script(model, session.fs, "model")

    def make() -> Any:
        made = _made(script)
        if rev is not None:
            from mvc.api.repository import Repository

            module = made[0] if isinstance(made, tuple) else made
            Repository(session.context).load(module, rev, path=path)
        return made

    given = None if shape is None else _tensor(shape)

    def run() -> Probe:
        with script.running():
            if seed is not None:
                seed_all(seed)
            return probe(
                make,
                script.value("inputs") if given is None else given,
                target=script.value("target"),
                loss=script.get("loss"),
                optimizer=script.get("optimizer"),
                training=training,
                against=against,
                only=None if only is None else [each.strip() for each in only.split(",")],
                seed=seed,
                threads=threads,
                deterministic=deterministic or None,
            )

    found = with_weights(session, [rev], run, retrain)
    if save is not None:
        found.save(save)
        session.out.note(f"wrote the run to {printable(str(save))}")
    if session.as_json:
        session.out.json("mvc.probe/1", _json(found))
    else:
        _print(session, found)
    return int(not found.same)


def _made(script: Script) -> Any:
    """What NAME is, or returns."""
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
    out = session.out
    rows = found.rows if session.verbose else found.shown(_MOST_ROWS)
    styles = ["bad" if row.differs else None for row in rows]
    show(out, _COLUMNS, [[printable(cell) for cell in row.cells()] for row in rows], styles=styles)
    out.left_out(len(found.rows) - len(rows))
    out.line(out.paint(found.verdict, "good" if found.same else "bad"))
    for cause in found.causes:
        out.line(f"likely cause: {cause}")
        if cause.hint:
            out.note(f"hint: {cause.hint}")


def _json(found: Probe) -> dict[str, Any]:
    run, first = found.second, found.difference
    return {
        "same": found.same,
        "training": run.training,
        "conditions": fields(run.conditions, "seed", "threads", "deterministic"),
        "environment": run.environment,
        "first_difference": None
        if first is None
        else {
            **fields(first, "direction", "part", "text", "name", "inside"),
            **(fields(first.call, "layer", "type", "call", "forward") if first.call else {}),
        },
        "causes": [fields(cause, "kind", "text", "hint") for cause in found.causes],
        "layers": [_row_json(row) for row in found.rows],
    }


def _row_json(row: LayerRow) -> dict[str, Any]:
    return {
        **fields(row, "layer", "type", "call", "forward", "backward"),
        **{part: getattr(row, part) or None for part in _PARTS},
        "distances": {
            part: fields(d, "changed_share", "l2", "max_abs", "cosine", "nonfinite")
            for part, d in row.distances.items()
        },
    }
