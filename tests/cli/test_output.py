from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

import mvc
from mvc.cli import payload
from mvc.cli.output import Output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_is_strict_where_numbers_are_not(capsys) -> None:
    payload = {"a": float("nan"), "b": [float("inf"), -float("inf")], "c": b"\x01", "d": 0.1}
    Output().json("mvc.test/1", payload)
    text = capsys.readouterr().out
    found = json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert found == {
        "schema": "mvc.test/1",
        "a": "NaN",
        "b": ["Infinity", "-Infinity"],
        "c": "01",
        "d": 0.1,
    }
    assert text.isascii()


def test_notes_go_to_stderr_and_quiet_silences_them(capsys) -> None:
    out = Output()
    out.note("said")
    out.quiet = True
    out.note("not said")
    out.warn("said")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "said\nmvc: warning: said\n"


@pytest.mark.parametrize(
    ("mode", "terminal", "environment", "colored"),
    [
        ("auto", False, {}, False),
        ("auto", True, {}, True),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {}, False),
    ],
)
def test_colour(monkeypatch, mode, terminal, environment, colored) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    out = Output(mode)
    out.line(out.paint("x", "id"))
    assert ("\x1b[" in stream.getvalue()) is colored


def test_width_follows_columns_only_on_a_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "97")
    assert Output("never").width is None
    assert Output("always").width == 97


def test_objects_of_their_own_are_of_one_class_each() -> None:
    """They are found by the name of the class: a renamed one would lose its fields."""
    sources = [path.read_text() for path in Path(mvc.__file__).parent.rglob("*.py")]
    classes = re.findall(r"^class (\w+)\(", "".join(sources), re.MULTILINE)
    assert [name for name in payload.OWN_FIELDS if classes.count(name) != 1] == []


def test_one_module_imports_rich() -> None:
    sources = Path(mvc.__file__).parent.rglob("*.py")
    found = [p for p in sources if re.search(r"^\s*(from|import) rich\b", p.read_text(), re.M)]
    assert [path.name for path in found] == ["output.py"]
