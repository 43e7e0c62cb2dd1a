"""Arguments and options that several commands share, and the completion of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import click

from mvc.cli.session import Session
from mvc.errors import MvcError

__all__ = [
    "complete_branches",
    "complete_revisions",
    "complete_tags",
    "complete_targets",
    "moment",
    "revision",
    "target_option",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_Completion: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(read: Callable[[Session], Iterable[str]]) -> _Completion:
    """Offers the names that begin with what is typed; none where there is no repository."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        session = Session()
        try:
            return sorted(name for name in set(read(session)) if name.startswith(incomplete))
        except (MvcError, OSError):
            return []
        finally:
            session.close()

    return complete


def _branches(session: Session) -> list[str]:
    return [ref.name for ref in session.repository.branches()]


def _tags(session: Session) -> list[str]:
    return [ref.name for ref in session.repository.tags()]


complete_branches = _completing(_branches)
complete_tags = _completing(_tags)
complete_revisions = _completing(lambda s: ["HEAD", *_branches(s), *_tags(s)])
complete_targets = _completing(lambda s: s.repository.targets())


def target_option(help_: str, name: str = "--target", metavar: str = "T") -> Callable[[_F], _F]:
    """An option that names a deployment target."""
    return click.option(name, metavar=metavar, help=help_, shell_complete=complete_targets)


def revision(name: str, **settings: Any) -> Callable[[_F], _F]:
    """An argument that names a revision."""
    optional = "default" in settings or not settings.get("required", True)
    metavar = name + ("..." if settings.get("nargs") == -1 else "")
    metavar = f"[{metavar}]" if optional else metavar
    return click.argument(
        name.lower(), metavar=metavar, shell_complete=complete_revisions, **settings
    )


def moment(session: Session, text: str | None) -> int | None:
    """A TIME of the command line in nanoseconds since 1970; None for none."""
    return None if text is None else session.repository.time(text)
