"""The click program: global options, and commands that are imported when they are called.

The lazy group follows kedro's and click's own idiom: a closed table names the
modules, so that ``mvc log`` pays neither for torch nor for other commands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

from mvc import __version__
from mvc.cli.catalog import COMMANDS, SECTIONS, module_of
from mvc.cli.session import Session

__all__ = ["Verb", "program"]

_COLORS = click.Choice(["auto", "always", "never"])


def _session(ctx: click.Context) -> Session:
    return ctx.ensure_object(Session)


def _set_quiet(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        session = _session(ctx)
        session.verbosity, session.out.quiet = -1, True


def _set_verbose(ctx: click.Context, _: click.Parameter, value: int) -> None:
    if value:
        _session(ctx).verbosity = value


def _set_color(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        _session(ctx).out.set_color(value)


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        _session(ctx).debug = True


def _shared_options(*, hidden: bool) -> list[click.Option]:
    """Options of the program that every command takes as well."""
    common: dict[str, Any] = {"expose_value": False, "hidden": hidden}
    return [
        click.Option(
            ["-q", "--quiet"], is_flag=True, callback=_set_quiet, **common,
            help="Say nothing but data, warnings and errors.",
        ),
        click.Option(
            ["-v", "--verbose"], count=True, callback=_set_verbose, **common,
            help="Show more: full ids, every tensor.",
        ),
        click.Option(
            ["--color"], type=_COLORS, callback=_set_color, **common,
            help="Colour: on a terminal (auto), always or never.",
        ),
        click.Option(
            ["--debug"], is_flag=True, callback=_set_debug, **common,
            help="Show a traceback when something fails.",
        ),
    ]  # fmt: skip


@contextlib.contextmanager
def _of(ctx: click.Context) -> Iterator[None]:
    """Tells a wrong usage of which command it is, for the hint."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


class Verb(click.Command):
    """A command with an example in its help; takes ``-q -v --color --debug`` after its name too."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        self.params.extend(_shared_options(hidden=True))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _of(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _of(ctx):
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Example"):
            formatter.write_text(self.example)


class Program(click.Group):
    """Finds commands in the catalogue and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = import_module(module_of(cmd_name)).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, COMMANDS, n=1)
            wish = f": did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(f"there is no command {name!r}{wish}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(n.ljust(width), line) for n, line in commands.items()])
        with formatter.section("Example"):
            for line in _EXAMPLE:
                formatter.write_text(line)
        with formatter.section("Exit codes"):
            formatter.write_text(_EXIT_CODES)


_EXAMPLE = (
    "mvc init",
    'mvc commit model.safetensors -m "nightly" --deploy prod',
    'mvc checkout --at "2 hours ago" --target prod -o live.safetensors',
)
_EXIT_CODES = """0 done, 1 the answer is no, 2 wrong usage, 3 refused or failed, 4 damaged data,
5 repository busy, 130 interrupted"""


@click.command(
    cls=Program,
    params=_shared_options(hidden=False),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-C", "directory", metavar="DIR", help="Work as if started in DIR.")
@click.version_option(__version__, prog_name="mvc", message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context, directory: str | None) -> None:
    """Git for model weights: every deployed version, exactly, in a small local store."""
    session = _session(ctx)
    ctx.call_on_close(session.close)
    if directory is not None:
        try:
            ctx.with_resource(contextlib.chdir(directory))
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise click.UsageError(f"cannot work in {directory!r}: {reason}", ctx) from error
