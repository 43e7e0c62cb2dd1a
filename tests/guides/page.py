"""Runs a page of the documentation as a reader would, and compares what it prints.

Blocks of ``python`` share one namespace, also those in comments that begin with ``<!-- python``:
they make what the page leaves to its reader. ``<!-- run by tests/FILE.py -->`` above a block that
cannot run by itself names the test that does what it shows. A block that begins with ``$`` is a
terminal: each line with ``$`` is a command, and the lines below it are what it prints. A block
without a language after one of ``python`` is what that printed. All run in one folder, from top to
bottom.

The comment ``<!-- clock: 2026-11-02T09:00:00Z -->`` sets the clock that mvc sees. From then on it
stands still, but for ``time.sleep`` in the page's own code, which sets it forward at once.

Ids differ from run to run, so an id of the page stands for the one that is printed in its place,
also in later commands, ``/home/ada/models`` stands for the folder, and the account
``ada`` for this process's. Numbers with a fraction or
a unit may differ by a quarter, because they depend on versions of libraries and on the processor;
times in seconds are not compared. After the comment ``<!-- about -->`` this holds for all numbers
of the next block: how often a delta saves enough depends on the bits of the weights.
"""

from __future__ import annotations

import inspect
import io
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest

from mvc.cli.main import run
from mvc.io.clock import Clock
from mvc.io.process import user_name
from mvc.times import parse_time

_FENCE = re.compile(
    r"^(?:<!-- (about|run by \S+) -->\n\n)?```(\w*)\n(.*?)^```$"
    r"|^<!-- clock: (\S+) -->$|^<!-- python\n(.*?)^-->$",
    re.M | re.S,
)
_TOKEN = re.compile(
    r"\b[0-9a-f]{10}(?:[0-9a-f]{54})?\b"  # an id
    r"|\d[\d,]*(?:\.\d+)?\ (?:[kMG]?B|bytes|%|m?s)(?!\w)"  # a quantity
    r"|(?<![\d:.])\d+\.\d+(?![\d:.])"  # a fraction
    r"|\d+|[^\W\d]+|[^\w\s]",
    re.X,
)
_ID = re.compile(r"[0-9a-f]{10}(?:[0-9a-f]{54})?")
_SECONDS = re.compile(r"\d[\d,]*(?:\.\d+)? m?s")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)? (?P<unit>[kMG]?B|bytes|%)|\d+\.\d+(?P<bare>)")
_FOLDER = "/home/ada/models"
PROJECT = Path(__file__).parents[2]
_ANY = re.compile(rf"{_NUMBER.pattern}|\d+")
_SIZES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclass
class Page:
    """A page being run in the working folder."""

    path: Path
    clock_ns: int = 0
    ids: dict[str, str] = field(default_factory=dict)
    """By the id that the page has: the one of this run."""
    _about: bool = False

    def run(self) -> None:
        names: dict[str, object] = {"__name__": "page"}
        printed: str | None = None  # by a block of Python; not compared yet
        for about, language, text, moment in self._parts():
            self._about = about
            if moment:
                self.clock_ns = parse_time(moment, now_ns=0)
            elif language == "python":
                assert not printed, f"the page does not show what a block prints:\n{printed}"
                printed = self._python(text, names)
            elif text.startswith("$ "):
                for command, shown in self._commands(text):
                    self.compare(command, shown, self._command(command))
            elif not language:
                assert printed is not None, f"nothing printed this:\n{text}"
                self.compare("a block of Python", text, printed)
                printed = None
        assert not printed, f"the page does not show what a block prints:\n{printed}"

    def run_python(self) -> None:
        names: dict[str, object] = {"__name__": "page"}
        for _, language, text, _ in self._parts():
            if language == "python":
                self._python(text, names)

    def _parts(self) -> Iterator[tuple[bool, str, str, str]]:
        for found in _FENCE.finditer(self.path.read_text()):
            mark, language = found[1] or "", "python" if found[5] else found[2] or ""
            if mark.startswith("run by "):
                assert (PROJECT / mark.removeprefix("run by ")).exists(), mark
                continue
            yield mark == "about", language, found[5] or found[3] or "", found[4] or ""

    def _python(self, text: str, names: dict[str, object]) -> str:
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(text, str(self.path), "exec"), names)
        return out.getvalue()

    def _commands(self, text: str) -> Iterator[tuple[str, str]]:
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, _, shown = part.replace("\\\n", "").partition("\n")
            yield command, shown

    def _command(self, command: str) -> str:
        for shown, actual in self.ids.items():
            command = command.replace(shown, actual)
        words = shlex.split(command, comments=True)
        out = io.StringIO()  # of both, in the order of a terminal
        if words[0] == "mvc":
            with redirect_stdout(out), redirect_stderr(out):
                run(words[1:])
        else:
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            out.write(done.stdout + done.stderr)
        printed = out.getvalue().replace(str(Path.cwd()), _FOLDER)
        return printed.replace(f"account {user_name()}", "account ada")

    def compare(self, what: str, shown: str, actual: str) -> None:
        """Raises AssertionError if ``actual`` is not what the page shows."""
        lines, found = shown.rstrip().split("\n"), actual.rstrip().split("\n")
        same = len(lines) == len(found) and all(map(self._same_line, lines, found))
        assert same, f"{what}\n--- the page shows\n{shown}\n--- this run printed\n{actual}"

    def _same_line(self, shown: str, actual: str) -> bool:
        left, right = _TOKEN.findall(shown), _TOKEN.findall(actual)
        return len(left) == len(right) and all(map(self._same, left, right))

    def _same(self, shown: str, actual: str) -> bool:
        if _ID.fullmatch(shown) and _ID.fullmatch(actual):
            known = self.ids.setdefault(shown[:10], actual[:10]) == actual[:10]
            return known and list(self.ids.values()).count(actual[:10]) == 1
        if _SECONDS.fullmatch(shown) and _SECONDS.fullmatch(actual):
            return True
        kind = _ANY if self._about else _NUMBER
        left, right = kind.fullmatch(shown), kind.fullmatch(actual)
        if left is None or right is None:
            return shown == actual
        a, b = _value(left), _value(right)
        return abs(a - b) <= max(abs(a), abs(b)) / 4

    def now_ns(self) -> int:
        return self.clock_ns

    def sleep(self, caller: FrameType | None, seconds: float) -> bool:
        """Sets the clock forward if the page's code sleeps; False for anybody else."""
        mine = caller is not None and caller.f_code.co_filename == str(self.path)
        if mine:
            self.clock_ns += int(seconds * 1e9)
        return mine


def _value(found: re.Match[str]) -> float:
    number = found[0].split(" ")[0].replace(",", "")
    return float(number) * _SIZES.get(found["unit"] or "B", 1.0)


def run_page(
    path: Path, folder: Path, patch: pytest.MonkeyPatch, *, python_only: bool = False
) -> None:
    """Runs a page in a new folder ``folder/work``, without anybody's settings.

    With ``python_only`` its blocks of Python have to run, and nothing is compared.
    """
    page = Page(path)
    work = folder / "work"
    work.mkdir()
    patch.chdir(work)
    for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "_MVC_COMPLETE"):
        patch.delenv(name, raising=False)
    patch.setenv("XDG_CONFIG_HOME", str(folder / "home"))
    patch.setenv("TZ", "UTC")
    time.tzset()
    really = time.sleep

    def sleep(seconds: float) -> None:
        if not page.sleep(inspect.currentframe().f_back, seconds):
            really(seconds)

    if not python_only:
        patch.setattr(Clock, "now_ns", lambda _: page.now_ns())
        patch.setattr(time, "sleep", sleep)
        patch.setattr("mvc.remote.transports.folder.user_name", lambda: "ada")
    page.run_python() if python_only else page.run()


if __name__ == "__main__":  # python -m tests.guides.page FILE: its blocks of Python, in this folder
    Page(Path(sys.argv[1])).run_python()
