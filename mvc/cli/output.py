"""Writes the output of commands: data to stdout, all other text to stderr.

No other module of the command line writes output. The library rich is imported only to draw a
progress bar.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mvc.cli.tables import Column, fitted, shortened, titled
from mvc.text import cell_width, listed, printable, text_table

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.text import Text

    from mvc.errors import DamagedData
    from mvc.types import Progress


_T = TypeVar("_T")
_STYLES: dict[str, dict[str, Any]] = {
    "id": {"fg": "yellow"},
    "head": {"fg": "cyan", "bold": True},
    "branch": {"fg": "green", "bold": True},
    "tag": {"fg": "yellow", "bold": True},
    "target": {"fg": "magenta", "bold": True},
    "added": {"fg": "green"},
    "removed": {"fg": "red"},
    "changed": {"fg": "yellow"},
    "heading": {"bold": True},
    "dim": {"dim": True},
    "good": {"fg": "green"},
    "bad": {"fg": "red", "bold": True},
    "hint": {"fg": "cyan"},
}
PAGER = "MVC_PAGER"
SOON = 0.5  # seconds before progress is shown
_NAME = 24  # a progress bar shows at most this many characters of an item's name


class Output:
    """The output of one command.

    ``color``: auto (on a terminal, if NO_COLOR is unset), always or never. ``verbosity``: -1 if
    quiet, otherwise the number of options -v. ``incomplete``: the damage that makes the output
    incomplete.
    """

    def __init__(self, color: str = "auto") -> None:
        self.set_color(color)
        self.quiet = False
        self.verbosity = 0
        self.incomplete: list[DamagedData] = []
        self._pages = False
        self._paging = ExitStack()
        self._pager: Any = None
        self._bar: Bar | None = None

    def set_color(self, color: str) -> None:
        self._mode = color
        self.terminal = color == "always" or _is_terminal(sys.stdout)
        self.colored = self._wanted(sys.stdout)

    def _wanted(self, stream: Any) -> bool:
        if self._mode != "auto":
            return self._mode == "always"
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not plain and _is_terminal(stream)

    @property
    def verbose(self) -> bool:
        return self.verbosity > 0

    @property
    def width(self) -> int | None:
        """The columns of the terminal. None for piped output, which is never shortened."""
        if not self.terminal:
            return None
        from shutil import get_terminal_size

        return max(40, get_terminal_size().columns)

    def paint(self, text: str, style: str | None) -> str:
        """``text`` in a style of ``_STYLES`` if colours are on, else unchanged."""
        return click.style(text, **_STYLES[style]) if style and self.colored and text else text

    def few(self, words: Sequence[str], room: int, gap: str = "  ") -> str:
        """As many words as fit in ``room`` columns, and the number of omitted words.

        With -v, or if the output is piped, returns all words.
        """
        text, shown = gap.join(words), min(len(words), room)
        if self.width is None or self.verbose:
            return text
        while shown > 1 and cell_width(click.unstyle(text)) > room:
            shown -= 1
            text = gap.join([*words[:shown], f"+{len(words) - shown:,} more (-v)"])
        plain = click.unstyle(text)
        return text if cell_width(plain) <= room else shortened(plain, room, "middle")

    def folded(self, text: str, indent: str = "  ", prefix: int = 0) -> list[str]:
        """The lines of a text that is folded between words.

        The lines have the width of the terminal minus ``prefix`` columns. Piped output is not
        folded.
        """
        if self.width is None:
            return [text]
        lines = [""]
        for word in re.findall(" *[^ ]+", text):
            line = lines[-1] + word
            fits = cell_width(click.unstyle(line)) <= self.width - prefix
            lines[-1:] = [line] if fits else [lines[-1], indent + word.lstrip()]
        return lines

    def page(self) -> None:
        """If stdout is a terminal, sends the following lines through a pager."""
        self._pages = _is_terminal(sys.stdout)

    def end_page(self) -> None:
        """If a pager runs, waits until the user leaves it."""
        self._pager, self._pages = None, False
        self._paging.close()

    def _start_pager(self) -> None:
        """Starts the pager: ``MVC_PAGER``, else ``PAGER``, else ``less``.

        If the variable is empty, starts no pager.
        """
        import shlex
        from shutil import which

        self._pages = False
        chosen = os.environ.get(PAGER, os.environ.get("PAGER"))
        os.environ["PAGER"] = "less" if chosen is None else chosen
        os.environ.setdefault("LESS", "FRX")
        try:
            words = shlex.split(os.environ["PAGER"])
            if not words or os.environ.get("TERM") == "dumb":
                return
            if which(words[0]) is None:
                raise FileNotFoundError
            self._pager = self._paging.enter_context(click.get_pager_file(color=self.colored))
        except (OSError, ValueError):
            if chosen is not None:
                self.warn(f"the pager {printable(chosen)!r} does not exist; printing without one")

    def line(self, text: str = "") -> None:
        self.wipe()
        if self._pages:
            self._start_pager()
        try:
            click.echo(text, self._pager, color=self.colored)
        except BrokenPipeError:
            if self._pager is None:
                raise
            raise click.exceptions.Exit(0) from None  # the user has left the pager

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    def table(
        self,
        columns: str | Sequence[Column],
        rows: Iterable[Sequence[str]],
        *,
        indent: str = "",
        styles: Sequence[str | None] = (),
        most: int | None = None,
    ) -> None:
        """Prints a heading and the first ``most`` rows. Without rows, prints nothing.

        ``columns``: a list of columns, or a text of titles (``titled``). ``styles``: a style for
        each row, in place of the styles of the columns. Columns that are empty in every row are
        omitted. On a terminal, the table is fitted to the width, except with -v.
        """
        every = [*rows]
        all_columns = titled(columns) if isinstance(columns, str) else columns
        cells = zip(all_columns, *(map(printable, row) for row in every[:most]), strict=True)
        filled = [(column, [column.title, *texts]) for column, *texts in cells if any(texts)]
        shown = filled
        if self.width is not None and not self.verbose:
            shown = fitted(filled, self.width - len(indent))
        heading = any(texts[0] for _, texts in shown)
        of_rows = ["dim" if heading else None, *(styles or [None] * len(every))]

        def painted(row: int, place: int, text: str) -> str:
            return self.paint(text, of_rows[row if heading else row + 1] or shown[place][0].style)

        lines = [*zip(*(texts[not heading :] for _, texts in shown), strict=True)]
        right = [i for i, (column, _) in enumerate(shown) if column.right]
        for line in text_table(lines, right, painted).splitlines():
            self.line(indent + line)
        self.left_out(len(every) - len(every[:most]))
        titles = {column.title for column, _ in shown}
        if omitted := [column.title for column, _ in filled if column.title not in titles]:
            text = f"{indent}not shown: {listed(omitted, 3)} (-v shows all)"
            self.lines(self.paint(line, "dim") for line in self.folded(text, indent))

    def json(self, schema: str, payload: object, *, one_line: bool = False) -> None:
        """Prints one JSON object. ``one_line``: on one line, for a stream of objects."""
        from json import dumps

        from mvc.cli.payload import plain

        lost = {"incomplete": True} if self.incomplete else {}
        self.line(
            dumps({"schema": schema, **plain(payload), **lost}, indent=None if one_line else 2)
        )

    def left_out(self, rows: int) -> None:
        """Prints the number of hidden rows, if any."""
        if rows:
            self.line(f"  ... and {rows:,} more (-v lists all)")

    def note(self, text: str) -> None:
        """Prints a line on stderr. Prints nothing if quiet."""
        if not self.quiet:
            self._say(printable(text))

    def warn(self, text: str) -> None:
        """Prints a warning, even when quiet."""
        self._say(f"mvc: {self._tag('warning:', 'tag')} {printable(text)}")

    def problem(self, message: str, hint: str | None) -> None:
        self._say(f"{self._tag('mvc:', 'bad')} {printable(message)}")
        if hint:
            self._say(f"{self._tag('hint:', 'hint')} {printable(hint)}")

    def _tag(self, word: str, style: str) -> str:
        return click.style(word, **_STYLES[style]) if self._wanted(sys.stderr) else word

    def _say(self, text: str) -> None:
        """Prints on stderr. If a pager runs and stderr is a terminal, prints into the pager."""
        self.wipe()
        pager = self._pager if _is_terminal(sys.stderr) else None
        try:
            click.echo(text, pager, err=True, color=self._wanted(sys.stderr))
        except BrokenPipeError:
            if pager is None:
                raise

    @contextmanager
    def progress(self, verb: str, *, counted: bool = False) -> Iterator[Progress | None]:
        """Draws a progress bar on stderr if the ``with`` block takes longer than ``SOON``.

        Yields a thread-safe callback, or None if the command is quiet or stderr is no terminal. The
        callback counts bytes, or items if ``counted``.
        """
        if self.quiet or not _is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
            yield None
            return
        lock, due = threading.Lock(), time.monotonic() + SOON
        bar: Bar | None = None

        def update(done: int, total: int, item: str) -> None:
            nonlocal bar
            with lock:
                if time.monotonic() < due:
                    return
                bar = bar or _bar(verb, counted=counted, colored=self._wanted(sys.stderr))
                bar.update(
                    bar.task_ids[0],
                    completed=done,
                    total=total or None,
                    what=printable(item)[-_NAME:],
                )
                self._bar = bar
                bar.start()

        try:
            yield update
        finally:
            with lock:
                due = math.inf
            self.wipe()

    def run(
        self,
        verb: str,
        act: Callable[..., _T],
        *arguments: Any,
        counted: bool = False,
        **named: Any,
    ) -> _T:
        """Calls ``act`` with the arguments and the callback of ``progress``. Returns the result."""
        with self.progress(verb, counted=counted) as progress:
            return act(*arguments, progress=progress, **named)

    def wipe(self) -> None:
        """Removes the progress bar. It is called before each printed line."""
        if self._bar is not None:
            self._bar.stop()


def _bar(verb: str, *, counted: bool, colored: bool) -> Bar:
    from rich import progress
    from rich.console import Console

    console = Console(
        stderr=True, force_terminal=True, no_color=not colored, highlight=False,
        color_system="standard" if colored else None,
    )  # fmt: skip

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return progress.TaskProgressColumn.render_speed(task.speed)

    amount = progress.MofNCompleteColumn() if counted else progress.DownloadColumn()
    bar = progress.Progress(
        progress.TextColumn("{task.description} {task.fields[what]}", markup=False),
        progress.BarColumn(30),
        *(amount, Rate() if counted else progress.TransferSpeedColumn()),
        progress.TimeRemainingColumn(),
        console=console, transient=True,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    bar.add_task(verb, total=None, what="")
    return bar


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # closed, or not a real stream
        return False
