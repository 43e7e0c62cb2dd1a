"""Translates errors of the operating system into errors of mvc (docs/errors.md).

Every message names the path and the cause. FileExistsError is not translated, because callers that
create a file exclusively handle it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from mvc.errors import IoFailed, MvcError, ReadOnly, StorageFull, SyncFailed

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_MANY = frozenset({errno.EMFILE, errno.ENFILE})
_READING = frozenset({"read", "list", "inspect"})

_HINTS = {
    errno.EFBIG: "the file system or 'ulimit -f' allows no larger file",
    errno.EIO: "the disk reports a fault: check the disk before you continue",
    errno.ESTALE: "the network file system lost this file: retry",
    errno.ELOOP: "replace the symbolic link at this path by a file",
    errno.ENOLCK: "this file system has no locks: keep the repository on a local disk",
}


class translate:  # noqa: N801 (named as ``contextlib.suppress`` is)
    """Converts an OSError of the ``with`` block into an error of mvc.

    ``action`` is the verb of the message. It is "read", "list" or "inspect" if the block changes
    nothing, otherwise another verb, such as "write" or "replace".
    """

    # A class, because a generator with @contextmanager would take as long as a file access itself.
    __slots__ = ("_action", "_path")

    def __init__(self, path: Path, action: str) -> None:
        self._path = path
        self._action = action

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None or isinstance(error, FileExistsError):
            return
        if isinstance(error, OSError):
            raise failure(error, self._path, self._action) from error
        if isinstance(error, ValueError):
            # Python refuses names with a zero byte or a lone surrogate. A damaged repository may
            # contain such names.
            why = "a lone surrogate" if isinstance(error, UnicodeEncodeError) else "a zero byte"
            if why == "a lone surrogate" or "\0" in str(self._path):
                text = f"cannot {self._action} {str(self._path)!a}: a name cannot contain {why}"
                raise IoFailed(text) from error


def was_missing(error: MvcError) -> bool:
    """Whether the cause of an error is a missing file."""
    return isinstance(error.__cause__, FileNotFoundError)


def failure(error: OSError, path: Path, action: str) -> IoFailed:
    """The mvc error for a failed attempt to ``action`` the file ``path``."""
    code = error.errno
    if code in _FULL:
        return StorageFull(
            f"no space left to {action} {path} ({_cause(error)})",
            hint="free some space and retry",
        )
    if code == errno.EROFS or (code in _DENIED and action not in _READING):
        return ReadOnly(
            f"cannot {action} {path}: {_cause(error)}",
            hint="check the permissions of the folder, or work on a writable copy",
        )
    if code == errno.ENOENT and action == "read":
        return IoFailed(f"no such file: {path}")
    hint = _HINTS.get(code) if code is not None else None
    if code in _MANY:
        hint = "too many files are open: raise the limit with 'ulimit -n' or close some"
    return IoFailed(f"cannot {action} {path}: {_cause(error)}", hint=hint)


def under_name(error: IoFailed, old: Path, new: Path) -> IoFailed:
    """The same error, whose message has the path ``new`` instead of the temporary path ``old``."""
    return type(error)(error.message.replace(str(old), str(new)), hint=error.hint)


def sync_failure(path: Path, error: OSError | None = None) -> SyncFailed:
    """The error for the failed flush of a file, which ``error`` caused.

    Without ``error``: the error for the use of an open file whose earlier flush has failed.
    """
    if error is None:
        return SyncFailed(
            f"cannot use {path}: an earlier flush to disk failed",
            hint="open the file again: writes since the last flush may be missing",
        )
    full = error.errno in _FULL
    return SyncFailed(
        f"cannot flush {path} to disk: {_cause(error)}",
        hint="free some space and retry" if full else "check the disk, then retry",
    )


def _cause(error: OSError) -> str:
    if error.errno is None:
        return str(error) or type(error).__name__
    return os.strerror(error.errno)
