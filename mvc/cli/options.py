"""Options that several commands share, and reading their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mvc.cli import complete

if TYPE_CHECKING:
    from mvc.cli.session import Session

__all__ = ["json_option", "metrics", "moment", "revision", "target_option"]

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(function: _F) -> _F:
    """``--json``: one object on stdout, errors included."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def target_option(help_: str) -> Callable[[_F], _F]:
    """``--target T``, completed from the targets of the repository."""
    return click.option("--target", metavar="T", help=help_, shell_complete=complete.targets)


def revision(name: str, **settings: Any) -> Callable[[_F], _F]:
    """An argument that names a revision, completed from branches and tags."""
    optional = "default" in settings or not settings.get("required", True)
    metavar = name + ("..." if settings.get("nargs") == -1 else "")
    metavar = f"[{metavar}]" if optional else metavar
    return click.argument(
        name.lower(), metavar=metavar, shell_complete=complete.revisions, **settings
    )


def moment(session: Session, text: str | None) -> int | None:
    """A TIME of the command line in nanoseconds; None for none."""
    if text is None:
        return None
    from mvc.repo.times import parse_time

    return parse_time(text, now_ns=session.now_ns())


def metrics(pairs: Iterable[str]) -> dict[str, float]:
    """``K=V`` pairs; a later value replaces an earlier one of the same name."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"a metric is NAME=VALUE, not {pair!r}")
        try:
            found[name] = float(value)
        except ValueError:
            raise click.UsageError(f"metric {name!r} is not a number: {value!r}") from None
    return found
