"""What the process of the program imports late behaves as the module itself."""

from __future__ import annotations

import pytest

from tests.cli.program import Mvc, python

START = "import sys; from mvc.cli.late import import_libraries; import_libraries(); "


def test_light_commands_load_none_of_them(mvc: Mvc) -> None:
    mvc.commit()
    done = python(
        "import sys; before = set(sys.modules); sys.argv = ['mvc', 'log', '--oneline']\n"
        "from mvc.__main__ import main\n"
        "try: main()\n"
        "finally: print([m for m in ('ast', 'dis', 'textwrap', 'ipaddress', 'locale', "
        "'typing_extensions') if m in sys.modules.keys() - before], file=sys.stderr)",
        cwd=mvc.folder,
    )
    assert done.stdout.endswith("value 0.0\n")
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("import inspect; print(inspect.cleandoc(' a'), inspect.__name__)", "a inspect"),
        ("from inspect import signature; print(signature(lambda a: a))", "(a)"),
        ("import urllib.parse; print(urllib.parse.quote('a b'))", "a%20b"),
        ("from pathlib import Path; print(Path('/a b').as_uri())", "file:///a%20b"),
        ("import platform; print(platform.python_version_tuple()[0])", "3"),
        ("import platform; print(platform.system() == __import__('os').uname().sysname)", "True"),
        ("import msgspec; print(msgspec.json.schema(int))", "{'type': 'integer'}"),
        ("import msgspec; print(msgspec.inspect.type_info(int).gt)", "None"),
        ("import gettext; print(gettext.gettext('a'), gettext.find('x'))", "a None"),
        ("import typing_extensions as t; print(t.__name__)", "typing_extensions"),
        ("import click; print(click.exceptions.NoSuchOption('--a').format_message())",
         "No such option '--a'."),
        ("import uuid; print(uuid.UUID(int=0))", "00000000-"),
        ("import inspect, pydoc; print(inspect.ismodule(inspect))", "True"),
    ],
)  # fmt: skip
def test_each_is_there_for_who_asks(use: str, says: str) -> None:
    done = python(START + use)
    assert done.stderr == ""
    assert done.stdout.strip().startswith(says)


def test_the_library_leaves_modules_alone() -> None:
    found = python("import mvc, mvc.api.repository, inspect, sys; print(type(inspect).__name__)")
    assert found.stdout == "module\n"
