"""The options of a command as a struct: a field says name, type, default and help of one option.

click's parameters, and with them help, completion and the tables of the documentation, are made
from the fields; the command gets the values as one typed object. Options that several
commands share are below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource
from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from mvc.repo.config import parse_size


class CommandOptions(Struct, frozen=True, kw_only=True):
    """The options of a command."""


class _Declared(Struct, frozen=True):
    """What click is given for a field, beside its name and its type.

    ``needs``: fields, apart by spaces, of which one must be set if this one is.
    """

    make: type[click.Parameter]
    names: tuple[str, ...]
    settings: Mapping[str, Any]
    needs: str = ""

    def parameter(self, name: str, kind: Any) -> click.Parameter:
        """The parameter ``name`` of click; ``--name`` is added where no long name is given."""
        settings = dict(self.settings)
        of = settings.pop("completes", settings.get("metavar"))
        settings["shell_complete"] = completion(of or "")
        required = True
        if NoneType in get_args(kind):
            kind, required = get_args(kind)[0], False
        if get_origin(kind) is tuple:
            kind, required = get_args(kind)[0], False
            if "nargs" not in settings:
                settings |= {"nargs": -1} if self.make is click.Argument else {"multiple": True}
        if kind is bool:
            settings["is_flag"] = True
        else:
            settings.setdefault("type", _click_type(kind))
        names = self.names
        if self.make is click.Argument:
            settings.setdefault("required", required and "default" not in settings)
        elif not any(each.startswith("--") for each in names):
            names = (*names, "--" + name.replace("_", "-"))
        return self.make((name, *names), **settings)


def completion(name: str) -> Any:
    """What completes a value of this name in the help; what knows how is imported by then."""

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> Any:
        from mvc.cli.completing import completed

        return completed(name, ctx, param, typed)

    return complete


def _click_type(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    return click.Path(path_type=Path) if kind is Path else kind


def argument(metavar: str | None, *, needs: str = "", **settings: Any) -> Any:
    """An argument; a tuple takes several, what may be None or has a default is optional.

    ``completes``: what the shell offers, by its name in ``completing``, if not by ``metavar``.
    """
    return _Declared(click.Argument, (), {"metavar": metavar, **settings}, needs)


def option(metavar: str | None, help_: str, *names: str, needs: str = "", **settings: Any) -> Any:
    """An option with a value; ``completes`` as of an argument."""
    settings = {"metavar": metavar, "help": help_, **settings}
    return _Declared(click.Option, names, settings, needs)


def flag(help_: str, *names: str, needs: str = "", **settings: Any) -> Any:
    """An option that is there or not; with ``count``, how often."""
    return _Declared(click.Option, names, {"help": help_, **settings}, needs)


@cache
def _fields(options: type[CommandOptions]) -> tuple[FieldInfo, ...]:
    return fields(options)  # resolves annotations, which takes long


def parameters(options: type[CommandOptions]) -> list[click.Parameter]:
    """The parameters of click for the fields of ``options``, in their order."""
    return [field.default.parameter(field.name, field.type) for field in _fields(options)]


def check_needs(options: type[CommandOptions], values: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that is set without one of those that it needs."""
    for field in _fields(options):
        needs = field.default.needs.split()
        if needs and _is_set(values[field.name]) and not any(_is_set(values[n]) for n in needs):
            wanted = " or ".join(_spelled(name) for name in needs)
            raise click.UsageError(f"{_spelled(field.name)} goes with {wanted}")


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value != ()


def _spelled(name: str) -> str:
    """How a parameter of the command is typed."""
    named = next(p for p in click.get_current_context().command.params if p.name == name)
    if isinstance(named, click.Option):
        return named.opts[0]
    return re.sub(r"[][.]", "", named.human_readable_name)


def check_alone(mode: str, *, takes: str = "") -> None:
    """Raises UsageError for a parameter that was given beside ``mode``, but for those it takes.

    ``takes``: names apart by spaces. Where ``mode`` names a parameter, it is one of the command.
    """
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if not parameter.expose_value or name in {mode, *takes.split()}:
            continue
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{_spelled(mode)} does not go with {_spelled(name)}")


DRY_RUN = flag("Only say what would be done.", "-n")
FORCE_FILE = flag("Replace FILE if it exists.", "-f")
FORCE_WORK = flag("Overwrite files that hold uncommitted work.", "-f")
AT = option("TIME", "The version that was live at TIME, instead of REV.")
TARGET = option("T", "Where it was live; without --at, what is live there now.")
REMOTE = option("REMOTE", "Work on the repository of this remote.")
LIMIT = option("N", "Stop after N.", "-n", "--max-count", type=click.IntRange(min=0))


def reason(needs: str = "") -> Any:
    """``--reason REASON``, for operations that are evidence."""
    what = "Why: stays on record, as does who."
    return option("REASON", what, "-m", "--reason", needs=needs)


def sign(needs: str = "") -> Any:
    """``--sign``, and ``--no-sign`` where the settings say to."""
    what = "Sign it with your SSH key, or do not, whatever your settings say."
    return flag(what, "--sign/--no-sign", needs=needs, default=None)


def numbers(texts: Iterable[str]) -> dict[str, float]:
    """Metrics as ``K=V`` pairs, each name once."""
    found = {}
    for name, value in pairs(texts, "metric"):
        try:
            found[name] = float(value)
        except ValueError:
            raise click.UsageError(f"metric {name!r} is not a number: {value!r}") from None
    return found


def pairs(texts: Iterable[str], what: str) -> Iterator[tuple[str, str]]:
    """``K=V`` pairs, each name once. Raises UsageError."""
    seen = set()
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"a {what} is NAME=VALUE, not {text!r}")
        if name in seen:
            raise click.UsageError(f"the {what} {name!r} is given twice")
        seen.add(name)
        yield name, value


def nbytes(text: str) -> int:
    """Reads ``40MB``, ``1.5 GiB`` (units of 1000 or of 1024) or ``123456``. Raises UsageError."""
    found = parse_size(text)
    if found is None:
        raise click.UsageError(f"a size is written 40MB, 1.5GiB or 123456, not {text!r}")
    return found
