"""Writes what commands say: data to stdout, everything else to stderr.

Plain text is the same whether coloured or not, so that what is piped is stable.
Only this module writes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from mvc.names import printable

if TYPE_CHECKING:
    from mvc.cli.pager import Pager


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
}


_WIPE = "\r\x1b[2K"  # to the line's beginning, and nothing on it


class Output:
    """``color``: auto (a terminal, and NO_COLOR unset), always or never."""

    def __init__(self, color: str = "auto") -> None:
        self.set_color(color)
        self.quiet = False
        self._pages = False
        self._pager: Pager | None = None
        self._drawn = False

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
    def width(self) -> int | None:
        """Columns that a line may have; None if the output is piped, which is never cut."""
        return max(40, _columns(sys.__stdout__)) if self.terminal else None

    def paint(self, text: str, style: str | None) -> str:
        """``text`` in one of the styles above, if colours are on."""
        return click.style(text, **_STYLES[style]) if style and self.colored and text else text

    def page(self) -> None:
        """Has the lines from here on go through a pager, if stdout is a terminal."""
        self._pages = _is_terminal(sys.stdout)

    def end_page(self) -> None:
        """Waits until the user leaves the pager, if there is one."""
        pager, self._pager, self._pages = self._pager, None, False
        if pager is not None:
            pager.end()

    def _start_pager(self) -> None:
        from mvc.cli.pager import Pager, PagerMissing

        self._pages = False
        try:
            self._pager = Pager.start(os.environ)
        except PagerMissing as missing:
            self.warn(f"there is no pager {printable(str(missing))!r}: this is printed without one")

    def line(self, text: str = "") -> None:
        self.wipe()
        if self._pages:
            self._start_pager()
        if self._pager is None:
            click.echo(text, color=self.colored)
            return
        try:
            click.echo(text, color=self.colored, file=self._pager.stream)
        except BrokenPipeError:  # the user has seen enough
            raise click.exceptions.Exit(0) from None

    def json(
        self,
        schema: str,
        payload: object,
        *,
        incomplete: Sequence[object] = (),
        one_line: bool = False,
    ) -> None:
        """Prints one object, of a mapping or a struct; ``incomplete``: what it lacks is lost.

        On one line where one follows the other.
        """
        from json import dumps

        from mvc.cli.payload import plain

        lost = {"incomplete": True} if incomplete else {}
        self.line(
            dumps({"schema": schema, **plain(payload), **lost}, indent=None if one_line else 2)
        )

    def left_out(self, rows: int) -> None:
        """Says how many rows of a table are not shown, if any."""
        if rows:
            self.line(f"  ... and {rows:,} more (-v lists all)")

    def note(self, text: str) -> None:
        """Prints a line for people, unless quiet."""
        if not self.quiet:
            self._say(text)

    def _say(self, text: str) -> None:
        """Prints on stderr; into the pager if both are the user's terminal."""
        self.wipe()
        if self._pager is not None and _is_terminal(sys.stderr):
            with suppress(BrokenPipeError):
                click.echo(text, color=self._wanted(sys.stderr), file=self._pager.stream)
            return
        click.echo(text, err=True, color=self._wanted(sys.stderr))

    def draw(self, text: str) -> None:
        """Shows a line on the terminal that stderr is, in place of the one drawn before."""
        self._drawn = True
        sys.stderr.write(f"{_WIPE}{text[: _columns(sys.stderr) - 1]}")
        sys.stderr.flush()

    def wipe(self) -> None:
        """Takes away what was drawn; each line that is printed does."""
        if self._drawn:
            self._drawn = False
            sys.stderr.write(_WIPE)
            sys.stderr.flush()

    def warn(self, text: str) -> None:
        """Prints a warning, even when quiet."""
        tag = click.style("warning:", fg="yellow", bold=True)
        self._say(f"mvc: {tag} {text}")

    def problem(self, message: str, hint: str | None) -> None:
        self.wipe()
        lines = [f"{click.style('mvc:', fg='red', bold=True)} {printable(message)}"]
        if hint:
            lines.append(f"{click.style('hint:', fg='cyan')} {printable(hint)}")
        click.echo("\n".join(lines), err=True, color=self._wanted(sys.stderr))


def _columns(stream: Any) -> int:
    """As ``shutil.get_terminal_size``, whose module is slow to import."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (AttributeError, ValueError, OSError):  # closed, or no terminal
        return 80


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # closed, or not a real stream
        return False
