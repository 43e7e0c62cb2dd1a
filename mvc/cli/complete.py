"""Completion of names from the repository: revisions, branches and targets.

Completion must never fail or print: where there is no repository, there is nothing
to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from mvc.cli.session import Session
from mvc.errors import MvcError

__all__ = ["branches", "revisions", "tags", "targets"]

_Read = Callable[[Session], Iterable[str]]


def _offer(read: _Read, incomplete: str) -> list[str]:
    session = Session()
    try:
        return sorted(name for name in set(read(session)) if name.startswith(incomplete))
    except (MvcError, OSError):
        return []
    finally:
        session.close()


def _branch_names(session: Session) -> list[str]:
    from mvc.repo.lookup import refs as pointers

    return [ref.name for ref in pointers.branches(session.context)]


def _tag_names(session: Session) -> list[str]:
    from mvc.repo.lookup import refs as pointers

    return [ref.name for ref in pointers.tags(session.context)]


def _target_names(session: Session) -> list[str]:
    from mvc.repo.deployments import targets as read

    return read(session.context)


def branches(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Names of branches that begin with ``incomplete``."""
    return _offer(_branch_names, incomplete)


def tags(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Names of tags."""
    return _offer(_tag_names, incomplete)


def revisions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Branches, tags and HEAD."""
    return _offer(lambda s: ["HEAD", *_branch_names(s), *_tag_names(s)], incomplete)


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Deployment targets."""
    return _offer(_target_names, incomplete)
