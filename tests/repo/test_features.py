"""Features in the file ``format``: unknown ones refuse, or only bar writing."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

import mvc
from mvc.errors import ReadOnly, UnsupportedFormat
from mvc.io.files import FileSystem
from mvc.store.format import read_features, write_features
from tests.histories import CheckedHistory

ONLY_READ = "w-locks"


def name(root: Path, *features: str) -> None:
    write_features(FileSystem(), root / ".mvc", frozenset(features))


def test_what_bars_writing_lets_nothing_be_written(tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path, 2)
    with history.open() as early:
        state = early.checkout("HEAD")
        name(tmp_path, ONLY_READ)
        with pytest.raises(ReadOnly, match=f"but not write it: the repository uses {ONLY_READ}"):
            early.commit({"w": state["w"] + 1})  # also where it was open before
    with history.open() as repo:
        before = (tmp_path / ".mvc/journal").read_bytes()
        assert repo.checkout(history.ids[1]).keys() == state.keys()
        for write in (
            lambda: repo.commit({"w": state["w"] + 1}),
            lambda: repo.deploy("HEAD", "prod"),
            lambda: repo.branch("other"),
            lambda: repo.storage.gc(grace="0"),
            lambda: repo.storage.repack(interval=1),
            lambda: repo.storage.rebuild_index(),
            lambda: repo.storage.repair(),
            lambda: repo.undo(),
        ):
            with pytest.raises(ReadOnly, match=f"the repository uses {ONLY_READ}") as caught:
                write()
            assert caught.value.hint == "upgrade mvc"
        assert repo.storage.fsck(full=True).sound
        assert (tmp_path / ".mvc/journal").read_bytes() == before


def test_a_checkout_that_may_not_move_head_writes_no_file(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for text in ("one", "two"):
            (tmp_path / "notes").write_text(text)
            repo.commit([tmp_path / "notes"])
        repo.branch("side", "HEAD~1")
        name(tmp_path, ONLY_READ)
        for move in (lambda: repo.switch("side"), lambda: repo.checkout("HEAD~1", to=tmp_path)):
            with pytest.raises(ReadOnly, match=f"the repository uses {ONLY_READ}"):
                move()
            assert (tmp_path / "notes").read_text() == "two"
        repo.checkout("HEAD~1", to=tmp_path / "out")
        assert (tmp_path / "out" / "notes").read_text() == "one"


@pytest.mark.parametrize("feature", ["holograms", "W-locks", "entry-2"])
def test_other_features_are_refused(tmp_path: Path, feature: str) -> None:
    history = CheckedHistory(tmp_path, 1)
    name(tmp_path, feature)
    with pytest.raises(UnsupportedFormat, match=f"uses {feature}, which needs a newer mvc"):
        history.open()


@pytest.mark.parametrize("line", ["mvc-repository 1 features=entry-5", "mvc 2 features="])
def test_another_format_is_refused_in_one_line(tmp_path: Path, line: str) -> None:
    history = CheckedHistory(tmp_path, 1)
    text = f"{line} check={blake3(line.encode()).hexdigest(8)}\n"
    (tmp_path / ".mvc/format").write_text(text)
    for act in (history.open, lambda: mvc.heal(tmp_path)):
        with pytest.raises(UnsupportedFormat) as caught:
            act()
        assert "\n" not in caught.value.message
        assert caught.value.hint
    assert (tmp_path / ".mvc/format").read_text() == text


def test_features_stay(tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path, 2)
    with history.open() as repo:
        repo.branch("gone")
        repo.switch("gone")
        repo.commit({"w": repo.checkout("HEAD")["w"] + 1}, pipeline="zlib:6")
        repo.switch("main")
        repo.delete_ref("branch", "gone", force=True)
        repo.storage.gc(grace="0")
    assert read_features(FileSystem(), tmp_path / ".mvc") == {"stages"}
