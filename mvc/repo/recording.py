"""Shows other processes that a training commits to a branch and deploys to a target.

A training locks a file in ``.mvc`` for its branch, and a file for its target. The kernel releases a
lock when the process ends. A file that is not locked has no meaning.
"""

from __future__ import annotations

from pathlib import Path

from mvc.errors import Busy, IoFailed, RefConflict
from mvc.io.files import FileLock
from mvc.io.lock_holder import lock_holder
from mvc.names import printable
from mvc.repo.lookup.refs import HEAD
from mvc.store.store import Store

_SECONDS = 0.05
"""The timeout of ``recorder``, longer than a call of ``recorder`` in another process takes."""
_BEGINNING = 2.0  # seconds to wait for a lock, because a killed process needs time to end


def announce(store: Store, branch: str | None) -> FileLock:
    """Shows that a training commits to ``branch``, until the returned lock is released.

    ``branch``: None means a detached HEAD. Raises Busy if another training records on the branch;
    the message names the process of that training. Raises IoFailed if ``.mvc`` is not writable.
    """
    path = _notice(store, branch)
    try:
        return store.fs.lock(path, timeout=_BEGINNING)
    except Busy:
        where = "the detached HEAD" if branch is None else printable(branch)
        raise Busy(
            f"a training records on {where} already: {lock_holder(path)}",
            hint="wait until it has ended, or name another branch with branch='NAME' "
            "(create it with 'mvc branch NAME')",
        ) from None


def announce_target(store: Store, target: str, *, alone: bool = False) -> FileLock:
    """Shows that a training deploys to ``target``, until the returned lock is released.

    Several trainings may deploy to a target, unless one of the trainings has set ``alone``. Then
    this function raises Busy.
    """
    notice = _deploying_notice(store, target)
    try:
        return store.fs.lock(notice, shared=not alone, timeout=_BEGINNING)
    except Busy:
        raise Busy(
            f"another training deploys to {printable(target)} in this repository",
            hint="wait until it has ended, or name another target",
        ) from None


def recorder(store: Store, branch: str | None, target: str | None = None) -> str | None:
    """Describes the process whose training commits to ``branch`` or deploys to ``target``.

    Returns None if there is no such training.
    """
    fs = store.fs
    path = _notice(store, branch) if target is None else _deploying_notice(store, target)
    try:
        if fs.stat(path) is not None:
            fs.lock(path, timeout=_SECONDS).release()
    except Busy:
        return lock_holder(path)
    except IoFailed:  # the file cannot be locked: assume that no training runs
        return None
    return None


def refuse_recorded(store: Store, branch: str | None) -> None:
    """Raises RefConflict if a training commits to ``branch``. Call it before moving the branch."""
    if recorder(store, branch) is not None:
        raise RefConflict(
            f"a training is recording on {branch or 'the detached HEAD'}",
            hint="wait until it has ended, or stop it",
        )


def _notice(store: Store, branch: str | None) -> Path:
    # The file's name is unique, because a branch's name contains no '%' and is never HEAD.
    return store.folder / f"recording-{(branch or HEAD).replace('/', '%')}"


def _deploying_notice(store: Store, target: str) -> Path:
    return store.folder / f"training-{target.replace('/', '%')}"
