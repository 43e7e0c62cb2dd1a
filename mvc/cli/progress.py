"""A progress bar on stderr for long work, drawn by rich only where a terminal shows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.repo.context import Progress

__all__ = ["bar"]


@contextmanager
def bar(verb: str, *, wanted: bool, counted: bool = False) -> Iterator[Progress | None]:
    """Yields a callback ``(done, total, what)``, or None where nothing is shown.

    In bytes, or ``counted``: in whatever ``what`` says.
    """
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    # rich takes 40 ms to import; a pipe never pays for it.
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.markup import escape

    amount: list[rich_progress.ProgressColumn] = (
        [rich_progress.MofNCompleteColumn()]
        if counted
        else [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
    )
    display = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(bar_width=30),
        *amount,
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with display:
        task = display.add_task(verb, total=None)

        def callback(done: int, total: int, what: str) -> None:
            name = printable(what)
            short = name if len(name) <= 24 else "…" + name[-23:]
            display.update(
                task, completed=done, total=total or None, description=escape(f"{verb} {short}")
            )

        yield callback
