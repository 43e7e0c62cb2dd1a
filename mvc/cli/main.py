"""The entry point ``mvc``: runs the program; turns every ending into an exit code.

0 done, 1 the answer is no, 2 wrong usage, 3 refused or failed, 4 damaged data,
5 busy, 130 interrupted, 141 nobody reads the output any more. A failure is one line and a hint.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from msgspec import Struct

from mvc.cli.catalog import instead_of
from mvc.cli.output import Output
from mvc.cli.program import program
from mvc.cli.session import Session
from mvc.errors import AmbiguousName, MvcError, MvcWarning
from mvc.system import StillWaiting, failure

_USAGE = 2
_FAILED = 3
_INTERRUPTED = 130
_BROKEN_PIPE = 141

_COMPLETE = "_MVC_COMPLETE"


def main() -> NoReturn:
    """Runs with the process's own arguments and exits."""
    sys.exit(_flushed(run(sys.argv[1:])))


def _flushed(code: int) -> int:
    """Writes out what stdout holds back; what cannot be written changes the exit code."""
    if sys.stdout is None:  # closed by whoever started the program
        return code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _BROKEN_PIPE
    except OSError as error:
        if code == 0:
            code = report(describe(error), Output(), as_json=False)
    else:
        return code
    # Python flushes once more at exit; that would fail again, and loudly.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit code, having said why it failed."""
    _tolerate_any_text()
    instruction = os.environ.get(_COMPLETE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(program, {}, "mvc", complete_var=_COMPLETE, instruction=instruction)
    session = Session()
    try:
        try:
            with _saying_what_it_waits_for(session):
                return _invoke(arguments, session)
        except BrokenPipeError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if session.debug or "--debug" in arguments:
                import traceback

                traceback.print_exc()
            return report(describe(error), session, as_json="--json" in arguments)
    except BrokenPipeError:
        return _BROKEN_PIPE


@contextmanager
def _saying_what_it_waits_for(out: Output) -> Iterator[None]:
    """Warnings of waits become lines of the program."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, MvcWarning):
                say = out.note if issubclass(category, StillWaiting) else out.warn
                say(str(message))
            else:
                others(message, category, *where)

        warnings.simplefilter("always", MvcWarning)
        warnings.simplefilter("default", AmbiguousName)  # once, of each name
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _invoke(arguments: Sequence[str], session: Session) -> int:
    if not arguments:
        arguments = ["--help"]
    session.arguments = arguments
    try:
        with program.make_context("mvc", list(arguments), obj=session) as ctx:
            return program.invoke(ctx) or 0
    except click.exceptions.Exit as ending:
        return ending.exit_code


def _tolerate_any_text() -> None:
    """Escapes the characters of names that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Failure(Struct, frozen=True):
    """What the program says of an error; ``kind`` is a stable word for programs."""

    kind: str
    message: str
    hint: str | None
    exit_code: int


def describe(error: BaseException) -> Failure:
    """The failure that an exception which ends a command stands for."""
    if isinstance(error, MvcError):
        return Failure(error.kind, error.message, error.hint, error.exit_code)
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, click.ClickException):
        return Failure("failed", error.format_message(), None, _FAILED)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Failure("interrupted", "interrupted", None, _INTERRUPTED)
    if isinstance(error, OSError):
        return describe(failure(error, Path(error.filename or "the output"), "use"))
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
    message = " ".join(error.format_message().split()).rstrip(".")  # click lists choices in lines
    command = error.ctx.info_name if error.ctx else None
    if isinstance(error, click.NoSuchOption) and instead_of(command, error.option_name):
        message = f"{error.option_name} is gone: {instead_of(command, error.option_name)}"
    if not message[1:2].isupper():  # START is a name
        message = message[:1].lower() + message[1:]
    return Failure("wrong-usage", message, f"see '{path} --help'", _USAGE)


def report(found: Failure, out: Output, *, as_json: bool) -> int:
    """Prints a line and a hint on stderr, or one object on stdout; returns the exit code."""
    if as_json:
        try:
            out.json("mvc.error/1", found)
            return found.exit_code
        except BrokenPipeError:
            raise
        except OSError:  # stdout itself is what failed
            pass
    out.problem(found.message, found.hint)
    return found.exit_code
