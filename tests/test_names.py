"""Names from outside: what is accepted means one file on every system."""

from __future__ import annotations

import posixpath
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import InvalidName
from mvc.names import check_key, check_path, check_ref, printable


@pytest.mark.parametrize("path", ["a", "a/b.pt", "ä/ö.npz", ".hidden/x", "a b/c", "con1/x", "-x"])
def test_good_paths(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", ".mvc/x", "a/.MVC", "a\\b", "c:x", "a.",
     "a /b", "CON", "nul.txt", "x/Com1.pt", "a\x00b", "a\nb", "a\u202eb", "a\u200bb", "a\u0308",
     "\ud800", "x" * 1025],
)  # fmt: skip
def test_bad_paths(path: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_path(path)
    assert caught.value.message.isprintable()


@given(st.text(max_size=30))
def test_an_accepted_path_stays_inside(path: str) -> None:
    try:
        check_path(path)
    except InvalidName:
        return
    assert posixpath.normpath(path) == path
    assert not path.startswith(("/", ".."))
    assert not any(ord(c) < 32 or unicodedata.category(c) == "Cf" for c in path)


@pytest.mark.parametrize("key", ["w", "layer1.0.conv1.weight", "a/../b", "ключ", "x" * 1024])
def test_good_keys(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "a\x1b[0m", "a\udc80", "x" * 1025])
def test_bad_keys(key: str) -> None:
    with pytest.raises(InvalidName):
        check_key(key)


@pytest.mark.parametrize("name", ["main", "v1.0", "feature/x-1", "a_b+c", "deadbeef"])
def test_good_refs(name: str) -> None:
    assert check_ref("branch", name) == name


@pytest.mark.parametrize(
    "name",
    ["", "HEAD", "-x", "a..b", "a//b", "/a", "a/", "a.lock", "a/.b", "a/-b", "a.", "a b", "a@{1}",
     "a~1", "é", "0" * 40, "ab" * 32, "x" * 201, "a\n"],
)  # fmt: skip
def test_bad_refs(name: str) -> None:
    with pytest.raises(InvalidName, match=r"not a valid name for a tag|HEAD means"):
        check_ref("tag", name)


@given(st.text(max_size=30))
def test_what_is_printed_moves_no_cursor(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()
