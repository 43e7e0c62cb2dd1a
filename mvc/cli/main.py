"""The entry point ``mvc``: runs the program and turns every ending into an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from mvc.cli.failures import BROKEN_PIPE, describe, report
from mvc.cli.output import Output
from mvc.cli.program import program
from mvc.cli.session import Session

__all__ = ["main", "run"]

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
        code = BROKEN_PIPE
    except OSError as error:
        if code == 0:
            failure = describe(error)
            report(failure, Output(), as_json=False)
            code = failure.exit_code
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

        return shell_complete(program, {}, "mvc", _COMPLETE, instruction)
    try:
        return _run(arguments)
    except BrokenPipeError:
        return BROKEN_PIPE


def _run(arguments: Sequence[str]) -> int:
    session = Session()
    try:
        return _invoke(arguments, session)
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if session.debug or "--debug" in arguments:
            import traceback

            traceback.print_exc()
        failure = describe(error)
        report(failure, session.out, as_json="--json" in arguments)
        return failure.exit_code


def _invoke(arguments: Sequence[str], session: Session) -> int:
    if not arguments:
        arguments = ["--help"]
    try:
        with program.make_context("mvc", list(arguments), obj=session) as ctx:
            program.invoke(ctx)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    return 0


def _tolerate_any_text() -> None:
    """Names may hold characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
