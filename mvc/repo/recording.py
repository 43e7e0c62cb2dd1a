"""Which trainings record on which branches, and deploy to which targets, on this machine.

A training holds locks on files of ``.mvc``. The kernel drops a lock when its process ends, however
it ends; the empty file stays and means nothing.
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
"""Longer than the question of another process takes, which holds the lock too."""
_BEGINNING = 2.0  # a process that was ended needs a moment


def announce(store: Store, branch: str | None) -> FileLock:
    """Makes known that a training records on ``branch`` (None: a detached HEAD), until release.

    Raises Busy, which names the process, if another training does; IoFailed if ``.mvc`` cannot be
    written.
    """
    path = _notice(store, branch)
    try:
        return store.fs.lock(path, timeout=_BEGINNING)
    except Busy:
        where = "the detached HEAD" if branch is None else printable(branch)
        raise Busy(
            f"a training records on {where} already: {lock_holder(path)}",
            hint="wait until it has ended, or name another branch: branch='NAME' "
            "('mvc branch NAME' makes one)",
        ) from None


def announce_target(store: Store, target: str, *, alone: bool = False) -> FileLock:
    """Makes known that a training deploys to ``target``, until release. Several may.

    ``alone``: no other one may. Raises Busy where that cannot be.
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
    """See ``Repository.recorder``."""
    fs = store.fs
    path = _notice(store, branch) if target is None else _deploying_notice(store, target)
    try:
        if fs.stat(path) is not None:
            fs.lock(path, timeout=_SECONDS).release()
    except Busy:
        return lock_holder(path)
    except IoFailed:  # it is only a notice
        return None
    return None


def refuse_recorded(store: Store, branch: str | None) -> None:
    """Raises RefConflict if a training records on ``branch``, which would move or go."""
    if recorder(store, branch) is not None:
        raise RefConflict(
            f"a training is recording on {branch or 'the detached HEAD'}",
            hint="wait until it has ended, or stop it",
        )


def _notice(store: Store, branch: str | None) -> Path:
    # A branch's name holds no '%', and is never HEAD.
    return store.folder / f"recording-{(branch or HEAD).replace('/', '%')}"


def _deploying_notice(store: Store, target: str) -> Path:
    return store.folder / f"training-{target.replace('/', '%')}"
