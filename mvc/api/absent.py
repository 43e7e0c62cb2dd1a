"""States that a rule forgot here, or that were never fetched: another repository may have them.

Every public method goes through here, and no look-up below: a verb that can do without a state,
as a report, fetches none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from mvc.errors import StateForgotten
from mvc.ids import CommitId
from mvc.repo.context import Context

_Class = TypeVar("_Class", bound=type)
_OF_REMOTES = frozenset({"fetch", "pull", "push", "close"})
"""What these lack, no fetch brings."""


def fetching(cls: _Class) -> _Class:
    """The class, whose public methods fetch the states that they need, one version at a time.

    They do from a remote that is ``lazy``. Where there are only others, the error names the way.
    """
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and name[0] != "_" and name not in _OF_REMOTES:
            setattr(cls, name, _fetching(member))
    return cls


def _fetching(function: FunctionType) -> Callable[..., Any]:
    @wraps(function)
    def method(self: Any, /, *args: Any, **named: Any) -> Any:
        fetched = set[bytes]()
        while True:
            try:
                return function(self, *args, **named)
            except StateForgotten as error:
                if error.absent is None or error.absent in fetched:
                    raise
                fetch_absent(self.context, error)
                fetched.add(error.absent)

    return method


def fetch_absent(context: Context, error: StateForgotten) -> None:
    """Fetches the state that a method lacked. Raises the error, with the way, where none is lazy.

    Raises also what ``fetch`` does.
    """
    from mvc.remote.remotes import remotes

    assert error.absent is not None
    version, known = CommitId(error.absent), remotes(context)
    lazy = [remote for remote in known.values() if remote.lazy]
    if lazy:
        from mvc.remote.fetch import fetch

        fetch(context, lazy[0], [version])
    elif way := way_to(context, version):
        further = StateForgotten(error.message, hint=way)
        further.absent = None  # nothing more to add
        raise further from error
    else:
        raise error
