"""Stored code runs apart from everything else: two versions at once, nothing left behind."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path

import pytest

from mvc.errors import CannotBuild
from mvc.models.stored_code import StoredCode


def stored(**files: str) -> StoredCode:
    named = {
        f"code/{name.replace('__of__', '/')}.py": text.encode() for name, text in files.items()
    }
    return StoredCode(named, {"torch": "2.13.0"})


def test_two_versions_of_one_file_are_loaded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    one = stored(net="import part\ndef f():\n    return part.X", part="X = 1")
    two = stored(net="import part\ndef f():\n    return part.X", part="X = 2")
    first, second = one.load("net", "f"), two.load("net", "f")
    assert (first(), second()) == (1, 2)
    assert one.load("net", "f") is first
    assert sys.path == path and os.listdir(tmp_path) == []
    assert {name.split(".")[0] for name in set(sys.modules) - modules} == {one.root, two.root}


def test_stored_modules_go_before_installed_ones_and_import_late() -> None:
    code = stored(
        pack__of____init__="from . import a\nfrom .a import VALUE\n",
        pack__of__a="VALUE = 5\n",
        space__of__deep__of__leaf="NAME = __name__\n",
        click="HERE = True\n",
        net=(
            "import pack.a\nimport pack.a as alias\nfrom pack import a, VALUE\nimport os.path\n"
            "import click\n"
            "def late():\n    import space.deep.leaf as leaf\n"
            "    from space.deep import leaf as b\n"
            "    assert leaf is b\n    return leaf.NAME\n"
        ),
    )
    net = code.load("net", "__dict__")
    assert net["pack"].a is net["alias"] is net["a"] and net["VALUE"] == 5
    assert net["os"] is os and net["click"].HERE
    assert net["late"]() == f"{code.root}.space.deep.leaf"
    import click

    assert not hasattr(click, "HERE")


@pytest.mark.parametrize(
    "call",
    [
        'import importlib\nplug = importlib.import_module("helpers.plug2")',
        "import importlib.util as util\nimport importlib\n"
        'plug = importlib.import_module(".plug2", "helpers")',
        'from importlib import import_module\nplug = import_module("helpers.plug2")',
        'import importlib\nplug = importlib.__import__("helpers.plug2").plug2',
        'plug = __import__("helpers.plug2").plug2',
    ],
)
def test_modules_imported_by_a_call_are_the_stored_ones(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "plug2.py").write_text("WIDTH = 'live'\n")
    monkeypatch.syspath_prepend(tmp_path)
    if call.startswith("from"):  # the process has imported the live one before
        importlib.import_module("helpers.plug2")
    indented = call.replace("\n", "\n    ")
    code = stored(
        helpers__of__plug2="WIDTH = 'stored'",
        net=f"{call}\ndef late():\n    {indented}\n    return plug.WIDTH\n",
    )
    try:
        assert code.load("net", "plug").WIDTH == code.load("net", "late")() == "stored"
        with pytest.raises(CannotBuild, match=r"No module named 'helpers\.plug3'"):
            stored(helpers__of__plug2="", net=call.replace("plug2", "plug3")).load("net", "plug")
    finally:
        for name in ("helpers", "helpers.plug2"):
            sys.modules.pop(name, None)


def test_other_modules_imported_by_a_call_are_the_installed_ones() -> None:
    code = stored(
        net="import importlib\nfrom importlib import util\n"
        'path = importlib.import_module("os.path")'
    )
    assert code.load("net", "path") is os.path
    assert code.load("net", "util") is importlib.util


def test_its_source_can_be_looked_at() -> None:
    code = stored(net="class Net:\n    def f(self):\n        return 1\n")
    net = code.load("net", "Net")
    assert inspect.getsource(net.f) == "    def f(self):\n        return 1\n"
    assert inspect.getsource(net).startswith("class Net")


FAILS = {
    "def f(:": r"net cannot be imported: SyntaxError: .*\(code/net\.py line 1\)",
    "x = 1\nimport absent_package": r"ModuleNotFoundError: No module named 'absent_package' "
    r"\(code/net\.py line 2\)",
    "raise SystemExit(3)": r"SystemExit: 3 \(code/net\.py line 1\)",
    "import net.sub": r"No module named 'net\.sub'; 'net' is not a package \(code/net\.py line 1\)",
    "": r"code/net\.py has no Net",
}


@pytest.mark.parametrize("source", FAILS)
def test_what_fails_says_where(source: str) -> None:
    with pytest.raises(CannotBuild, match=FAILS[source]) as caught:
        stored(net=source).load("net", "Net")
    if "absent" in source:
        assert caught.value.hint == "the version was recorded with torch==2.13.0"


@pytest.mark.parametrize(
    "name",
    ["code/../x.py", "/code/x.py", "code//x.py", "code/x.so", "x.py", "code/a-b.py", "code/.py",
     "code/a/../../b.py", "code/a\\b.py", "code/1.py"],
)  # fmt: skip
def test_names_are_those_of_modules(name: str) -> None:
    with pytest.raises(CannotBuild, match="not a valid name of a stored source file"):
        StoredCode({name: b""}, {})


@pytest.mark.parametrize(
    "source",
    [b"# coding: unicode_escape\n# \\x0aimport os\n", b"# coding: utf-7\n", b"# \xff\n",
     b"# coding: latin-1\nx = '\xe9'\n", b"# coding: none\n"],
)  # fmt: skip
def test_what_is_shown_is_what_runs(source: bytes) -> None:
    with pytest.raises(CannotBuild, match=r"code/a\.py is not UTF-8"):
        StoredCode({"code/a.py": source}, {})


def test_sizes_are_bounded() -> None:
    with pytest.raises(CannotBuild, match="too many or too large"):
        StoredCode({"code/a.py": bytes(17 << 20)}, {})
    with pytest.raises(CannotBuild, match="too many or too large"):
        StoredCode({f"code/a{i}.py": b"" for i in range(501)}, {})
