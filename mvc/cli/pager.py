"""Long output on a terminal goes through a pager, as git has it.

``MVC_PAGER``, else ``PAGER``, else ``less``; empty or ``cat`` means none. ``less`` gets the options
of git, ``FRX``, unless ``LESS`` has some: it ends at once if all fits on the screen, shows colours,
and leaves the screen as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

VARIABLE = "MVC_PAGER"
_OF_SHELL = "|&;<>()$`\\\"' \t\n*?[#~=%"


class Pager:
    """A running pager; what is written to ``stream`` is shown."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        self._process, self.stream = process, process.stdin

    @classmethod
    def start(cls, environment: Mapping[str, str]) -> Pager | None:
        """Starts it; None if none is wanted or there is none. Raises PagerMissing."""
        import subprocess  # only on a terminal

        chosen = environment.get(VARIABLE, environment.get("PAGER"))
        command = "less" if chosen is None else chosen.strip()
        if command in {"", "cat"} or environment.get("TERM") == "dumb":
            return None
        if not _is_there(command, environment):
            if chosen is None:
                return None
            raise PagerMissing(command)
        shell = any(character in command for character in _OF_SHELL)
        return cls(
            subprocess.Popen(  # noqa: S603 - the user's own program
                ["/bin/sh", "-c", command] if shell else [command],
                stdin=subprocess.PIPE,
                text=True,
                encoding=sys.stdout.encoding,
                errors="backslashreplace",
                env={"LESS": "FRX", "LV": "-c", **environment},
            )
        )

    def end(self) -> None:
        """Waits until the user leaves it; Ctrl-C is the pager's until then."""
        while True:
            try:
                with suppress(BrokenPipeError):
                    self.stream.close()
                self._process.wait()
            except KeyboardInterrupt:
                continue
            return


class PagerMissing(Exception):
    """The program that the environment names is not there."""


def _is_there(command: str, environment: Mapping[str, str]) -> bool:
    """Whether the program that a command begins with is found, after settings of variables."""
    import shlex

    try:
        words = [word for word in shlex.split(command) if "=" not in word.partition("/")[0]]
    except ValueError:  # the shell says what is wrong
        return True
    if not words:
        return False
    folders = [""] if "/" in words[0] else environment.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(Path(folder) / words[0], os.X_OK) for folder in folders)
