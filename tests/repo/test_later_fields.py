"""Fields of a later mvc: ignored, only read or refused, as their tags say; flags that go away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

import mvc
from mvc.errors import DamagedData, ReadOnly, UnsupportedFormat
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.model.manifest import Manifest
from mvc.store.format import add_features, read_features
from mvc.store.journal.entries import Entry, RefChange
from mvc.testing import History

IGNORED, ONLY_READ, REFUSED = 400, 401, 402


def features(root: Path) -> frozenset[str]:
    return read_features(FileSystem(), root / ".mvc")


def add(repo: mvc.Repository, tag: int, *, in_commit: bool) -> CommitId | None:
    """What a later mvc would publish: an entry, or a commit after HEAD, with a field of its own."""
    store, at = repo.context.store, repo.version("HEAD")
    unknown = ((tag, os.urandom(9)),)
    made = replace(at, parents=(at.id,), message="later", unknown=unknown)
    commits, refs = (made,), (RefChange(f"heads/{repo.head().branch}", at.id, made.id),)
    entry = Entry("commit", store.now_ns(), commits=commits, refs=refs)
    if not in_commit:
        entry = Entry("annotate", store.now_ns(), unknown=unknown)
    store.publish(lambda: entry)
    return made.id if in_commit else None


@pytest.mark.parametrize("in_commit", [True, False])
def test_what_may_be_ignored_is_kept_as_it_is(tmp_path: Path, in_commit: bool) -> None:
    history = History(tmp_path, 3)
    before = features(tmp_path)
    with history.open() as repo:
        id_ = add(repo, IGNORED, in_commit=in_commit)
    version = "commit-4" if in_commit else "entry-5"
    assert version in features(tmp_path)
    assert not any("tag" in name for name in features(tmp_path) - before)
    with history.open() as repo:
        repo.commit(repo.checkout("HEAD") | {"more": repo.checkout("HEAD")["w"]})
        repo.storage.forget(history.ids[0])
        repo.storage.gc(grace="0")
        assert repo.storage.fsck(full=True).sound
        assert version in features(tmp_path)
        entries = [recorded.entry for recorded in repo.context.fresh().entries()]
        if id_ is None:
            assert [entry.operation for entry in entries if entry.unknown] == ["annotate"]
        else:
            assert repo.version("HEAD~1").id == id_
            assert repo.version("HEAD~1").unknown


@pytest.mark.parametrize("in_commit", [True, False])
def test_what_may_only_be_read_lets_nothing_be_written(tmp_path: Path, in_commit: bool) -> None:
    history = History(tmp_path, 2)
    flag = f"{'commit' if in_commit else 'entry'}-tag-{ONLY_READ}"
    with history.open() as early:
        state = early.checkout("HEAD")
        with history.open() as repo:
            add(repo, ONLY_READ, in_commit=in_commit)
        with pytest.raises(ReadOnly, match=f"but not write it: it uses {flag}"):
            early.commit({"w": state["w"] + 1})  # also where it was open before
    assert flag in features(tmp_path)
    with history.open() as repo:
        before = (tmp_path / ".mvc/journal").read_bytes()
        assert repo.checkout(history.ids[1]).keys() == state.keys()
        assert len(repo.log()) == 2 + in_commit
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
            with pytest.raises(ReadOnly, match=f"it uses {flag}") as caught:
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
        add(repo, ONLY_READ, in_commit=False)
        for move in (lambda: repo.switch("side"), lambda: repo.checkout("HEAD~1", to=tmp_path)):
            with pytest.raises(ReadOnly, match="it uses entry-tag-401"):
                move()
            assert (tmp_path / "notes").read_text() == "two"
        repo.checkout("HEAD~1", to=tmp_path / "out")
        assert (tmp_path / "out" / "notes").read_text() == "one"


@pytest.mark.parametrize("kind", ["entry", "commit", "manifest"])
def test_what_must_be_known_is_refused(tmp_path: Path, kind: str) -> None:
    history = History(tmp_path, 1)
    add_features(FileSystem(), tmp_path / ".mvc", frozenset({f"{kind}-tag-{REFUSED}"}))
    with pytest.raises(UnsupportedFormat, match=f"it uses {kind}-tag-{REFUSED}"):
        history.open()


@pytest.mark.parametrize("name", ["entry-tag-", "entry-tag-x", "pack-tag-400", "entry-6"])
def test_other_flags_are_refused(tmp_path: Path, name: str) -> None:
    history = History(tmp_path, 1)
    add_features(FileSystem(), tmp_path / ".mvc", frozenset({name}))
    with pytest.raises(UnsupportedFormat, match=name):
        history.open()


def test_flags_go_away_with_what_needed_them(tmp_path: Path) -> None:
    history = History(tmp_path, 2)
    with history.open() as repo:
        repo.branch("gone")
        repo.switch("gone")
        repo.commit({"w": repo.checkout("HEAD")["w"] + 1}, params={"lr": 1}, pipeline="zlib:6")
        add(repo, IGNORED, in_commit=True)
        assert {"commit-2", "commit-4", "codings-2"} <= features(tmp_path)
        repo.switch("main")
        repo.delete_branch("gone", force=True)
        repo.storage.gc(grace="0")
        assert not {"commit-2", "commit-4", "codings-2"} & features(tmp_path)
        assert repo.storage.fsck(full=True).sound


def test_a_commit_that_runs_beside_gc_names_its_flags_again(tmp_path: Path) -> None:
    history = History(tmp_path, 3)
    with history.open() as repo, history.open() as other:
        repo.context.store.require(frozenset({"codings-2"}))
        other.storage.forget(history.ids[0])
        other.storage.gc(grace="0")
        assert "codings-2" not in features(tmp_path)
        repo.commit({"w": repo.checkout("HEAD")["w"] + 1}, pipeline="zlib:6")
        assert "codings-2" in features(tmp_path)
    with history.open() as repo:
        assert repo.storage.fsck(full=True).sound


def test_a_manifest_keeps_fields_of_a_later_mvc() -> None:
    later = Manifest((), ((IGNORED, b"x"), (ONLY_READ, b"")))
    assert later.encoded.hex() == "0300" + "02" + "900301" + "78" + "910300"
    read = Manifest.decode(later.encoded)
    assert (read.unknown, read.id, read.entries) == (later.unknown, later.id, ())
    for bad in ("0300", "030000", "030002900300900300", "0300019203"):
        with pytest.raises((DamagedData, UnsupportedFormat)):
            Manifest.decode(bytes.fromhex(bad))
