"""``python -m mvc.evaluation``: runs the experiments. The only module here that prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from mvc.errors import MvcError, WrongUsage
from mvc.evaluation.common.data import load_data
from mvc.evaluation.common.progress import Tell
from mvc.evaluation.drift.experiment import SEED, Settings, experiments
from mvc.io.files import FileSystem
from mvc.model.names import printable

__all__ = ["cli", "main"]

_PROGRAM = "python -m mvc.evaluation"
_FAILED, _INTERRUPTED = 3, 130
_PATH = click.Path(path_type=Path)
_NUMBER = {"type": int, "metavar": "N"}
_NAME = {"show_default": True, "metavar": "NAME"}
_Options = dict[str, tuple[str, dict[str, Any]]]
_OPTIONS: _Options = {
    "--data": (
        "A folder of IDX files or a file of JSON lines; for both networks of the thesis one of "
        "each. Default: scikit-learn's digits.",
        {"type": _PATH, "multiple": True, "metavar": "PATH"},
    ),
    "--label-field": ("Where JSON lines have the label.", {"default": "label", **_NAME}),
    "--text-field": (
        "Where they have the text; several, with commas, are joined.",
        {"default": "text", "show_default": True, "metavar": "NAMES"},
    ),
    "--classes": (
        "Labels of the texts to tell apart, with commas. Default: the ten largest by topic.",
        {"default": "", "metavar": "NAMES"},
    ),
    "--model": ("conv, lstm, small or rows. Default: what fits.", {"metavar": "NAME"}),
    "--batch-size": ("Default: 86, 256 or 8, or what the data allow.", _NUMBER),
    "--batches": ("Online batches (TBOn). Default: 150, 60 for digits.", _NUMBER),
    "--peak": (
        "Of the label in the last batch (UPMOn).",
        {"default": "0.5", "show_default": True, "metavar": "SHARE"},
    ),
    "--seen": (
        "Of all data: samples of the label that are known offline (UPOff). "
        "Default: 0.0001, 0.001 for texts and digits.",
        {"metavar": "SHARE"},
    ),
    "--offline": ("Of all data: offline (POff). Default: what is left.", {"metavar": "SHARE"}),
    "--epochs": ("Offline. Default: 10.", _NUMBER),
    "--seed": ("The label is added.", {"type": int, "default": SEED, "show_default": True}),
    "--labels": (
        "Which labels drift in, one run for each.",
        {"default": "0,1", "show_default": True, "metavar": "N,N"},
    ),
    "--out": (
        "Recorded trainings, results, tables.",
        {"type": _PATH, "default": Path("evaluation"), "show_default": True, "metavar": "DIR"},
    ),
    "--threads": (
        "Of torch. Default: torch's own.",
        {"type": click.IntRange(1, 1024), "metavar": "N"},
    ),
}
_plot = click.option("--plot/--no-plot", default=True, show_default=True, help="PNG beside it.")


def _with(options: _Options) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command these options."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, (text, details) in reversed(options.items()):
            command = click.option(name, help=text, **details)(command)
        return command

    return decorate


_settings = _with(_OPTIONS)


@click.group(name=_PROGRAM)
def cli() -> None:
    """The experiments of three theses and a paper, with mvc: lossy versions of a model that learns
    online (drift), ten models derived from one another, kept in several ways (mmlib), trainings
    that die and come back from lossy checkpoints (rework), and one model that workers train
    together, talking as little as possible (fgm).
    """


@cli.group()
def drift() -> None:
    """A label that hardly occurs, then comes online: what versions of the model cost.

    Trainings are recorded once and replayed for every pipeline. Whatever is interrupted goes
    on when it is called again.
    """


@drift.command()
@_settings
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def split(as_json: bool, **options: Any) -> None:
    """Print how data are split, without training."""
    for data in _data(options):
        for experiment in experiments(data, _of(options), _labels(options["labels"])):
            plan = experiment.plan
            counts = ("drifting_online", "others_online", "drifting_offline", "others_offline")
            said = {
                **experiment.parameters,
                "most_batches": plan.max_batches,
                "most_seen": float(plan.max_seen),
                "most_offline": float(plan.max_offline),
                **{name: getattr(plan, name) for name in counts},
                "per_batch": list(plan.per_batch),
            }
            if as_json:
                click.echo(json.dumps({"schema": "mvc.evaluation.split/1", **said}))
            else:
                click.echo("\n".join(f"{name:<17} {_text(value)}" for name, value in said.items()))
                click.echo()


@drift.command()
@_settings
def train(**options: Any) -> None:
    """Record the trainings: offline, then batch after batch."""
    with _session(options) as session:
        click.echo(session.trained())


@drift.command()
@_settings
@click.argument("pipelines", nargs=-1, required=True, metavar="PIPELINE...")
@click.option(
    "--interval", type=int, default=148, show_default=True, help="Versions between reset points."
)
@_plot
def run(pipelines: tuple[str, ...], interval: int, plot: bool, **options: Any) -> None:
    """Measure pipelines or presets on the recorded trainings."""
    with _session(options) as session:
        click.echo(session.pipelines(pipelines, interval, plot=plot))


@drift.command()
@_settings
@click.argument("table", metavar="NUMBER|FILE")
@_plot
def table(table: str, plot: bool, **options: Any) -> None:
    """Make a table of the thesis, 4.3 to 4.26, with its figures beside ours.

    A FILE of JSON that this program wrote is printed as a table, without measuring anything.
    """
    if table.endswith(".json"):
        from mvc.evaluation.drift.render import markdown
        from mvc.evaluation.drift.tables import read_table

        click.echo(markdown(read_table(FileSystem(), Path(table))))
        return
    with _session(options) as session:
        click.echo(session.table(table, plot=plot))


@drift.command(name="plot")
@_settings
@click.argument("file", required=False, type=_PATH)
def plot_(file: Path | None, **options: Any) -> None:
    """Draw how accuracy follows the drift, for every label.

    Of a FILE of JSON that this program wrote, draw the table: accuracy over ratio and bytes.
    """
    if file is not None:
        from mvc.evaluation.drift.session import draw

        click.echo(draw(FileSystem(), file, options["out"]))
        return
    with _session(options) as session:
        click.echo(session.curve_plot())


_NAMES = {"show_default": True, "metavar": "NAMES"}
_MODELS: _Options = {
    "--architectures": (
        "mobilenetv2, googlenet, resnet18, resnet50, resnet152, with commas.",
        {"default": "mobilenetv2,resnet18", **_NAMES},
    ),
    "--relations": (
        "version, fine-tuned, frozen, grafted, with commas.",
        {"default": "version,fine-tuned", **_NAMES},
    ),
    "--approaches": (
        "full, by-value, update, full-zstd, update-zstd, reset-points, deltas, provenance, "
        "with commas, or all.",
        {"default": "full,by-value,update,deltas", **_NAMES},
    ),
    "--repeats": (
        "Runs, of which the figures are medians.",
        {"type": int, "default": 1, "show_default": True, "metavar": "N"},
    ),
    "--data": (
        "A folder of IDX files. Default: scikit-learn's digits.",
        {"type": _PATH, "metavar": "FOLDER"},
    ),
    "--batches": (
        "For each U3; U2 takes twice as many.",
        {"type": int, "default": 2, "show_default": True, "metavar": "N"},
    ),
    "--batch-size": (
        "Images of a batch.",
        {"type": int, "default": 8, "show_default": True, "metavar": "N"},
    ),
    "--size": (
        "Height and width to which images grow.",
        {"type": int, "default": 64, "show_default": True, "metavar": "PIXELS"},
    ),
    "--seed": (
        "Of weights, images and training.",
        {"type": int, "default": 42, "show_default": True, "metavar": "N"},
    ),
    "--trained": ("U1 is trained, too. Default: random weights.", {"is_flag": True}),
    **{name: _OPTIONS[name] for name in ("--out", "--threads")},
}


@cli.group()
def mmlib() -> None:
    """Ten models derived from one another, kept whole, as updates and as deltas: MMlib's thesis.

    Models are trained once and saved by every approach; each is recovered and compared. Whatever
    is interrupted goes on when it is called again.
    """


@mmlib.command()
def architectures() -> None:
    """Print what the networks count to, beside the thesis's figures."""
    from mvc.evaluation.provenance.render import architectures

    click.echo(architectures())


@mmlib.command(name="run")
@_with(_MODELS)
@_plot
def run_mmlib(plot: bool, **options: Any) -> None:
    """Measure bytes, time to save and time to recover of each approach."""
    from mvc.evaluation.provenance.approaches import APPROACHES
    from mvc.evaluation.provenance.flow import Settings as Training
    from mvc.evaluation.provenance.session import Session

    _set_threads(options["threads"])
    names = ("batches", "batch_size", "size", "seed", "trained")
    settings = Training(**{name: options[name] for name in names})
    chosen = _words(options["approaches"])
    with _bar() as tell:
        session = Session(
            fs=(fs := FileSystem()),
            out=options["out"],
            data=load_data(fs, options["data"]),
            settings=settings,
            architectures=_words(options["architectures"]),
            relations=_words(options["relations"]),
            approaches=list(APPROACHES) if options["approaches"] == "all" else chosen,
            repeats=options["repeats"],
            tell=tell,
        )
        made = session.run(plot=plot)
    click.echo(made)


@mmlib.command(name="table")
@click.argument("file", type=_PATH)
def table_mmlib(file: Path) -> None:
    """Print a FILE of JSON that 'mmlib run' wrote as tables, without measuring anything."""
    from mvc.evaluation.provenance.render import markdown
    from mvc.evaluation.provenance.tables import read_report

    click.echo(markdown(read_report(FileSystem(), file)))


@mmlib.command(name="plot")
@click.argument("file", type=_PATH)
@click.option("--out", help=_OPTIONS["--out"][0], **_OPTIONS["--out"][1])
def plot_mmlib(file: Path, out: Path) -> None:
    """Draw a FILE of JSON that 'mmlib run' wrote: bytes and seconds by use case."""
    from mvc.evaluation.provenance.session import draw

    click.echo(draw(FileSystem(), file, out))


_TRAININGS: _Options = {
    "--models": (
        "mlr, mf, lenet, alexnet, with commas.",
        {"default": "mlr,mf,lenet", **_NAMES},
    ),
    "--optimizers": ("sgd, momentum, adam, with commas.", {"default": "sgd", **_NAMES}),
    "--data": (
        "A folder of IDX files. Default: scikit-learn's digits, grown to 28 x 28.",
        {"type": _PATH, "metavar": "FOLDER"},
    ),
    "--ratings": (
        "A CSV file with userId, movieId, rating. Default: synthetic ratings.",
        {"type": _PATH, "metavar": "FILE"},
    ),
    **{name: _OPTIONS[name] for name in ("--out", "--threads")},
}


@cli.group()
def rework() -> None:
    """A training dies and comes back from a lossy checkpoint: the LC-Checkpoint paper.

    LC, SCAR, TOPN and full checkpoints see the same trainings and failures. Whatever is
    interrupted goes on when it is called again.
    """


@rework.command(name="run")
@_with(_TRAININGS)
@click.argument("schemes", nargs=-1, metavar="[SCHEME]...")
@click.option(
    "--trials",
    type=int,
    default=5,
    show_default=True,
    metavar="N",
    help="Trainings, each with one failure. The paper has 50.",
)
@_plot
def run_rework(schemes: tuple[str, ...], trials: int, plot: bool, **options: Any) -> None:
    """Measure iterations that are done again, by SCHEME.

    A SCHEME is a pipeline (lc:x=2,huffman), scar:SHARE, scar-round:SHARE, topn:SHARE,
    topn-coded:SHARE or full:ITERATIONS; behind it may stand @exact or @zeroed for the
    optimizer's moments. Default: eight of them.
    """
    from mvc.evaluation.rework.schemes import DEFAULT

    with _rework(options) as session:
        click.echo(session.rework(schemes or DEFAULT, trials, plot=plot))


@rework.command(name="sizes")
@_with(_TRAININGS)
@_plot
def sizes_rework(plot: bool, **options: Any) -> None:
    """Measure what each stage and each coder of LC saves."""
    with _rework(options) as session:
        click.echo(session.sizes(plot=plot))


@rework.command(name="buckets")
@_with(_TRAININGS)
@_plot
def buckets_rework(plot: bool, **options: Any) -> None:
    """Measure the loss without each bucket of a change."""
    with _rework(options) as session:
        click.echo(session.buckets(plot=plot))


@rework.command(name="overhead")
@_with({name: _TRAININGS[name] for name in ("--ratings", "--out", "--threads")})
@click.argument("pipelines", nargs=-1, metavar="[PIPELINE]...")
@click.option("--epochs", type=int, default=10, show_default=True, metavar="N", help="Recorded.")
@_plot
def overhead_rework(pipelines: tuple[str, ...], epochs: int, plot: bool, **options: Any) -> None:
    """Measure what recording every epoch of a matrix factorisation costs."""
    with _rework({"models": "mf", "optimizers": "sgd", "data": None, **options}) as session:
        click.echo(session.overhead(pipelines or ("lc:x=3", "lc"), epochs, plot=plot))


@rework.command(name="table")
@click.argument("file", type=_PATH)
def table_rework(file: Path) -> None:
    """Print a FILE of JSON that these commands wrote, without measuring anything."""
    from mvc.evaluation.rework.render import markdown
    from mvc.evaluation.rework.tables import read_report

    click.echo(markdown(read_report(FileSystem(), file)))


@rework.command(name="plot")
@click.argument("file", type=_PATH)
@click.option("--out", help=_OPTIONS["--out"][0], **_OPTIONS["--out"][1])
def plot_rework(file: Path, out: Path) -> None:
    """Draw a FILE of JSON that these commands wrote, as SVG."""
    from mvc.evaluation.rework.session import draw

    click.echo(draw(FileSystem(), file, out))


_FGM: _Options = {
    "--data": (
        "A folder with Toronto's crimes (train.csv.gz, test.csv.gz), a folder of IDX files, or a "
        "file of JSON lines. Default: scikit-learn's digits.",
        {"type": _PATH, "metavar": "PATH"},
    ),
    "--limit": ("Training samples. Default: all.", _NUMBER),
    "--batch-size": (
        "Samples of an update.",
        {"type": int, "default": 4, "show_default": True, "metavar": "N"},
    ),
    "--epochs": (
        "Of the workers' stream.",
        {"type": float, "default": 10.0, "show_default": True, "metavar": "N"},
    ),
    "--warm-epochs": (
        "Of the first model, before workers begin.",
        {"type": int, "default": 5, "show_default": True, "metavar": "N"},
    ),
    "--warm-share": (
        "Of the samples: those of the first model, which workers do not get.",
        {"type": float, "default": 0.05, "show_default": True, "metavar": "SHARE"},
    ),
    "--optimizer": (
        "Of the workers: adam or sgd.",
        {"default": "adam", **_NAME},
    ),
    "--rates": (
        "Learning rates, with commas; the best is taken for each protocol.",
        {"default": "0.002,0.005,0.01,0.02", **_NAMES},
    ),
    "--central-rates": (
        "Those of central. Default: the same.",
        {"default": "", "metavar": "NAMES"},
    ),
    "--widen": (
        "More rates, outwards, that are tried while the best of several lies at an edge.",
        {"type": int, "default": 2, "show_default": True, "metavar": "N"},
    ),
    "--seeds": (
        "Runs of which the figures are means.",
        {"type": int, "default": 5, "show_default": True, "metavar": "N"},
    ),
    **{name: _OPTIONS[name] for name in ("--out", "--threads")},
}
_workers = click.option(
    "--workers", default="8", show_default=True, metavar="N,N", help="How many, with commas."
)


def _protocols(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    text = "Such as fgm@10 (rho), fgm:cap@T0.5, local-sgd@16 (every), gm@10+int8; with commas."
    return click.option("--protocols", default=default, metavar="NAMES", help=text)


@cli.group()
def fgm() -> None:
    """GM, FGM and other protocols on simulated workers: bytes against accuracy.

    Whatever is interrupted goes on when it is called again.
    """


@fgm.command(name="compare")
@_with(_FGM)
@_workers
@_protocols("")
@_plot
def compare_fgm(workers: str, protocols: str, plot: bool, **options: Any) -> None:
    """Compare protocols on one task."""
    from mvc.evaluation.distributed.session import COMPARED

    with _fgm_session(options) as session:
        counts = _labels(workers)
        click.echo(session.compare(_words(protocols or COMPARED), counts, plot=plot))


@fgm.command(name="drift")
@_with(_FGM)
@click.option("--workers", type=int, default=8, show_default=True, metavar="N")
@click.option("--sites", type=int, default=2, show_default=True, help="Workers with the new class.")
@click.option("--label", default=0, show_default=True, metavar="N", help="The new class.")
@_protocols("")
@_plot
def drift_fgm(
    workers: int, sites: int, label: int, protocols: str, plot: bool, **options: Any
) -> None:
    """Let a class come online, at all workers and then at some only."""
    from mvc.evaluation.distributed.session import DRIFTING

    with _fgm_session(options, workers=workers) as session:
        click.echo(session.drift(_words(protocols or DRIFTING), label, sites, plot=plot))


@fgm.command(name="appendix")
@_with(_FGM)
@_protocols("gm:norm,gm:cap,fgm:norm,fgm:cap")
@_plot
def appendix_fgm(protocols: str, plot: bool, **options: Any) -> None:
    """Run the settings of the thesis's appendix, one seed each, its rows beside ours."""
    with _fgm_session(options) as session:
        click.echo(session.appendix(_words(protocols), plot=plot))


@fgm.command(name="table")
@click.argument("file", type=_PATH)
def table_fgm(file: Path) -> None:
    """Print a FILE of JSON that these commands wrote as a table, without measuring anything."""
    from mvc.evaluation.distributed import report

    found = report.read_report(FileSystem(), file)
    click.echo((report.appendix if "appendix" in file.stem else report.markdown)(found))


@fgm.command(name="plot")
@click.argument("file", type=_PATH)
@click.option("--out", help=_OPTIONS["--out"][0], **_OPTIONS["--out"][1])
def plot_fgm(file: Path, out: Path) -> None:
    """Draw a FILE of JSON that these commands wrote: bytes against accuracy."""
    from mvc.evaluation.distributed.session import draw

    click.echo(draw(FileSystem(), file, out))


@contextmanager
def _rework(options: dict[str, Any]) -> Iterator[Any]:
    from mvc.evaluation.rework.ratings import load_ratings
    from mvc.evaluation.rework.session import Session
    from mvc.evaluation.rework.workloads import Images, Scores, Source, workload_named

    _set_threads(options["threads"])
    fs, models = FileSystem(), _words(options["models"])
    kinds = {workload_named(name).kind for name in models}
    sources: dict[str, Source] = {}
    if "images" in kinds:
        sources["images"] = Images(load_data(fs, options["data"]))
    if "ratings" in kinds:
        sources["ratings"] = Scores(load_ratings(fs, options["ratings"]))
    with _bar() as tell:
        optimizers = _words(options["optimizers"])
        yield Session(fs, options["out"], sources, models, optimizers, tell)


@contextmanager
def _fgm_session(options: dict[str, Any], **changed: Any) -> Iterator[Any]:
    from mvc.evaluation.distributed.measure import Training
    from mvc.evaluation.distributed.session import Session
    from mvc.evaluation.distributed.tasks import load_task

    _set_threads(options["threads"])
    names = ("batch_size", "epochs", "warm_epochs", "warm_share", "optimizer")
    training = Training(**{name: options[name] for name in names}, **changed)
    fs = FileSystem()
    task = load_task(fs, options["data"], options["limit"])
    with _bar() as tell:
        more = {name: options[name] for name in ("seeds", "widen")}
        more |= {name: _rates(options, name) for name in ("rates", "central_rates")}
        yield Session(fs, options["out"], task, training, **more, tell=tell)


def _rates(options: dict[str, Any], name: str) -> list[float]:
    try:
        return [float(word) for word in _words(options[name])]
    except ValueError:
        raise WrongUsage(f"{name} is {options[name]!r}: it must be numbers with commas") from None


def _set_threads(count: int | None) -> None:
    if count is not None:
        import torch

        torch.set_num_threads(count)


@contextmanager
def _session(options: dict[str, Any]) -> Iterator[Any]:
    from mvc.evaluation.drift.session import Session

    _set_threads(options["threads"])
    with _bar() as tell:
        data, labels = _data(options), _labels(options["labels"])
        session = Session(FileSystem(), options["out"], data, _of(options), labels, tell)
        with closing(session):
            yield session


def _data(options: dict[str, Any]) -> list[Any]:
    fs = FileSystem()
    return [
        load_data(
            fs,
            source,
            label_field=options["label_field"],
            text_fields=_words(options["text_field"]),
            classes=_words(options["classes"]),
        )
        for source in options["data"] or (None,)
    ]


def _of(options: dict[str, Any]) -> Settings:
    names = ("model", "batch_size", "batches", "peak", "seen", "offline", "epochs", "seed")
    return Settings(**{name: options[name] for name in names})


def _labels(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise WrongUsage(
            f"labels is {text!r}: it must be numbers with commas, such as 0,1"
        ) from None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def _bar() -> Iterator[Tell | None]:
    """Progress on a terminal, nothing anywhere else."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("", total=None)
        yield lambda what, done, total: display.update(
            task, description=escape(what), completed=done, total=total
        )


def main() -> NoReturn:
    """Runs the command; errors are one line and a hint on stderr."""
    try:
        cli.main(prog_name=_PROGRAM, standalone_mode=False)
        code = 0
    except MvcError as error:
        code = _failed(error.message, error.hint, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        path = getattr(getattr(error, "ctx", None), "command_path", _PROGRAM)
        message = error.format_message().rstrip(".")
        message = message[:1].lower() + message[1:]
        code = _failed(message, f"see '{path} --help'", error.exit_code)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        code = _failed(f"{(error.strerror or str(error)).lower()}{where}", None, _FAILED)
    except (KeyboardInterrupt, click.Abort):
        code = _failed("interrupted", "call it again to go on", _INTERRUPTED)
    sys.exit(code)


def _failed(message: str, hint: str | None, code: int) -> int:
    """Says on stderr why a command failed, as ``mvc`` does; returns the exit code."""
    click.echo(f"mvc: {printable(message)}", err=True)
    if hint:
        click.echo(f"hint: {printable(hint)}", err=True)
    return code


if __name__ == "__main__":
    main()
