"""The click program: global options, and commands that are imported when they are called.

A closed table names the modules, so that ``mvc log`` pays neither for torch nor for other
commands, and ``mvc --help`` for none (the lazy group of kedro and of click's documentation).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import click
from click.core import augment_usage_errors

from mvc.cli import gone
from mvc.cli.options import CommandOptions, check_needs, completion, parameters
from mvc.cli.session import Session
from mvc.errors import WrongUsage

SECTIONS: dict[str, dict[str, str]] = {
    "Every day": {
        "commit": "Record model files as a new version.",
        "status": "Show what changed since the last commit.",
        "log": "Show the history of a version.",
        "show": "Show a version: what it changed, a tensor, its code.",
        "diff": "Compare two versions tensor by tensor, or where they were made.",
        "checkout": "Restore a version, by name or by the moment it was live.",
        "deploy": "Record that a version went live on a target, or list all.",
        "live": "Show what is live, or was at a moment.",
        "rollback": "Deploy what was live on a target before.",
        "undo": "Take back an operation, or list the operations.",
    },
    "Start": {
        "init": "Make an empty repository.",
        "import": "Turn existing checkpoint files into history, or store a data set.",
        "config": "Show or change settings.",
        "help": "Explain a command or a topic.",
        "completion": "Print the completion script of a shell.",
        "train-distributed": "Train one model in several processes that talk seldom.",
    },
    "Look": {
        "ls": "List the files and tensors of a version, or data sets.",
        "annotate": "Add what was found out about a version later.",
        "identify": "Find the versions that introduced a file's state.",
        "verify": "Say who vouches for what was live, or for versions.",
        "stats": "Show what the repository holds and costs.",
        "report": "Draw the history as a page.",
        "pipeline": "Explain pipelines, or choose one.",
        "probe": "Compare two runs of a model layer by layer.",
        "retrain": "Make weights again by their recipe, and store or prove them.",
    },
    "Branches": {
        "switch": "Go to another branch.",
        "branch": "List, make, rename or delete branches.",
        "tag": "List, make or delete tags.",
    },
    "Remotes": {
        "clone": "Make a repository with all that another one has.",
        "remote": "List, add, remove or show other repositories.",
        "fetch": "Bring what is new in a remote.",
        "pull": "Fetch, and move the current branch forward.",
        "push": "Send branches and tags to a remote.",
        "follow": "Keep a file what is live on a target of a remote.",
        "serve": "Serve repositories to others, by https or through ssh.",
    },
    "Storage": {
        "repack": "Choose which versions are stored in full.",
        "gc": "Delete unreachable versions and objects, and free their space.",
        "forget": "Delete the states of versions for good.",
        "fsck": "Check every stored byte.",
        "backup": "Copy the repository, or what is new of it, to a folder.",
        "restore": "Make a repository out of a backup.",
    },
}
"""Commands by section, in the order of ``mvc help --all``, each with its line of help.

``mvc --help`` has the lines of the first section, and of the others the names. A test keeps the
lines equal to the commands' own docstrings.
"""

COMMANDS: dict[str, str] = {
    name: line for section in SECTIONS.values() for name, line in section.items()
}

_ALIASES: dict[str, tuple[str, ...]] = {"rev-parse": ("show", "--id")}
"""Names that scripts use, and what they stand for; help and completion do not have them."""

_ELSEWHERE: dict[str, str] = {
    "add": "'mvc commit PATH' records files at once: nothing is staged before",
    "merge": "versions have one parent: nothing is merged",
    "mv": "rename the file yourself; 'mvc commit -a NEW' records that",
    "rebase": "versions do not change; 'mvc switch -c NAME REV' begins a branch at any of them",
    "reflog": "'mvc undo --list' lists the operations",
    "reset": "'mvc undo' takes back an operation, 'mvc checkout -f HEAD' the changes of files",
    "retract": "'mvc deploy REV TARGET --retract' says that a deployment did not happen",
    "revert": "'mvc checkout REV PATH' and 'mvc commit PATH' record an older state anew",
}
"""What to do instead of a command that people know from git or expect here."""


def module_of(name: str) -> str:
    """The module that defines a command; ``import`` is a word of Python and gets a line."""
    return "mvc.cli.commands." + ("import_" if name == "import" else name.replace("-", "_"))


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Sets what an option that every command has says; the defaults change nothing."""
    session = ctx.ensure_object(Session)
    if not value:
        return
    if param.name == "quiet":
        session.verbosity, session.out.quiet = -1, True
    elif param.name == "color":
        session.out.set_color(value)
    else:
        setattr(session, str(param.name), value)


def _option(*names: str, **settings: Any) -> click.Option:
    return click.Option(names, callback=_remember, expose_value=False, **settings)


def _shared_options(*, hidden: bool) -> list[click.Option]:
    """CommandOptions of the program that every command takes as well."""
    option = partial(_option, hidden=hidden)
    colors = click.Choice(["auto", "always", "never"])
    return [
        option("-q", "--quiet", is_flag=True, help="Say nothing but data, warnings and errors."),
        option(
            "-v", "--verbose", "verbosity", count=True, help="Show more: full ids, every tensor."
        ),
        option("--color", type=colors, help="Colour: on a terminal (auto), always or never."),
        option("-P", "--no-pager", is_flag=True, help="Do not show long output page by page."),
        option("--debug", is_flag=True, help="Show a traceback when something fails."),
    ]


class Verb(click.Command):
    """A command with an example in its help; takes ``-q -v --color --debug`` after its name too.

    With ``json`` it takes ``--json``: one object on stdout, errors included.
    """

    def __init__(self, *args: Any, example: str, json: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        if json:
            self.params.append(
                _option("--json", "as_json", is_flag=True, help="Print one JSON object.")
            )
        self.params.extend(_shared_options(hidden=True))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with augment_usage_errors(ctx):  # click's parser does not name the command
            return super().parse_args(ctx, self._with_counts(args))

    def _with_counts(self, args: list[str]) -> list[str]:
        """``-5`` as ``-n5``, as git has it, where -n takes a number."""
        options = [p for p in self.params if isinstance(p, click.Option)]
        takers = {name for p in options if not (p.is_flag or p.count) for name in p.opts}
        if "-n" not in takers:
            return args
        return [
            f"-n{arg[1:]}" if arg[:1] == "-" and arg[1:].isdecimal() and last not in takers else arg
            for last, arg in pairwise(["", *args])
        ]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Example"):
            formatter.write_text(self.example)


def verb(
    example: str,
    options: type[CommandOptions] | None = None,
    *,
    json: bool = True,
    pages: bool = False,
) -> Callable[[Callable[..., int | None]], Verb]:
    """Makes a command of a function that is given the Session and the values of its options.

    The function returns the exit code, None for 0. The command is called as its module is. Its
    help is its line in ``COMMANDS`` and what the module's docstring says after its own first line.
    With ``pages`` its output goes through a pager.
    """

    def decorate(function: Callable[..., int | None]) -> Verb:
        module = sys.modules[function.__module__]
        name = module.__name__.rpartition(".")[2].rstrip("_").replace("_", "-")
        details = (module.__doc__ or "").partition("\n\n")[2]

        def callback(**values: Any) -> int | None:
            session = click.get_current_context().ensure_object(Session)
            if pages and not (session.as_json or session.no_pager):
                session.out.page()
            if options is None:
                return function(session)
            check_needs(options, values)
            return function(session, options(**values))

        return Verb(
            name, callback=callback, params=parameters(options) if options else [], json=json,
            help=f"{COMMANDS[name]}\n\n{details}".rstrip(), example=example,
        )  # fmt: skip

    return decorate


class Program(click.Group):
    """Finds commands in the table and imports the one that is called."""

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
        if name in _ALIASES:
            command, *given = _ALIASES[name]
            return name, self.named(ctx, command), [*given, *args[1:]]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        return name, self.named(ctx, name), args[1:]

    def named(self, ctx: click.Context, name: str, *topics: str) -> click.Command:
        """The command ``name``. Raises WrongUsage for none, with the nearest command or topic."""
        if name in gone.COMMANDS:
            raise WrongUsage(f"the command {name} is gone: {gone.COMMANDS[name]}")
        if name in _ELSEWHERE:
            raise WrongUsage(f"there is no command {name!r}", hint=_ELSEWHERE[name])
        found = self.get_command(ctx, name)
        if found is None:
            from difflib import get_close_matches

            close = get_close_matches(name, [*COMMANDS, *topics], n=1)
            wish = f": did you mean '{close[0]}'?" if close else ""
            what = "command or topic" if topics else "command"
            raise click.UsageError(f"there is no {what} {name!r}{wish}", ctx)
        return found

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """One screen: daily commands with their lines, the names of the others."""
        (_, daily), *others = SECTIONS.items()
        formatter.write("Usage: mvc [-C DIR] [-q|-v] COMMAND [ARGUMENTS]...\n\n")
        formatter.write(f"{self.help}\n\n")
        formatter.write_dl(list(daily.items()))
        formatter.write_paragraph()
        formatter.write_dl([(section, ", ".join(names)) for section, names in others])
        formatter.write_paragraph()
        formatter.write(_MORE)

    def format_all(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with its line, every global option, examples and exit codes."""
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
        """The sections of ``format_all`` list them."""


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.util import find_spec

    from mvc.version import installed_version

    loops = "numpy" if find_spec("mvc.codecs._kernels") is None else "C"
    click.echo(f"mvc {installed_version()} (loops in {loops})")
    ctx.exit()


_MORE = "'mvc help COMMAND' explains one; 'mvc help --all' lists all, and the topics.\n"
_EXAMPLE = (
    "mvc init",
    'mvc commit model.safetensors -m "nightly" --deploy prod',
    'mvc checkout --at "2 hours ago" --target prod -o live.safetensors',
)


@click.command(
    cls=Program,
    params=[
        *_shared_options(hidden=False),
        click.Option(
            ("-C", "directory"), metavar="DIR", shell_complete=completion("DIR"),
            help="Work as if started in DIR.",
        ),
        click.Option(
            ("-V", "--version"), is_flag=True, is_eager=True, expose_value=False,
            callback=_print_version, help="Show the version and which loops run, and exit.",
        ),
    ],
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.pass_context
def program(ctx: click.Context, directory: str | None) -> None:
    """Git for model weights: every deployed version, exactly, in a small local store."""
    session = ctx.ensure_object(Session)
    ctx.call_on_close(session.close)
    if directory is not None:
        try:
            ctx.with_resource(contextlib.chdir(directory))
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise click.UsageError(f"cannot work in {directory!r}: {reason}", ctx) from error
