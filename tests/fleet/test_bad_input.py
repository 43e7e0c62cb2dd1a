"""What is in the way of ``mvc follow``: one clear line, and the old file stays."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mvc as api
from mvc.api.node_status import nodes
from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from tests.cli.program import Mvc
from tests.fleet.folders import contents
from tests.fleet.following import following
from tests.recipes import by_hand
from tests.remote.kit.mixed import made, model
from tests.remote.kit.places import place

FILE = "net.safetensors"


@pytest.fixture
def mvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mvc:
    node = tmp_path / "node"
    node.mkdir()
    monkeypatch.chdir(node)
    return Mvc(node, capsys)


@pytest.fixture
def remote(tmp_path: Path) -> Repository:
    """The remote; a version is live on prod."""
    repo = Repository.init(tmp_path / "remote", bare=True)
    deploy(repo, 0)
    return repo


def deploy(repo: Repository, seed: int) -> None:
    state = {"w": np.random.default_rng(seed).random(20_000, np.float32)}
    repo.commit(state, path="m.safetensors", message=str(seed), deploy="prod")


def words(remote: Repository | str, *more: object, target: str = "prod") -> list[object]:
    url = remote if isinstance(remote, str) else remote.root
    return ["follow", url, target, "-o", FILE, "--once", *more]


def content(node: Path) -> str:
    return hashlib.sha256((node / FILE).read_bytes()).hexdigest()


def said(mvc: Mvc, line: list[object], *, code: int = 3) -> str:
    """What the command says on stderr: a line, and a hint; the file stays as it was."""
    before = content(mvc.folder) if (mvc.folder / FILE).exists() else None
    done = mvc(*line, code=code)
    after = content(mvc.folder) if (mvc.folder / FILE).exists() else None
    assert done.out == "" and after == before
    lines = done.err.splitlines()
    assert lines[0].startswith("mvc: ") and len(lines) <= 2
    assert all(each.startswith("hint: ") for each in lines[1:])
    there = sorted(each.name for each in mvc.folder.iterdir())
    assert there in ([], [f".{FILE}.mvc", FILE])
    return done.err


def test_no_such_target(mvc: Mvc, remote: Repository) -> None:
    assert "nothing was ever deployed on beta" in said(mvc, words(remote, target="beta"))
    remote.deploy("HEAD", "beta")
    mvc(*words(remote, target="beta"))


def test_nothing_live_yet(mvc: Mvc, remote: Repository) -> None:
    remote.deploy("HEAD", "night", at=remote.time("now") + 10**15)
    assert "nothing was live on night" in said(mvc, words(remote, target="night"))
    remote.retract(None, "prod")
    assert "every deployment was retracted" in said(mvc, words(remote))
    deploy(remote, 1)
    mvc(*words(remote))


def test_a_state_that_was_forgotten(mvc: Mvc, remote: Repository) -> None:
    mvc(*words(remote))
    deploy(remote, 1)
    remote.storage.forget("HEAD")
    assert "was forgotten" in said(mvc, words(remote))
    remote.rollback("prod")
    assert "is in sync with prod" in mvc(*words(remote)).err


def test_a_state_that_never_came(mvc: Mvc, remote: Repository, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    api.clone(remote.root, mirror, bare=True, states="none").close()
    assert "was not fetched" in said(mvc, words(str(mirror)))
    with Repository.open(mirror) as repo:
        repo.fetch("origin", [repo.find("origin/main")])
    mvc(*words(str(mirror)))


def test_weights_that_were_given_up(mvc: Mvc, remote: Repository) -> None:
    base = remote.commit(model(3), path="model.safetensors").id
    trained = by_hand.trained(remote, made, {"seed": 12}, base)
    remote.storage.repack(interval=1)
    remote.deploy(trained, "prod")
    by_hand.drop(remote, trained)
    remote.storage.gc(grace="0")
    error = said(mvc, words(remote))
    assert "were dropped" in error


def test_a_file_that_something_else_wrote(mvc: Mvc, remote: Repository) -> None:
    mvc(*words(remote))
    right = content(mvc.folder)
    (mvc.folder / FILE).write_bytes(b"somebody else's")
    done = mvc(*words(remote))
    assert content(mvc.folder) == right
    (line,) = done.err.splitlines()
    assert line.startswith(f"mvc: warning: replaced {FILE}, which another program wrote, by ")
    mvc(*words(remote)[:4], "live", "--once")
    (mvc.folder / "live" / "m.safetensors").write_bytes(b"somebody else's")
    done = mvc(*words(remote)[:4], "live", "--once")
    assert "live/m.safetensors, which another program wrote, by " in done.err
    (mvc.folder / FILE).unlink()
    assert mvc(*words(remote)).err == "" and content(mvc.folder) == right


def test_a_disk_too_small_for_a_second_file(
    mvc: Mvc, remote: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    mvc(*words(remote))
    deploy(remote, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "free_bytes", lambda *_: 50_000)
        assert f"{FILE} needs " in (error := said(mvc, words(remote)))
        assert "kB more" in error and "the previous version stays" in error
        (mvc.folder / FILE).unlink()
        assert "stays" not in mvc(*words(remote), code=3).err
    mvc(*words(remote))


def test_a_folder_that_cannot_be_kept(
    mvc: Mvc, remote: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time one line; what is there stays."""
    line: list[object] = ["follow", remote.root, "prod", "--once", "-o"]
    (mvc.folder / "full").mkdir()
    (mvc.folder / "full" / "notes").touch()
    (mvc.folder / "link").symlink_to("full")
    (mvc.folder / "there.st").touch()
    mvc(*line, "live/")
    right = contents(mvc.folder / "live")

    def refused(words: list[object], message: str, code: int = 3) -> None:
        done = mvc(*line, *words, code=code)
        first, *rest = done.err.splitlines()
        assert first.startswith("mvc: ") and message in first and not done.out
        assert len(rest) <= 1 and contents(mvc.folder / "live") == right

    there = sorted(mvc.folder.iterdir())
    refused(["new/", "--path", "none"], "no path none")
    for way in ([], ["--in-place"]):
        refused(["/proc/", *way], "/proc is a mount point", code=2)
    refused(["new/", "--in-place", "--path", "none"], "no path none")
    assert sorted(mvc.folder.iterdir()) == there
    refused(["full/"], "full is not a symbolic link")
    refused(["."], ". cannot be replaced", code=2)
    refused(["/"], "/ cannot be replaced", code=2)
    refused(["link"], "link points to full, which mvc did not create")
    refused(["there.st/"], "there.st is not a symbolic link")
    refused(["no/live/"], "the folder no does not exist")
    refused(["live", "--path", "m.safetensors", "--path", "none"], "no path none")
    refused(["live", *["--path", "a"] * 257], "257 paths are too many for live", code=2)
    with following(str(remote.root), "prod", mvc.folder / "live"):
        refused(["live"], "another process follows into live", code=5)
    deploy(remote, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "free_bytes", lambda *_: 50_000)
        refused(["live"], "the disk is nearly full: live needs ")
    with monkeypatch.context() as patch:
        for name in ("pwrite", "pwritev"):
            patch.setattr(os, name, _full)
        refused(["live"], "No space left")
    mvc(*line, "live")
    assert contents(mvc.folder / "live") != right


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 3", "exit status 3"),
        ("/no/such/program", "exit status 127"),
        ("kill -9 $$", "signal"),
        ("sleep 60", "took longer than"),
        ("trap '' TERM; sleep 60 & sleep 60", "took longer than"),
    ],
)
def test_a_command_that_fails_or_hangs(
    command: str, message: str, mvc: Mvc, remote: Repository
) -> None:
    done = mvc(*words(remote, "--exec", command, "--exec-timeout", "0.5"))
    (line,) = done.err.splitlines()
    assert line.startswith(f"mvc: warning: {FILE} is ") and message in line
    assert FILE in done.out  # it is the new version all the same
    assert mvc(*words(remote, "--exec", "true")).err.endswith("is in sync with prod\n")


def test_two_followers_of_one_file(mvc: Mvc, remote: Repository) -> None:
    with following(str(remote.root), "prod", mvc.folder / FILE):
        assert f"another process follows into {FILE}" in mvc(*words(remote), code=5).err
    mvc(*words(remote))


def test_what_a_server_refuses(mvc: Mvc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _token(monkeypatch, "")  # what is set from now on is undone
    with place("http", tmp_path) as there:
        there.own(lambda repo: deploy(repo, 0))
        token = there.narrow_token("push:*")
        cases: list[tuple[str, str, Callable[[], None]]] = [
            ("requires a token", there.url, lambda: monkeypatch.delenv("MVC_TOKEN_ORIGIN")),
            ("does not know this token", there.url, lambda: _token(monkeypatch, "mvc_" + "x" * 43)),
            ("the scope read", there.url, lambda: _token(monkeypatch, token)),
            ("no repository other", there.url.replace("/remote", "/other"), lambda: None),
        ]
        for message, url, prepare in cases:
            prepare()
            if "other" in url:
                _token(monkeypatch, there.token)
            assert message in said(mvc, words(url))
        monkeypatch.delenv("MVC_TOKEN_ORIGIN")
        error = said(mvc, words(there.url, "-O", "token_file=tok"))
        assert "tok does not exist\nhint: check the option token_file" in error
        _token(monkeypatch, there.token)
        mvc(*words(there.url))
    assert "does not answer" in said(mvc, words(there.url))


def _token(patch: pytest.MonkeyPatch, text: str) -> None:
    patch.setenv("MVC_TOKEN_ORIGIN", text)


def test_a_node_without_the_right_to_report(
    mvc: Mvc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is followed; that the report waits is said."""
    _token(monkeypatch, "")  # what is set from now on is undone
    with place("http", tmp_path) as there:
        there.own(lambda repo: deploy(repo, 0))
        _token(monkeypatch, there.narrow_token("read", "deploy:nodes/8/*"))
        done = mvc(*words(there.url, "--as", "7"))
        (line,) = done.err.splitlines()
        assert "not sent: 1 report of nodes/7/prod: " in line and "deploy:nodes/7/prod" in line
        _token(monkeypatch, there.narrow_token("read", "deploy:nodes/7/*"))
        mvc(*words(there.url, "--as", "7"))
        (node,) = there.own(lambda repo: nodes(repo))
        assert node.node == "7"


def test_reports_under_a_wrong_name_are_dropped(
    mvc: Mvc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _token(monkeypatch, "")
    with place("http", tmp_path) as there:
        there.own(lambda repo: deploy(repo, 0))
        _token(monkeypatch, there.narrow_token("read", "deploy:nodes/7/*"))
        for seed in range(1, 3):
            assert "not sent: " in mvc(*words(there.url, "--as", "8")).err
            there.own(lambda repo, seed=seed: deploy(repo, seed))
        done = mvc(*words(there.url, "--as", "7"))
        (line,) = done.err.splitlines()
        assert "node 7 drops 2 reports of nodes/8/prod: " in line
        assert line.endswith("the token needs the scope deploy:nodes/8/prod")
        (node,) = there.own(lambda repo: nodes(repo))
        assert (node.node, node.behind) == ("7", 0)
        assert "nodes/8" not in mvc(*words(there.url, "--as", "7")).err
