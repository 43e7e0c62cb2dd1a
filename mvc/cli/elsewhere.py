"""``--remote NAME``: a command of maintenance on the repository of a remote."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from mvc.cli.session import Session

if TYPE_CHECKING:
    from mvc.api.repository import Repository


def at_remote(
    session: Session, name: str | None, act: Callable[[], int | None], *, changes: bool
) -> int | None:
    """Runs ``act`` on the repository of a remote, None for the one here; returns its exit code.

    One in a folder is worked on as with ``mvc -C``; behind ssh the same command runs there.
    ``changes``: whether it changes anything.
    """
    if name is None:
        return act()
    remotes = session.repository.remotes
    if (folder := remotes.folder(name)) is not None:
        session.close()
        with contextlib.chdir(folder):
            return act()
    if remotes.find(name).scheme == "ssh":
        return remotes.run(name, _without_remote(session.arguments))

    def on(repository: Repository) -> int | None:
        with session.working_on(repository):
            return act()

    return remotes.maintain(name, on, changes=changes)


def _without_remote(arguments: Sequence[str]) -> list[str]:
    """The command as it was typed, without what came before its name and without ``--remote``."""
    name = click.get_current_context().info_name or ""
    typed = list(arguments[list(arguments).index(name) + 1 :])
    given = iter([name, *typed])
    found = []
    for each in given:
        if each == "--remote":
            next(given, None)
        elif not each.startswith("--remote="):
            found.append(each)
    return found
