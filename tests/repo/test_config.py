from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.errors import InvalidConfig
from mvc.io.files import FileSystem
from mvc.repo.config import KEYS, Config, load_config, set_value, unset_value

FS = FileSystem()


def load(repo: Path | None = None, user: Path | None = None, **more: dict[str, str]) -> Config:
    return load_config(FS, repo, user, more.get("environment", {}), more.get("flags", {}))


def test_defaults_come_from_the_table() -> None:
    config = load()
    assert {name: config.get(name) for name in KEYS} == {k.name: k.default for k in KEYS.values()}
    assert {config.origin(name) for name in KEYS} == {"default"}


def test_every_default_is_within_its_own_range() -> None:
    for key in KEYS.values():
        assert key.check(key.default, "here") == key.default
        assert key.help


def test_later_sources_win(tmp_path: Path) -> None:
    user, repo = tmp_path / "user.yaml", tmp_path / "config.yaml"
    user.write_text("store: {reset_interval: 2, max_chain: 2}\nuser: {name: Ada}\n")
    repo.write_text("store: {reset_interval: 3, max_chain: 3}\ninit:\n  branch: trunk\n")
    environment = {"MVC_STORE_RESET_INTERVAL": "4", "MVC_STORE_MAX_CHAIN": "4", "HOME": "/x"}
    flags = {"store.reset_interval": "5"}
    config = load(repo, user, environment=environment, flags=flags)
    got = {n: (config.get(n), config.origin(n)) for n in KEYS}
    assert got["store.reset_interval"] == (5, "flag")
    assert got["store.max_chain"] == (4.0, "environment")
    assert got["init.branch"] == ("trunk", "repository")
    assert got["user.name"] == ("Ada", "user")
    assert got["python.keep_base"] == ("auto", "default")


def refused(file: Path, text: str) -> InvalidConfig:
    """The error for a file of this text."""
    file.write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        load(file)
    return caught.value


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("store:\n  reset_intervall: 3\n", "store.reset_intervall"),
        ("store:\n  reset_interval: 0\n", "from 1 to 10000"),
        ("store:\n  reset_interval: '3'\n", "whole number"),
        ("store:\n  reset_interval: 2.5\n", "2.5"),
        ("store:\n  reset_interval: true\n", "true"),
        ("store:\n  max_recovery: 0\n", "greater than 0"),
        ("store:\n  max_recovery: .nan\n", "nan"),
        ("store:\n  max_chain: .inf\n", "inf"),
        ("store: 7\n", "section"),
        ("python:\n  keep_base: 1\n", "auto, none, or a size such as 2GB"),
        ("user:\n  name: [a, b]\n", "a list"),
        ('user:\n  name: "a\\u202eb"\n', "printable"),
        ("store.reset_interval: 3\n", "section"),
        ("1: 2\n", "section"),
        ("- a\n", "section"),
        ("just text\n", "section"),
        ("a: b: c\n", "line 1"),
        ("x: !!python/object/apply:os.system ['true']\n", "line 1"),
        ("a: &a {b: *a}\n", "not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    message = refused(tmp_path / "config.yaml", text).message
    assert named in message and str(tmp_path / "config.yaml") in message


def test_dotted_names_are_written_nested(tmp_path: Path) -> None:
    error = refused(tmp_path / "config.yaml", "store.layout: 5\n")
    assert "'store:', and 'max_chain: 16' indented" in (error.hint or "")


def test_repeated_references_do_not_swell(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)
    ]
    file = tmp_path / "config.yaml"
    file.write_text("\n".join([*rows, "user:", "  name: *a29"]))
    with pytest.raises(InvalidConfig) as caught:
        load(file)
    assert len(caught.value.message) < 1000


def test_a_close_name_is_suggested() -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(flags={"store.reset_intervall": "3"})
    assert "store.reset_interval" in (caught.value.hint or "")
    with pytest.raises(InvalidConfig, match="MVC_STORE_RESET") as caught:
        load(environment={"MVC_STORE_RESET": "3"})
    assert "MVC_STORE_RESET_INTERVAL" in (caught.value.hint or "")
    with pytest.raises(InvalidConfig):
        load().get("nothing")
    with pytest.raises(InvalidConfig):
        load().origin("nothing")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("store.reset_interval", "7", 7), ("user.name", "YES", "YES"),
     ("python.keep_base", "1.5 GiB", "1.5 GiB"), ("python.keep_base", "none", "none"),
     ("store.max_recovery", "null", None), ("store.max_recovery", "2", 2.0),
     ("store.reset_interval", "40", 40), ("user.name", "Ada L", "Ada L"), ("user.name", "", "")],
)  # fmt: skip
def test_texts_become_values(name: str, text: str, value: Any) -> None:
    config = load(flags={name: text})
    assert config.get(name) == value and type(config.get(name)) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("python.keep_base", "maybe"), ("python.keep_base", "5"), ("python.keep_base", "-1GB"),
      ("store.reset_interval", "x"), ("store.max_chain", "nan"),
     ("store.max_recovery", "-1"), ("init.branch", ""), ("user.name", "a\nb")],
)  # fmt: skip
def test_bad_texts_are_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match="a flag"):
        load(flags={name: text})


def test_set_keeps_other_keys_and_unset_takes_one_out(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "config.yaml"
    set_value(FS, file, "store.reset_interval", "7")
    set_value(FS, file, "store.max_chain", "8")
    set_value(FS, file, "user.name", "Zoë")
    config = load(file)
    assert (config.get("store.reset_interval"), config.get("store.max_chain")) == (7, 8.0)
    assert config.get("user.name") == "Zoë" and "Zoë" in file.read_text("utf-8")
    assert unset_value(FS, file, "store.reset_interval")
    assert not unset_value(FS, file, "store.reset_interval")
    assert not unset_value(FS, file, "nothing.at.all")
    assert load(file).get("store.reset_interval") == KEYS["store.reset_interval"].default
    assert load(file).get("store.max_chain") == 8.0
    assert unset_value(FS, file, "store.max_chain") and unset_value(FS, file, "user.name")
    assert file.read_text() == ""


def test_set_refuses_without_touching_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("store:\n  max_chain: 3\n")
    for key, value in [("store.max_chain", "0"), ("store.what", "1")]:
        with pytest.raises(InvalidConfig):
            set_value(FS, file, key, value)
    assert file.read_text() == "store:\n  max_chain: 3\n"


def test_unset_repairs_a_file_with_an_unknown_key(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("store:\n  old_name: 3\n")
    with pytest.raises(InvalidConfig):
        load(file)
    assert unset_value(FS, file, "store.old_name")
    load(file)


def test_an_empty_section_is_fine(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("store:\n")
    assert load(file).origin("store.max_chain") == "default"
    set_value(FS, file, "store.max_chain", "3")
    assert load(file).get("store.max_chain") == 3.0


@settings(deadline=None)  # the first one imports
@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(data)
    with contextlib.suppress(InvalidConfig):
        load(file)
