from __future__ import annotations

from collections.abc import Callable

import pytest

from reproduce.cli import main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """``python examples/reproduce`` in this process: its exit code, output and errors."""
    pytest.importorskip("sklearn")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        printed = capsys.readouterr()
        return int(str(ended.value.code)), printed.out, printed.err

    return run
