"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mvc.cli.completing import complete_revisions, complete_targets
from mvc.cli.session import Session

__all__ = ["moment", "revision", "target_option"]

_F = TypeVar("_F", bound=Callable[..., Any])


def target_option(help_: str, name: str = "--target", metavar: str = "T") -> Callable[[_F], _F]:
    """An option that names a deployment target."""
    return click.option(name, metavar=metavar, help=help_, shell_complete=complete_targets)


def revision(name: str, **settings: Any) -> Callable[[_F], _F]:
    """An argument that names a revision."""
    optional = "default" in settings or not settings.get("required", True)
    metavar = name + ("..." if settings.get("nargs") == -1 else "")
    metavar = f"[{metavar}]" if optional else metavar
    settings = {"shell_complete": complete_revisions} | settings
    return click.argument(name.lower(), metavar=metavar, **settings)


def moment(session: Session, text: str | None) -> int | None:
    """A TIME of the command line in nanoseconds since 1970; None for none."""
    return None if text is None else session.repository.time(text)
