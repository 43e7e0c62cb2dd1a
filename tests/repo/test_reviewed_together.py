"""What happens at the same time as something else, and journals nobody should have written."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import mvc
from mvc.cli.main import run
from mvc.errors import Busy, DamagedData, MvcError
from mvc.io.files import FileIdentity
from mvc.repo.lookup.refs import BRANCH
from mvc.store.journal.entries import Entry, RefChange
from mvc.testing import HookedFS, WrappedFS, fresh_process


def state(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(1000, value, np.float32)}


class BeforePublishing:
    """A hook that does something once, when a commit has encoded and wants the journal's lock."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def __call__(self, _: int, op: str, path: Path) -> None:
        if op == "lock" and path.name == "journal" and self.waiting:
            self.waiting.pop()()


# -- removals that are published while a commit encodes ------------------------------------


@pytest.mark.parametrize("moved", [False, True], ids=["same tip", "tip moved"])
def test_a_removal_beside_a_commit_is_not_lost(tmp_path: Path, moved: bool) -> None:
    hook = BeforePublishing()
    with mvc.Repository.init(tmp_path, fs=HookedFS(hook)) as repo:
        repo.commit(states={"a": state(1), "b": state(1)})
        other = mvc.Repository.open(tmp_path)

        def meanwhile() -> None:
            other.remove(["b"])
            if moved:
                other.commit(state(3), path="c", options=mvc.CommitOptions(branch="main"))
                other.remove(["c"])

        hook.waiting = [meanwhile]
        repo.commit(state(2), path="a")
        assert [entry.path for entry in repo.manifest().entries] == ["a"]
        repo.commit(state(4), path="b")  # the removal has been carried out: it is not repeated
        assert {entry.path for entry in repo.manifest().entries} == {"a", "b"}


def test_a_removal_undone_beside_a_commit_does_not_happen(tmp_path: Path) -> None:
    hook = BeforePublishing()
    with mvc.Repository.init(tmp_path, fs=HookedFS(hook)) as repo:
        repo.commit(states={"a": state(1), "b": state(1)})
        repo.remove(["b"])
        hook.waiting = [mvc.Repository.open(tmp_path).undo]
        repo.commit(state(2), path="a")
        assert {entry.path for entry in repo.manifest().entries} == {"a", "b"}


# -- journals that no mvc writes -----------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_undo_that_undoes_no_earlier_operation_is_damage(tmp_path: Path, ahead: int) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(state(1))
        repo.switch("side", create=True)
        tip = repo.commit(state(2)).id
        (left,) = (repo.switch("main"), next(repo.oplog()).number)[1:]
        number = left + 1
        for named in (number + ahead, number):
            gone = RefChange(BRANCH + "side", tip, None)
            repo.context.store.publish(
                lambda n=named, c=gone: Entry("undo", repo.time("now"), refs=(c,), undoes=n)
            )
            tip = None
        with pytest.raises(DamagedData, match="not an earlier one"):
            repo.undo(left)
        assert any("is undone by" in problem.message for problem in repo.storage.fsck().problems)


# -- checkouts -----------------------------------------------------------------------------


class FoldingFS(WrappedFS):
    """Does not tell case apart, as file systems of macOS and Windows: a name once used stays."""

    def call(self, op: str, path: Path, act: Callable[[], Any], *detail: Any) -> Any:
        return act()

    def _known(self, path: Path) -> Path:
        if path.parent.is_dir():
            for name in self.inner.list(path.parent):
                if name.casefold() == path.name.casefold():
                    return path.with_name(name)
        return path

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        return super().stat(self._known(path), follow=follow)

    def replace(self, src: Path, dst: Path, *, within: Path | None = None) -> None:
        super().replace(src, self._known(dst), within=within)

    def unlink(self, path: Path, missing_ok: bool = False, *, within: Path | None = None) -> None:
        super().unlink(self._known(path), missing_ok=missing_ok, within=within)


def test_delete_spares_what_was_just_written_under_another_case(tmp_path: Path) -> None:
    root, out = tmp_path / "models", tmp_path / "out"
    with mvc.Repository.init(root, fs=FoldingFS()) as repo:
        repo.commit(states={"model.safetensors": state(1), "b.safetensors": state(2)})
        out.mkdir()
        (out / "Model.safetensors").write_bytes(b"old")
        (out / "other").write_bytes(b"old")
        os.link(out / "Model.safetensors", out / "linked")  # one file, but another name
        done = repo.checkout("HEAD", to=out, delete=True, force=True)
        assert sorted(p.name for p in out.iterdir()) == ["Model.safetensors", "b.safetensors"]
        assert done.deleted == (str(out / "linked"), str(out / "other"))
        assert (out / "Model.safetensors").stat().st_size > 1000


SHARDS = ("a.safetensors", "b.safetensors", "c.safetensors")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two versions of three files; the folder holds the second."""
    root = tmp_path / "models"
    with mvc.Repository.init(root) as repo:
        for value in (1, 2):
            repo.commit(states={name: state(value) for name in SHARDS})
        repo.checkout("main", to=repo.root)
    return root


def stop(root: Path, at: str, name: str) -> None:
    """Checks out the first version in a process that is killed at a call on a file."""
    child = os.fork()
    if child == 0:

        def die(_: int, op: str, path: Path) -> None:
            if op == at and path.name == name:
                os.kill(os.getpid(), signal.SIGKILL)

        fresh_process()
        with mvc.Repository.open(root, fs=HookedFS(die)) as repo:
            repo.checkout("HEAD~1", to=repo.root)
        os._exit(0)
    os.waitpid(child, 0)
    fresh_process()


def values(root: Path) -> list[float]:
    return [float(load_file(root / name)["w"][0]) for name in SHARDS]


def test_what_a_killed_checkout_left_is_verified_before_it_is_renamed(
    sharded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(sharded, "replace", SHARDS[1])
    assert values(sharded) == [1, 2, 2]
    temporary = sorted(sharded.glob(".mvc-tmp-*"))
    data = bytearray(temporary[0].read_bytes())
    data[-1] ^= 1
    temporary[0].write_bytes(data)
    monkeypatch.chdir(sharded)
    assert run(["log"]) == 0
    said = capsys.readouterr().err
    assert "gave up a checkout that was interrupted" in said and said.count("\n") == 1
    assert all(str(sharded / name) in said for name in SHARDS[1:])
    assert values(sharded) == [1, 2, 2] and not list(sharded.glob(".mvc-tmp-*"))
    assert run(["log"]) == 0 and not capsys.readouterr().err


def test_a_checkout_that_is_taken_back_is_told(
    sharded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(sharded, "sync_dir", "models")  # all is written, but the plan is not ready yet
    monkeypatch.chdir(sharded)
    assert run(["log"]) == 0
    said = capsys.readouterr().err
    assert "gave up a checkout that was interrupted" in said and said.count("\n") == 1
    assert values(sharded) == [2, 2, 2]
    stop(sharded, "replace", SHARDS[1])
    assert run(["log"]) == 0
    said = capsys.readouterr().err
    assert "completed a checkout that was interrupted" in said and said.count("\n") == 1
    assert values(sharded) == [1, 1, 1]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "folder"])
def test_two_checkouts_of_the_same_files_do_not_mix(sharded: Path, elsewhere: bool) -> None:
    """The second begins between two renames of the first."""
    out = sharded.parent / "out" if elsewhere else sharded
    options: dict[str, Any] = {"to": out, "force": True} if elsewhere else {"to": sharded}
    started: list[threading.Thread] = []

    def second() -> None:
        with mvc.Repository.open(sharded) as other:
            other.checkout("main", **options)

    def hook(_: int, op: str, path: Path) -> None:
        if op == "replace" and path.name == SHARDS[1] and not started:
            started.append(threading.Thread(target=second))
            started[0].start()
            started[0].join(3)

    with mvc.Repository.open(sharded, fs=HookedFS(hook)) as repo:
        repo.checkout("main~1", **options)
    started[0].join()
    assert values(out) == [2, 2, 2]
    assert not list((sharded / ".mvc/checkouts").iterdir())


def test_a_checkout_that_waits_too_long_says_so(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mvc.io.replacement._LOCK_SECONDS", 0.1)
    caught: list[MvcError] = []

    def hook(_: int, op: str, path: Path) -> None:
        if op == "replace" and path.name == SHARDS[1]:
            with mvc.Repository.open(sharded) as other:
                with pytest.raises(Busy, match="another checkout has been writing") as error:
                    other.checkout("main", to=other.root)
                caught.append(error.value)
                other.checkout("main", to=sharded.parent / "elsewhere")  # is not held up

    with mvc.Repository.open(sharded, fs=HookedFS(hook)) as repo:
        repo.checkout("main~1", to=repo.root)
    assert len(caught) == 1 and values(sharded.parent / "elsewhere") == [2, 2, 2]
