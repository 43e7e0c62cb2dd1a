"""The entry point ``mvc``: runs the program, and maps each result to an exit code.

The codes are: 0 done, 1 the answer is no, 2 wrong usage, 3 refused or failed, 4 damaged data, 5
repository busy, 130 interrupted, 141 the reader of the output has exited. After a failure, mvc
prints one line and a hint.
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

from mvc.cli.catalog import OPTIONS_ELSEWHERE
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
    """Runs the command line of this process, and exits."""
    sys.exit(_flushed(run(sys.argv[1:])))


def _flushed(code: int) -> int:
    """Flushes stdout. Returns ``code``, or another exit code if the flush fails."""
    if sys.stdout is None:  # closed by the parent process
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
    # Python flushes again at exit, and would print a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and prints its failure, if any. Returns the exit code."""
    _tolerate_any_text()
    instruction = os.environ.get(_COMPLETE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(program, {}, "mvc", complete_var=_COMPLETE, instruction=instruction)
    session = Session()
    try:
        try:
            with _printed_warnings(session):
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
def _printed_warnings(out: Output) -> Iterator[None]:
    """Within the ``with`` block, prints warnings of mvc as lines on stderr."""
    with warnings.catch_warnings():
        print_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, MvcWarning):
                say = out.note if issubclass(category, StillWaiting) else out.warn
                say(str(message))
            else:
                print_other(message, category, *where)

        warnings.simplefilter("always", MvcWarning)
        warnings.simplefilter("default", AmbiguousName)  # once for each name
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
    """Makes the output streams escape characters that the encoding of the terminal lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Failure(Struct, frozen=True):
    """An error as the program prints it. ``kind`` is a stable word for scripts."""

    kind: str
    message: str
    hint: str | None
    exit_code: int


def describe(error: BaseException) -> Failure:
    """The failure that the program prints for an exception."""
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
        "this is a bug in mvc; repeat the command with --debug for details",
        _FAILED,
    )


def _usage(error: click.UsageError) -> Failure:
    path = error.ctx.command_path if error.ctx else "mvc"
    message = " ".join(error.format_message().split()).rstrip(
        "."
    )  # click prints choices on several lines
    command = error.ctx.info_name if error.ctx else None
    option = "TARGET REV" if "unexpected extra argument" in message else ""
    hint = OPTIONS_ELSEWHERE.get(f"{command} {getattr(error, 'option_name', option)}")
    if hint is not None:  # removes click's proposal of a similar option
        message = message.partition(". ")[0]
    if not message[1:2].isupper():  # a message may begin with an argument, such as START
        message = message[:1].lower() + message[1:]
    return Failure("wrong-usage", message, hint or f"see '{path} --help'", _USAGE)


def report(problem: Failure, out: Output, *, as_json: bool) -> int:
    """Prints a line and a hint on stderr, or a JSON object on stdout. Returns the exit code."""
    if as_json:
        try:
            out.json("mvc.error/1", problem)
            return problem.exit_code
        except BrokenPipeError:
            raise
        except OSError:  # stdout itself has failed
            pass
    out.problem(problem.message, problem.hint)
    return problem.exit_code
