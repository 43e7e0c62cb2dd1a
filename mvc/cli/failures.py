"""Every way a command can fail, as one line, a hint and an exit code.

0 done, 1 the answer is no, 2 wrong usage, 3 refused or failed, 4 damaged data,
5 busy, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

import click

from mvc.cli.output import Output
from mvc.errors import MvcError

__all__ = ["BROKEN_PIPE", "INTERRUPTED", "Failure", "describe", "report"]

INTERRUPTED = 130
BROKEN_PIPE = 141
_USAGE = 2
_FAILED = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """What is said of an error; ``kind`` is a stable word for programs."""

    kind: str
    message: str
    hint: str | None
    exit_code: int


def describe(error: BaseException) -> Failure:
    """What to say of any exception that ends a command."""
    if isinstance(error, MvcError):
        return Failure(error.kind, error.message, error.hint, error.exit_code)
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, click.ClickException):
        return Failure("failed", error.format_message(), None, _FAILED)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Failure("interrupted", "interrupted", None, INTERRUPTED)
    if isinstance(error, OSError):
        return _system(error)
    if isinstance(error, MemoryError):
        return Failure("out-of-memory", "not enough memory", "close other programs", _FAILED)
    return Failure(
        "internal-error",
        f"internal error: {type(error).__name__}: {error}",
        "this is a bug in mvc; run the command again with --debug for the details",
        _FAILED,
    )


def _usage(error: click.UsageError) -> Failure:
    path = error.ctx.command_path if error.ctx else "mvc"
    message = error.format_message()
    message = message[:1].lower() + message[1:].rstrip(".")
    return Failure("wrong-usage", message, f"see '{path} --help'", _USAGE)


def _system(error: OSError) -> Failure:
    """An operating-system error that the library did not translate."""
    where = f" ({error.filename})" if error.filename else ""
    reason = (error.strerror or str(error)).lower()
    hint = None
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        hint = "free some space and try again"
    elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        hint = "check who may write there"
    return Failure("io-failed", f"{reason}{where}", hint, _FAILED)


def report(failure: Failure, out: Output, *, as_json: bool) -> None:
    """One line and a hint on stderr, or with ``--json`` one object on stdout."""
    if as_json:
        payload = {
            "kind": failure.kind,
            "message": failure.message,
            "hint": failure.hint,
            "exit_code": failure.exit_code,
        }
        try:
            out.json("mvc.error/1", payload)
            return
        except BrokenPipeError:
            raise
        except OSError:  # stdout itself is what failed
            pass
    out.problem(failure.message, failure.hint)
