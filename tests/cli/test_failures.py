from __future__ import annotations

import errno

import click
import pytest

from mvc import errors
from mvc.cli.main import describe, report
from mvc.cli.output import Output


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (errors.UnknownRevision("no such"), "unknown-revision", 3),
        (errors.NothingToCommit("no"), "nothing-to-commit", 1),
        (errors.DamagedData("bad"), "damaged-data", 4),
        (errors.Busy("later"), "busy", 5),
        (errors.WrongUsage("no"), "wrong-usage", 2),
        (click.UsageError("No such option: --x."), "wrong-usage", 2),
        (KeyboardInterrupt(), "interrupted", 130),
        (click.Abort(), "interrupted", 130),
        (MemoryError(), "out-of-memory", 3),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "io-failed", 3),
        (ZeroDivisionError("division by zero"), "internal-error", 3),
    ],
)
def test_kinds_and_codes(error: BaseException, kind: str, code: int) -> None:
    failure = describe(error)
    assert (failure.kind, failure.exit_code) == (kind, code)
    assert "\n" not in failure.message


def test_full_disk_says_where_and_what_to_do() -> None:
    failure = describe(OSError(errno.ENOSPC, "No space left on device", "/x/y"))
    assert failure.message == "no space left on device (/x/y)"
    assert "free" in (failure.hint or "")


def test_internal_errors_point_to_debug() -> None:
    failure = describe(ZeroDivisionError("division by zero"))
    assert failure.message == "internal error: ZeroDivisionError: division by zero"
    assert "--debug" in (failure.hint or "")


def test_report(capsys) -> None:
    failure = describe(errors.UnknownRevision("no version 'x'", hint="see 'mvc log'"))
    report(failure, Output("never"), as_json=False)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "mvc: no version 'x'\nhint: see 'mvc log'\n"


def test_messages_are_printable(capsys) -> None:
    report(describe(errors.UnknownPath("no \x1b[31m\nfile")), Output("never"), as_json=False)
    assert capsys.readouterr().err == "mvc: no \\x1b[31m\\nfile\n"
