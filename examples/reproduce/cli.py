"""Commands from experiments. The only module here that prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

import click

from mvc.errors import MvcError, WrongUsage

from . import benchmarks, derived, distributed, drift, rework
from .experiment import Experiment, reproduce
from .render import markdown, picture, read_report
from .workspace import Progress, Workspace, compact

__all__ = ["cli", "main"]

_PROGRAM = "python examples/reproduce"
_FAILED, _INTERRUPTED = 3, 130
_PATH = click.Path(path_type=Path)
_out = click.option(
    "--out", type=_PATH, default=Path("reproduce"), show_default=True, metavar="DIR",
    help="The folder for what is trained, results and tables.",
)  # fmt: skip
_threads = click.option(
    "--threads", type=click.IntRange(1, 1024), metavar="N", help="Of torch. Default: torch's own."
)
_plot = click.option("--plot/--no-plot", default=True, show_default=True, help="A PNG, too.")


@click.group(name=_PROGRAM)
def cli() -> None:
    """Experiments of three theses and a paper, with mvc.

    Results are kept under --out: an interrupted command goes on when it is called again.
    """


@cli.command()
@click.argument("file", type=_PATH)
def table(file: Path) -> None:
    """Print a FILE of JSON that a command wrote, without measuring anything."""
    for line in markdown(read_report(file), of=file).split("\n"):
        click.echo(_printable(line))


@cli.command()
@click.argument("file", type=_PATH)
@_out
def plot(file: Path, out: Path) -> None:
    """Draw a FILE of JSON that a command wrote, as SVG."""
    click.echo(Workspace(out).publish(f"{file.stem}.svg", picture(read_report(file), "svg", file)))


@cli.command()
def check() -> None:
    """Compare the pages with the results: which figure differs, or has no source.

    Exit code 1 if there is one.
    """
    from .check import check as problems

    found = problems()
    for problem in found:
        click.echo(str(problem))
    click.echo(f"{len(found)} problems" if found else "every figure has its source")
    if found:
        raise _Differs


class _Differs(click.ClickException):
    """What ``check`` printed already."""

    exit_code = 1

    def __init__(self) -> None:
        super().__init__("pages and results differ")


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@_out
def benchmark(name: str, options: tuple[str, ...], out: Path) -> None:
    """Run a benchmark of tests/benchmarks by its NAME, and keep what it prints as JSON.

    OPTIONS are the benchmark's own, behind ``--``. NAME may be that of a result that a page has the
    figures of, as ``check`` names it. The file is tables/NAME.json below --out.
    """
    report = benchmarks.measured(name, options)
    Workspace(out).publish(f"{name}.json", compact(report))
    click.echo(markdown(report))


class _Words(click.ParamType):  # type: ignore[type-arg]
    """Words, or numbers, with commas."""

    name = "words"

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, _: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._kind(word.strip()) for word in value.split(",") if word.strip())
        except ValueError:
            name = param.name if param else ""
            raise WrongUsage(
                f"{name} is {value!r}: it must be numbers with commas, such as 0,1"
            ) from None


def _command(kind: type[Experiment[Any]]) -> click.Command:
    """The command whose options are the fields of an experiment."""

    def call(*, out: Path, threads: int | None, plot: bool, **values: Any) -> None:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        with _bar() as progress, Workspace(out, progress) as place:
            report = reproduce(_build(kind, values), place)
            name, text = report.pop("name"), markdown(report)
            place.publish(f"{name}.json", compact(report))
            place.publish(f"{name}.md", text.encode())
        click.echo(text)
        if plot and (drawn := picture(report, "png")):
            place.publish(f"{name}.png", drawn)

    for decorate in (_plot, _threads, _out):
        call = decorate(call)
    made: click.Command = click.command(help=kind.__doc__)(call)
    made.params[:0] = list(_parameters(kind))
    return made


def _parameters(kind: type) -> Iterator[click.Parameter]:
    for each, annotation in _fields(kind):
        if isinstance(annotation, type) and is_dataclass(annotation):
            yield from _parameters(annotation)
        elif "argument" in each.metadata:
            yield click.Argument(
                [each.name], nargs=-1 if isinstance(each.default, tuple) else 1,
                **each.metadata["argument"],
            )  # fmt: skip
        elif "option" in each.metadata:
            name = f"--{each.name.replace('_', '-')}"
            yield click.Option([name, each.name], **_details(annotation, each))


def _details(annotation: Any, each: Field[Any]) -> dict[str, Any]:
    """What click needs to know of an option; its type is that of the field."""
    default: Any = each.default
    details = {"default": default, **each.metadata["option"]}
    kind, *rest = [one for one in get_args(annotation) if one is not type(None)] or [annotation]
    if kind is bool:
        return details | {"is_flag": True}
    words = rest == [...]  # tuple[kind, ...]
    shown = bool(default) or default == 0
    details["show_default"] = ",".join(map(str, default)) if words and shown else shown
    if kind is Path:
        details["multiple"] = words
        return details | {"type": _PATH, "show_default": False}
    return details | {"type": _Words(kind) if words else kind}


def _fields(kind: type) -> Iterator[tuple[Field[Any], Any]]:
    types = get_type_hints(kind)
    return ((each, types[each.name]) for each in fields(kind))


def _build(kind: type, values: Mapping[str, Any]) -> Any:
    """The dataclass of these values; empty arguments are their default."""
    given: dict[str, Any] = {}
    for each, annotation in _fields(kind):
        if is_dataclass(annotation):
            given[each.name] = _build(annotation, values)  # type: ignore[arg-type]
        elif each.metadata:
            empty = "argument" in each.metadata and values[each.name] == ()
            given[each.name] = each.default if empty else values[each.name]
    return kind(**given)


class _Group(click.Group):
    """Commands that may be written as options: ``derived --server`` is ``derived server``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("--") and args[0][2:] in self.commands:
            args = [args[0][2:], *args[1:]]
        return super().parse_args(ctx, args)


for _group in (drift, derived, rework, distributed):
    _own = _Group(_group.__name__.rpartition(".")[2], help=_group.__doc__)
    for _name, _kind in _group.COMMANDS.items():
        _own.add_command(_command(_kind), _name)
    cli.add_command(_own)


@contextmanager
def _bar() -> Iterator[Progress]:
    """Progress on a terminal, nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda *_: None
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


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command; errors are one line and a hint on stderr."""
    sys.exit(_code(lambda: cli.main(arguments, prog_name=_PROGRAM, standalone_mode=False)))


def _code(run: Callable[[], object]) -> int:
    try:
        run()
    except MvcError as error:
        return _failed(error.message, error.hint, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        path = getattr(getattr(error, "ctx", None), "command_path", _PROGRAM)
        message = error.format_message().rstrip(".")
        return _failed(message[:1].lower() + message[1:], f"see '{path} --help'", error.exit_code)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _failed(f"{(error.strerror or str(error)).lower()}{where}", None, _FAILED)
    except (KeyboardInterrupt, click.Abort):
        return _failed("interrupted", "call it again to go on", _INTERRUPTED)
    return os.EX_OK


def _failed(message: str, hint: str | None, code: int) -> int:
    """Prints to stderr why a command failed, as ``mvc`` does; returns the exit code."""
    for line in (f"mvc: {message}", f"hint: {hint}" if hint else None):
        if line:
            click.echo(_printable(line), err=True)
    return code


def _printable(line: str) -> str:
    return "".join(each if each.isprintable() or each == "\t" else "?" for each in line)
