"""Fetches absent states, which were forgotten by a retention rule or were never fetched.

The methods of ``Repository`` that read states call ``with_states`` or ``fetch_absent``. Functions
of other packages that read states raise StateForgotten instead. So a method that needs no state,
such as ``history``, fetches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mvc.api import lazy
from mvc.errors import MvcError, RemoteUnreachable, StateForgotten
from mvc.ids import CommitId
from mvc.repo.config import Config
from mvc.repo.lookup import availability
from mvc.store.store import Store

_T = TypeVar("_T")


def with_states(store: Store, config: Config, act: Callable[[], _T]) -> _T:
    """Calls ``act``. If a state is absent, fetches the state and calls ``act`` again.

    Each state is fetched at most once, from a remote with the option ``lazy``. If no remote has
    this option, raises StateForgotten. The hint of this error names the command that fetches the
    state.
    """
    fetched = set[bytes]()
    while True:
        try:
            return act()
        except StateForgotten as error:
            if error.absent is None or error.absent in fetched:
                raise
            fetch_absent(store, config, error)
            fetched.add(error.absent)


def fetch_absent(store: Store, config: Config, error: StateForgotten) -> None:
    """Fetches the state that ``error`` names, from the first remote that is lazy and has the state.

    If all lazy remotes fail, raises the error of the first lazy remote. If no remote is lazy,
    raises StateForgotten again, with a hint that names the command that fetches the state.
    """
    assert error.absent is not None
    version, failed = CommitId(error.absent), list[MvcError]()
    for remote in lazy.remotes.remotes(store).values():
        if remote.lazy:
            try:
                lazy.fetch.fetch_states(store, config, remote, [version])
                return
            except (RemoteUnreachable, StateForgotten) as problem:
                failed.append(problem)
    if failed:
        raise failed[0]
    command = fetch_hint(store, version)
    hint = error.hint if command is None or error.hint != availability.GONE else None
    raise StateForgotten(error.message, hint="; ".join(filter(None, (command, hint))))


def fetch_hint(store: Store, version: CommitId) -> str | None:
    """A hint for the user: the command that fetches the absent state of ``version``.

    None if the repository has no remote, or if the state is stored or purged.
    """
    mark = availability.forgotten(store, version)
    if mark is None or mark.named:
        return None
    known = lazy.remotes.remotes(store)
    name = lazy.remotes.DEFAULT if lazy.remotes.DEFAULT in known else next(iter(known), None)
    return name and f"'mvc fetch {name} {version.short}' fetches the state, if {name} has it"
