"""The click program: its global options and its commands. A command is imported when it is called.

So ``mvc log`` imports neither torch nor other commands, and ``mvc --help`` imports no command.
"""

from __future__ import annotations

import contextlib
from importlib import import_module

import click

from mvc.cli.catalog import COMMANDS, ELSEWHERE, SECTIONS, module_of
from mvc.cli.session import Session
from mvc.cli.verb import Option, completion, shared_options
from mvc.errors import WrongUsage


class Program(click.Group):
    """Finds the called command in ``COMMANDS``, and imports only this command."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = import_module(module_of(cmd_name)).command
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``mvc version`` means ``mvc --version``."""
        return super().parse_args(ctx, ["--version"] if args == ["version"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        return name, self.named(ctx, name), args[1:]

    def named(self, ctx: click.Context, name: str, *topics: str) -> click.Command:
        """The command ``name``. If it is unknown, raises WrongUsage with a similar name."""
        if name in ELSEWHERE:
            raise WrongUsage(f"there is no command {name!r}", hint=ELSEWHERE[name])
        command = self.get_command(ctx, name)
        if command is None:
            from difflib import get_close_matches

            close = [word for word in COMMANDS if sorted(word) == sorted(name)]  # swapped letters
            close += get_close_matches(name, [*COMMANDS, *topics], n=1)
            wish = f": did you mean '{close[0]}'?" if close else ""
            noun = "command or topic" if topics else "command"
            raise click.UsageError(f"there is no {noun} {name!r}{wish}", ctx)
        return command

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes one screen: the daily commands with one line of help each, and all other names."""
        (_, daily), *sections = SECTIONS.items()
        formatter.write("Usage: mvc [-C DIR] [-q|-v] COMMAND [ARGUMENTS]...\n\n")
        formatter.write(f"{self.help}\n\n")
        formatter.write_dl(list(daily.items()))
        formatter.write_paragraph()
        formatter.write_dl([(section, ", ".join(names)) for section, names in sections])
        formatter.write_paragraph()
        formatter.write(_MORE)

    def format_all(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes every command with one line of help, the topics, global options and examples."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        width = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(n.ljust(width), line) for n, line in commands.items()])
        from mvc.cli.topics import TOPICS

        with formatter.section("Topics, for 'mvc help TOPIC'"):
            formatter.write_text(", ".join(TOPICS))
        self.format_options(ctx, formatter)
        with formatter.section("Example"):
            for line in _EXAMPLE:
                formatter.write_text(line)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes nothing: ``format_all`` lists the commands."""


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.util import find_spec

    from mvc.version import installed_version

    loops = "numpy" if find_spec("mvc.codecs._kernels") is None else "C"
    click.echo(f"mvc {installed_version()} (kernels in {loops})")
    ctx.exit()


_MORE = "'mvc help COMMAND' explains a command; 'mvc help --all' lists all, and topics.\n"
_EXAMPLE = (
    "mvc init",
    'mvc commit model.safetensors -m "nightly" --deploy prod',
    'mvc checkout --at "2 hours ago" --target prod -o live.safetensors',
)


@click.command(
    cls=Program,
    params=[
        *shared_options(hidden=False),
        Option(
            ("-C", "directory"), metavar="DIR", shell_complete=completion("DIR"),
            help="Work as if started in DIR.",
        ),
        Option(
            ("-V", "--version"), is_flag=True, is_eager=True, expose_value=False,
            callback=_print_version, help="Print the version and the kernels in use, and exit.",
        ),
    ],
    context_settings={"max_content_width": 100},
    add_help_option=False,
)  # fmt: skip
@click.help_option("-h", "--help", cls=Option)
@click.pass_context
def program(ctx: click.Context, directory: str | None) -> None:
    """Git for model weights: every deployed version, exactly, in a small local store."""
    ctx.call_on_close(ctx.ensure_object(Session).close)
    if directory is not None:
        try:
            ctx.with_resource(contextlib.chdir(directory))
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise click.UsageError(f"cannot work in {directory!r}: {reason}", ctx) from error
