"""Declares the commands of ``mvc``. A command has a struct of its options, and a function to run.

A field of the struct defines name, type, default and help of one option. The parameters of click,
the help, the completion and the reference pages are derived from the fields. The function receives
the values of the options as an instance of the struct.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NewType, get_args, get_origin

import click
import msgspec
from click.core import ParameterSource, augment_usage_errors
from msgspec import Struct
from msgspec.structs import FieldInfo

from mvc.cli.catalog import COMMANDS
from mvc.cli.payload import fields
from mvc.cli.session import Session
from mvc.text import parse_size

__all__ = [
    "AT",
    "DRY_RUN",
    "FORCE_FILE",
    "FORCE_WORK",
    "LIMIT",
    "REMOTE",
    "TARGET",
    "CommandOptions",
    "Option",
    "PathText",
    "Session",
    "Verb",
    "argument",
    "check_alone",
    "completion",
    "fields",
    "flag",
    "nbytes",
    "option",
    "reason",
    "shared_options",
    "sign",
    "verb",
]


PathText = NewType("PathText", str)
"""A path or a name, exactly as typed. The shell completes files."""
_PATHS: dict[Any, Any] = {PathText: str, Path: Path}


class CommandOptions(Struct, frozen=True, kw_only=True):
    """The options of a command."""


class _Declared(Struct, frozen=True):
    """The settings of click for a field, except its name and type.

    ``needs``: names of fields, separated by spaces. If this field is set, one of these fields must
    be set, too. ``allows``: names of fields, separated by spaces. If this field is set, no fields
    except these may be set. If ``allows`` is None, all fields may be set.
    """

    make: type[click.Parameter]
    names: tuple[str, ...]
    settings: Mapping[str, Any]
    needs: str = ""
    allows: str | None = None

    def parameter(self, name: str, kind: Any) -> click.Parameter:
        """The parameter ``name`` of click. Its long option is ``--name`` by default."""
        settings = dict(self.settings)
        completes = settings.pop("completes", settings.get("metavar"))
        settings["shell_complete"] = completion(completes or "")
        required = True
        if NoneType in get_args(kind):
            kind, required = get_args(kind)[0], False
        if get_origin(kind) is tuple:
            kind, required = get_args(kind)[0], False
            if "nargs" not in settings:
                settings |= {"nargs": -1} if self.make is click.Argument else {"multiple": True}
        if get_origin(kind) is dict:
            settings |= {"multiple": True, "callback": partial(_pairs, get_args(kind)[1])}
        elif kind is bool:
            settings["is_flag"] = True
        else:
            settings.setdefault("type", _click_type(kind))
        names = self.names
        if self.make is click.Argument:
            settings.setdefault("required", required and "default" not in settings)
        elif not any(option_name.startswith("--") for option_name in names):
            names = (*names, "--" + name.replace("_", "-"))
        return self.make((name, *names), **settings)


class Option(click.Option):
    """An option with one line of help.

    ``click.Option`` would import the module ``inspect``, which is slow.
    """

    def __init__(self, names: Sequence[str], *, help: str, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.help = help


def completion(name: str) -> Any:
    """Returns a function that completes the values of a parameter in the shell.

    ``name``: the name of the parameter in the help, such as ``REV``.
    """

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> Any:
        from mvc.cli.completing import completed

        return completed(name, ctx, param, typed)

    return complete


class _PathName(click.Path):
    """The type of a path. Refuses the empty string, which ``Path`` reads as the current folder."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            raise click.UsageError("a path is empty; use '.' for the current folder", ctx)
        return super().convert(value, param, ctx)


def _click_type(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    return _PathName(path_type=_PATHS[kind]) if kind in _PATHS else kind


def argument(
    metavar: str | None, *, needs: str = "", allows: str | None = None, **settings: Any
) -> Any:
    """Declares an argument.

    If the type is a tuple, several values are accepted. If the type permits None, or there is a
    default, the argument is optional. ``completes``: the name by which ``completing`` finds the
    possible values, by default ``metavar``.
    """
    return _Declared(click.Argument, (), {"metavar": metavar, **settings}, needs, allows=allows)


def option(
    metavar: str | None,
    help_: str,
    *names: str,
    needs: str = "",
    allows: str | None = None,
    **settings: Any,
) -> Any:
    """Declares an option with a value. ``completes``: as in ``argument``."""
    return _Declared(
        Option, names, {"metavar": metavar, "help": help_, **settings}, needs, allows=allows
    )


def flag(
    help_: str, *names: str, needs: str = "", allows: str | None = None, **settings: Any
) -> Any:
    """Declares an option without a value."""
    return option(None, help_, *names, needs=needs, allows=allows, **settings)


@cache
def _fields(options: type[CommandOptions]) -> tuple[FieldInfo, ...]:
    return msgspec.structs.fields(options)  # cached, because this is slow


def parameters(options: type[CommandOptions]) -> list[click.Parameter]:
    """The parameters of click for the fields of ``options``, in order."""
    return [field.default.parameter(field.name, field.type) for field in _fields(options)]


def check_together(options: type[CommandOptions], values: Mapping[str, Any]) -> None:
    """Raises UsageError if a needed option is missing, or if two options exclude each other."""
    for field in _fields(options):
        if not _is_set(values[field.name]):
            continue
        if field.default.allows is not None:
            check_alone(field.name, allows=field.default.allows)
        needs = field.default.needs.split()
        if needs and not any(_is_set(values[n]) for n in needs):
            raise click.UsageError(
                f"{_spelled(field.name)} needs {' or '.join(_spelled(name) for name in needs)}"
            )


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value not in ((), {})


def _spelled(name: str) -> str:
    """A parameter as the user types it."""
    named = next(p for p in click.get_current_context().command.params if p.name == name)
    if isinstance(named, click.Option):
        return named.opts[0]
    return re.sub(r"[][.]", "", named.human_readable_name)


def check_alone(mode: str, *, allows: str = "") -> None:
    """Raises UsageError if a parameter that is not in ``allows`` was set together with ``mode``.

    ``allows``: names, separated by spaces. ``mode``: the name of a parameter of the command.
    """
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if not parameter.expose_value or name in {mode, *allows.split()}:
            continue
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{_spelled(mode)} cannot be combined with {_spelled(name)}")


DRY_RUN = flag("Only print the plan.", "-n")
FORCE_FILE = flag("Replace FILE if it exists.", "-f")
FORCE_WORK = flag("Overwrite uncommitted work.", "-f")
AT = option("TIME", "In place of REV, select the version that was live at TIME.")
TARGET = option("T", "The target for --at. Without --at: select the version that is live on T now.")
REMOTE = option("REMOTE", "Run on the repository of this remote.")
LIMIT = option("N", "Print at most N versions.", "-n", "--max-count", type=click.IntRange(min=0))


def reason(needs: str = "") -> Any:
    """Declares ``--reason REASON``."""
    return option("REASON", "The reason, recorded with the author.", "-m", "--reason", needs=needs)


def sign(needs: str = "") -> Any:
    """Declares ``--sign`` and ``--no-sign``, which override the settings."""
    return flag(
        "Sign, or do not sign, with your SSH key. Overrides the settings.",
        "--sign/--no-sign",
        needs=needs,
        default=None,
    )


def _pairs(
    kind: type[float] | type[str], _: click.Context, param: click.Parameter, texts: Sequence[str]
) -> dict[str, Any]:
    """Reads ``K=V`` pairs. Raises UsageError for an invalid pair or a repeated name."""
    noun, pairs = param.opts[-1].lstrip("-"), dict[str, Any]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--{noun} needs NAME=VALUE, not {text!r}")
        if name in pairs:
            raise click.UsageError(f"the {noun} {name!r} is set twice")
        try:
            pairs[name] = kind(value)
        except ValueError:
            raise click.UsageError(f"{noun} {name!r} is not a number: {value!r}") from None
    return pairs


def nbytes(text: str) -> int:
    """Reads ``40MB``, ``1.5 GiB`` (units of 1000 or of 1024) or ``123456``. Raises UsageError."""
    size = parse_size(text)
    if size is None:
        raise click.UsageError(f"{text!r} is not a size; write 40MB, 1.5GiB or 123456")
    return size


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Stores a shared option in the session. The default value changes nothing."""
    session = ctx.ensure_object(Session)
    if not value:
        return
    if param.name == "quiet":
        session.verbosity, session.quiet = -1, True
    elif param.name == "color":
        session.set_color(value)
    else:
        setattr(session, str(param.name), value)


def _option(*names: str, **settings: Any) -> click.Option:
    return Option(names, callback=_remember, expose_value=False, **settings)


def shared_options(*, hidden: bool) -> list[click.Option]:
    """The options that the program and every command accept."""
    option = partial(_option, hidden=hidden)
    return [
        option("-q", "--quiet", is_flag=True, help="Print only data, warnings and errors."),
        option(
            "-v", "--verbose", "verbosity", count=True, help="Print more: full ids, every tensor."
        ),
        option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            help="Colours: on a terminal (auto), always or never.",
        ),
        option("-P", "--no-pager", is_flag=True, help="Print long output without a pager."),
        option("--debug", is_flag=True, help="Print a traceback after a failure."),
    ]


class Verb(click.Command):
    """A command with an example in its help, and with the shared options.

    ``json``: adds ``--json``, which prints one object on stdout, even for an error.
    """

    def __init__(self, *args: Any, example: str, json: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        if json:
            self.params.append(
                _option("--json", "as_json", is_flag=True, help="Print one JSON object.")
            )
        self.params.extend(shared_options(hidden=True))
        click.help_option("-h", "--help", cls=Option)(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with augment_usage_errors(ctx):  # errors then name the command
            return super().parse_args(ctx, self._with_counts(args))

    def _with_counts(self, args: list[str]) -> list[str]:
        """If the command has -n NUMBER, replaces ``-5`` by ``-n5``, as git does."""
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
    options: type[CommandOptions],
    *,
    json: bool = True,
    pages: bool = False,
) -> Callable[[Callable[..., int | None]], Verb]:
    """Turns a function into a command. The arguments of the function: session and option values.

    The function returns the exit code, or None for 0. The command has the name of the module. The
    help of the command is its line in ``COMMANDS``, followed by the docstring of the module without
    the first line. ``pages``: output goes through a pager.
    """

    def decorate(function: Callable[..., int | None]) -> Verb:
        module = sys.modules[function.__module__]
        name = module.__name__.rpartition(".")[2].rstrip("_").replace("_", "-")
        details = (module.__doc__ or "").partition("\n\n")[2]

        def callback(**values: Any) -> int:
            session = click.get_current_context().ensure_object(Session)
            if pages and not (session.as_json or session.no_pager):
                session.page()
            check_together(options, values)
            return session.exit_code(function(session, options(**values)))

        return Verb(
            name, callback=callback, params=parameters(options), json=json,
            help=f"{COMMANDS[name]}\n\n{details}".rstrip(), example=example,
            add_help_option=False,
        )  # fmt: skip

    return decorate
