"""States that a rule forgot here, or that were never fetched: another repository may have them.

Methods that read states go through ``with_states``, and no look-up below it: a verb that can do
without a state, as a report, fetches none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mvc.errors import MvcError, RemoteUnreachable, StateForgotten
from mvc.ids import CommitId
from mvc.repo.config import Config
from mvc.repo.lookup import availability
from mvc.store.store import Store

_T = TypeVar("_T")


def with_states(store: Store, config: Config, act: Callable[[], _T]) -> _T:
    """What ``act`` returns; it runs again with each state that it lacked and that was fetched.

    States come from a remote that is ``lazy``. Where there are only others, the error names the
    command that fetches.
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
    """Fetches the state that a method lacked, from the first lazy remote that has it.

    Raises what the first of them does, and without one the error, with the command that fetches.
    """
    from mvc.remote.remotes import remotes  # as below: only where a state is absent

    assert error.absent is not None
    version, failed = CommitId(error.absent), list[MvcError]()
    for remote in remotes(store).values():
        if remote.lazy:
            from mvc.remote.fetch import fetch_states

            try:
                fetch_states(store, config, remote, [version])
                return
            except (RemoteUnreachable, StateForgotten) as problem:
                failed.append(problem)
    if failed:
        raise failed[0]
    way = way_to(store, version)
    others = error.hint if way is None or error.hint != availability.GONE else None
    raise StateForgotten(error.message, hint="; ".join(filter(None, (way, others))))


def way_to(store: Store, version: CommitId) -> str | None:
    """What brings a state that is not here, as a sentence; None if no remote can have it.

    None also for a state that is here, and for one that was forgotten by name.
    """
    mark = availability.forgotten(store, version)
    if mark is None or mark.named:
        return None
    from mvc.remote.remotes import DEFAULT, remotes

    known = remotes(store)
    name = DEFAULT if DEFAULT in known else next(iter(known), None)
    return name and f"'mvc fetch {name} {version.short}' brings it, if {name} has it"
