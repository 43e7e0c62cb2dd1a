r"""Screens: what commands print, scene by scene, in the files of ``tests/cli/screens/``.

A scene begins with ``# title``, in an empty repository. A line ``$ command`` is typed; what follows
was printed, lines of stderr after ``! ``, then the exit code in brackets, if it is not 0. Besides
``mvc``, of whose ``--json`` the object is shown field by field, and the shell there are
``write VALUE [FILE [TENSOR...]]``, ``commit VALUE`` (both of ``tests.cli.program.state``) and
``record VALUE...`` (states from Python). ``\n`` in an argument ends a line. ``<1>`` is the first id
that the scene printed, also in commands; ``<1...>`` all of it.

``python -m tests.cli.screens [NAME...]`` types the commands of the files and writes anew what is
printed: to add a scene, write its commands, run that, and read what it says.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.numpy import save_file

from mvc.cli.main import run
from tests.cli.json_outputs import steady_numbers
from tests.cli.program import record_states, state

FOLDER = Path(__file__).with_suffix("")
_UNSET = ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "_MVC_COMPLETE")
TIME = re.compile(r"\b20\d\d-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")
_DIGITS = re.compile(r"\b\d+\.\d{7,}")
AGE = re.compile(r"\((just now|[\w ]+ ago)\)")
DURATION = re.compile(r"(?<![\w.])[\d.]+ (us|ms|s)\b")
SIZE = re.compile(r"(?<![\w.])[\d.]+ (B|kB|MB)\b")
SIZE_OF_RECORDS = re.compile(
    r"stored|[Ff]ree|checked|of records|to decode|more than before|(delta|full), |"
    r"^(Stored|full|deltas|manifests|journal|index|packs|price|20\d\d-)"
)
SHARE = re.compile(r"(?<![\w.])[\d.]+ %|[<>] [\d.]+ %")
ID = re.compile(r"\b([0-9a-f]{64}|[0-9a-f]{10})\b")
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
_NONCE = re.compile(r"\b[0-9a-f]{32}\b")
_NAMED = re.compile(r"<(\d+)>")


class Scene:
    """The lines that a scene types, and the ids that it has printed."""

    def __init__(self, title: str, commands: list[str]) -> None:
        self.title, self.commands = title, commands
        self._ids: list[str] = []

    def __str__(self) -> str:
        return self.title

    def played(self, folder: Path) -> str:
        """The scene with what is printed now."""
        self._ids = []
        work = folder / "work"
        work.mkdir()
        settings = {
            "TZ": "UTC", "MVC_USER_NAME": "me", "XDG_CONFIG_HOME": str(folder / "home"),
        }  # fmt: skip
        with mock.patch.dict(os.environ, settings), contextlib.chdir(work):
            for name in _UNSET:
                os.environ.pop(name, None)
            _mvc(["init"])
            return f"# {self.title}\n" + "".join(self._entry(line) for line in self.commands)

    def _entry(self, line: str) -> str:
        typed = _NAMED.sub(lambda m: self._ids[int(m[1]) - 1], line)
        word, _, rest = typed.partition(" ")
        own = word in {"mvc", "write", "commit", "record"}
        values = [each.replace(r"\n", "\n") for each in shlex.split(rest)] if own else []
        if word == "mvc":
            code, out, err = _mvc(values)
        elif word == "write":
            code, out, err = _write(*values)
        elif word == "commit":
            _write(*values)
            code, out, err = _mvc(["commit", "model.safetensors", "-m", f"value {values[0]}"])
        elif word == "record":
            record_states(Path(), *map(float, values))
            code, out, err = 0, "", ""
        else:
            done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True)
            code, out, err = done.returncode, done.stdout, done.stderr
        self._notice(out + err)
        if "--json" in values and out:
            fields = steady_numbers(json.loads(out)).items()
            out = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields)
        shown = [self._steady(text) for text in out.splitlines()]
        shown += [f"! {self._steady(text)}" for text in err.splitlines()]
        ending = [f"[{code}]"] if code else []
        return "".join(f"{text}\n" for text in (f"$ {line}", *shown, *ending))

    def _notice(self, text: str) -> None:
        for found in ID.findall(text):
            if found[:10] not in self._ids:
                self._ids.append(found[:10])

    def _steady(self, text: str) -> str:
        """The line without what differs from one run, or one machine, to the next."""
        text = text.replace(str(Path.cwd()), "<here>").replace(str(Path.cwd().parent), "<above>")
        if SIZE_OF_RECORDS.search(text):
            text = SHARE.sub("<share>", SIZE.sub("<size>", text))
        text = AGE.sub("(<age>)", TIME.sub(moment, text))
        text = _DIGITS.sub(lambda found: f"{float(found[0]):.6g}", text)
        text = _NONCE.sub("<id>", text)
        text = ID.sub(self._number, DURATION.sub("<duration>", text)).rstrip()
        return _GAP.sub("  ", text)  # columns are as wide as what stood in them

    def _number(self, found: re.Match[str]) -> str:
        number = self._ids.index(found[0][:10]) + 1
        return f"<{number}...>" if len(found[0]) == 64 else f"<{number}>"


def _mvc(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.stdin", io.StringIO()),
    ):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


def _write(value: str, name: str = "model.safetensors", *more: str) -> tuple[int, str, str]:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    save_file(state(float(value)) | {tensor: np.ones((2, 2)) for tensor in more}, name)
    return 0, "", ""


def moment(found: re.Match[str]) -> str:
    """A moment of today as a word; those that a scene names stay."""
    time = datetime.fromisoformat(found[0])
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return "<now>" if abs(datetime.now(UTC) - time) < timedelta(days=1) else found[0]


def scenes(file: Path) -> Iterator[Scene]:
    """The scenes of a file."""
    for text in re.split(r"^# ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, *lines = text.splitlines()
        yield Scene(title, [line[2:] for line in lines if line.startswith("$ ")])


def written(file: Path) -> dict[str, str]:
    """The scenes of a file as they stand there, by title."""
    parts = re.split(r"^# ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {text.partition("\n")[0]: f"# {text.strip()}\n" for text in parts}


def rewrite(file: Path) -> None:
    """Plays the scenes of a file and writes what they print."""
    played = []
    for scene in scenes(file):
        with tempfile.TemporaryDirectory() as folder:
            played.append(scene.played(Path(folder).resolve()))
    file.write_text("\n".join(played), encoding="utf-8")


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(file.stem for file in FOLDER.glob("*.txt"))
    for each in names:
        rewrite(FOLDER / f"{each}.txt")
        sys.stdout.write(f"{FOLDER / each}.txt\n")
