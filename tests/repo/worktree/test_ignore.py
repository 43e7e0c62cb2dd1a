import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.repo.worktree.ignore import Ignore


def match(pattern: str, path: str, is_dir: bool = False) -> bool:
    return ignored(Ignore(pattern.split("\n")), path, is_dir)


def ignored(rules: Ignore, path: str, is_dir: bool = False) -> bool:
    """Whether the path or a folder above it is ignored, as whoever walks a tree finds out."""
    parts = path.split("/")
    lengths = range(1, len(parts) + 1)
    return any(rules.match("/".join(parts[:n]), is_dir or n < len(parts)) for n in lengths)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.tmp", "a.tmp", True),
        ("*.tmp", "deep/in/a.tmp", True),
        ("*.tmp", "a.tmpx", False),
        ("/a.pt", "a.pt", True),
        ("/a.pt", "b/a.pt", False),
        ("b/a.pt", "b/a.pt", True),
        ("b/a.pt", "c/b/a.pt", False),
        ("**/b/a.pt", "c/b/a.pt", True),
        ("b/**", "b/x/y", True),
        ("b/**", "b", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "a/b/c/zz", False),
        ("logs/", "logs/x.pt", True),
        ("logs/", "logs", False),
        ("run?", "run1", True),
        ("run?", "run10", False),
        ("run[0-3].pt", "run2.pt", True),
        ("run[!0-3].pt", "run2.pt", False),
        ("run[^0-3].pt", "run4.pt", True),
        ("run[[:digit:]]", "run7", True),
        ("[]x]", "]", True),
        ("[a", "[a", False),
        (r"\#x", "#x", True),
        ("#x", "#x", False),
        (r"\!x", "!x", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        ("a ", "a", True),
        ("a\\ ", "a ", True),
        ("a\r", "a", True),
        ("bad\\", "bad\\", False),
        ("", "a", False),
        ("/", "a", False),
        ("*", "a/b", True),
        ("*\n!keep.pt", "keep.pt", False),
        ("dir/\n!dir/keep.pt", "dir/keep.pt", True),
        ("dir/*\n!dir/keep.pt", "dir/keep.pt", False),
        ("!x\nx", "x", True),
        ("x\n!x", "x", False),
        ("[z-a]", "b", False),
    ],
)
def test_known_answers(pattern: str, path: str, expected: bool) -> None:
    assert match(pattern, path) is expected


@pytest.mark.parametrize("pattern", ["NFC", "NFD"])
@pytest.mark.parametrize("name", ["NFC", "NFD"])
def test_unicode_forms_of_a_name_are_one(
    pattern: Literal["NFC", "NFD"], name: Literal["NFC", "NFD"]
) -> None:
    rules = Ignore([normalize(pattern, "thy[é].*"), normalize(pattern, "née/")])
    rules = rules.within(normalize(name, "thé"), [normalize(pattern, "/à*")])
    for path in ("thyé.tmp", "née/x", "thé/à.pt"):
        assert ignored(rules, normalize(name, path))
    assert not ignored(rules, normalize(name, "à.pt"))


def test_a_folder_rule_needs_a_folder() -> None:
    assert match("logs/", "logs", is_dir=True)
    assert not match("logs/", "logs", is_dir=False)


def test_rules_of_a_folder_end_with_it() -> None:
    rules = Ignore(["*.tmp"]).within("sub", ["/a", "!keep.tmp"])
    assert ignored(rules, "sub/a")
    assert not ignored(rules, "a")
    assert not ignored(rules, "sub/deeper/a")
    assert ignored(rules, "x.tmp")
    assert not ignored(rules, "sub/deeper/keep.tmp")
    assert ignored(rules, "keep.tmp")


def test_no_pattern_is_slow() -> None:
    hostile = Ignore(["*a" * 40 + "b", "/**/a" * 20 + "/b", "*?" * 60 + "b"])
    start = time.perf_counter()
    assert not ignored(hostile, "/".join(["a" * 200] * 5))
    assert not ignored(hostile, "/".join(["a"] * 300))
    assert time.perf_counter() - start < 3


pieces = st.sampled_from(
    ["a", "b", "ab", ".x", "*", "?", "**", "[ab]", "[!a]", "[a-b]x", r"\a", r"\*", "[]a]", " "]
)
segments = st.lists(pieces, min_size=1, max_size=3).map("".join)
patterns = st.tuples(
    st.sampled_from(["", "!", "/", "!/", "**/"]),
    st.lists(segments, min_size=1, max_size=3).map("/".join),
    st.sampled_from(["", "", "/", "/**"]),
).map("".join)
# Behind a literal beginning git takes stars that its own document calls ordinary for ``**``.
patterns = patterns.filter(lambda line: not re.search(r"[^/!*]\*\*+(/|$)", line))
names = st.sampled_from(["a", "b", "ab", "aab", "a.x", ".x", "bx", "]", "*", "c"])
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is the oracle of this test")
    folder = tmp_path_factory.mktemp("oracle")
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


@settings(max_examples=150, deadline=None)
@given(st.lists(patterns, min_size=1, max_size=4), st.lists(paths, min_size=1, max_size=12))
def test_as_git_decides(git: Path, lines: list[str], candidates: list[str]) -> None:
    """Files that do not exist: git takes every path given for a file, its parents for folders."""
    (git / ".gitignore").write_text("\n".join(lines) + "\n")
    told = subprocess.run(
        ["git", "-C", git, "check-ignore", "--no-index", "--stdin", "-z"],
        input="\0".join(candidates).encode() + b"\0",
        capture_output=True,
    )
    assert told.returncode in {0, 1}, told.stderr
    expected = {p.decode() for p in told.stdout.split(b"\0") if p}
    rules = Ignore(lines)
    assert {p for p in candidates if ignored(rules, p)} == expected
