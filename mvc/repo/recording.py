"""Says on which branches a training is recording, in any process of this machine.

A Recorder holds a shared lock on a file of ``.mvc`` for its branch. The kernel drops the lock when
the process ends, however it ends; the empty file stays and means nothing.
"""

from __future__ import annotations

from pathlib import Path

from mvc.errors import Busy, IoFailed, RefConflict
from mvc.io.files import FileLock
from mvc.repo.context import Context
from mvc.repo.lookup.refs import HEAD

_SECONDS = 0.05
"""Longer than somebody else's question takes, which holds the lock too."""


def announce(context: Context, branch: str | None) -> FileLock:
    """Makes known that a training records on ``branch`` (None: a detached HEAD), until release.

    Several trainings may record on one branch. Raises IoFailed if ``.mvc`` cannot be written.
    """
    return context.store.fs.lock(_notice(context, branch), shared=True)


def is_recording(context: Context, branch: str | None) -> bool:
    """Whether a training records on ``branch`` now; None means a detached HEAD."""
    fs, path = context.store.fs, _notice(context, branch)
    try:
        if fs.stat(path) is not None:
            fs.lock(path, timeout=_SECONDS).release()
    except Busy:
        return True
    except IoFailed:  # it is only a notice
        return False
    return False


def refuse_recorded(context: Context, branch: str) -> None:
    """Raises RefConflict if a training records on ``branch``, which would move or go."""
    if is_recording(context, branch):
        raise RefConflict(
            f"a training is recording on {branch}", hint="wait until it has ended, or stop it"
        )


def _notice(context: Context, branch: str | None) -> Path:
    # A branch's name holds no '%', and is never HEAD.
    return context.store.folder / f"recording-{(branch or HEAD).replace('/', '%')}"
