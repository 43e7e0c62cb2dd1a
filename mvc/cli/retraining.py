"""What a command shows while a version is trained again."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mvc.cli.session import Session

if TYPE_CHECKING:
    from mvc.types import Progress

_SILENT = 5.0  # seconds after which a command that shows no bar says what it waits for


@contextmanager
def training_progress(session: Session) -> Iterator[Progress | None]:
    """A bar for a training; where none can be shown, one line if it takes some seconds."""
    with session.progress("training", counted=True) as bar, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: session.out.note(str(message))
        if bar is not None or session.verbosity < 0:
            yield bar
            return
        due = time.monotonic() + _SILENT

        def tell(_done: int, _total: int, text: str) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = float("inf")
                session.out.note(text)

        yield tell
