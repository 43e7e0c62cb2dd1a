"""What a push moves, by other names there; what it tells although it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.cli.main import run
from mvc.errors import InvalidName, NotARepository, RefConflict, StateForgotten, UnknownRevision
from tests.remote.kit import ssh
from tests.remote.kit.team import Team


def state(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full((16, 16), value, np.float32)}


class Shared(Team):
    """A team with three versions."""

    def tips(self) -> dict[str, bytes]:
        refs = self.ada.remotes.show()
        return {**refs.branches, **{f"tag {name}": id_ for name, id_ in refs.tags.items()}}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path, {f"v{i}": state(i) for i in range(3)})
    yield made
    made.close()


def test_a_branch_goes_by_another_name(shared: Shared) -> None:
    ada, (first, second, third) = shared.ada, shared.ids
    (update,) = ada.push(refs=["main:trial"]).updates
    assert (update.name, update.change) == ("heads/trial", "new")
    assert ada.find("origin/trial") == third
    ada.tag("v1", first)
    ada.push(refs=["v1:release", "HEAD~1:old", "main~1:tags/second"])
    there = shared.tips()
    assert there == {
        "main": third, "trial": third, "old": second,
        "tag release": first, "tag second": second, "tag v1": first,
    }  # fmt: skip
    with pytest.raises(RefConflict, match=r"old \(non-fast-forward\)"):
        ada.push(refs=["main~2:old"])
    moved = ada.push(refs=["main:old", ":trial"]).updates
    assert [u.change for u in moved] == ["deleted", "forward"]
    del there["trial"]
    assert shared.tips() == there | {"old": third}


@pytest.mark.parametrize(
    ("ref", "error"),
    [
        ("main:", InvalidName),
        ("main:a..b", InvalidName),
        ("nothing:b", UnknownRevision),
        (":nothing", UnknownRevision),
    ],
)
def test_names_that_are_none(shared: Shared, ref: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        shared.ada.push(refs=[ref])
    assert shared.tips() == {"main": shared.ids[2]}


def test_what_is_forgotten_by_name_goes_although_a_branch_is_refused(shared: Shared) -> None:
    secret = shared.ids[1]
    shared.bob.commit(state(7))
    shared.bob.push()
    shared.ada.commit(state(8))
    shared.ada.storage.forget(secret, reason="withdrawn")
    with pytest.raises(RefConflict, match="has applied the purges"):
        shared.ada.push()
    with pytest.raises(StateForgotten):
        shared.server.checkout(secret)
    (receipt,) = shared.server.storage.receipts()
    assert (receipt.reason, receipt.states[0].commit) == ("withdrawn", secret)
    with pytest.raises(RefConflict, match=r"nothing was pushed\n"):
        shared.ada.push()
    assert len(shared.server.storage.receipts()) == 1
    shared.bob.fetch()
    with pytest.raises(StateForgotten):
        shared.bob.checkout(secret)
    with pytest.raises(RefConflict):
        shared.ada.push(refs=["main"], dry_run=True)


def test_what_was_told_once_is_not_told_again(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mvc.remote.transports.folder import FolderTransport

    given, receive = [], FolderTransport.receive
    monkeypatch.setattr(
        FolderTransport, "receive", lambda transport, s: given.append(s) or receive(transport, s)
    )
    shared.ada.storage.forget(shared.ids[0])
    shared.ada.push()
    assert len(given) == 2
    shared.ada.commit(state(9))
    shared.ada.push()
    assert len(given) == 3


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_whether_a_version_is_gone_there(
    shared: Shared, kind: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    is_gone_there(shared, kind, monkeypatch, capfd)


def test_whether_it_is_gone_behind_ssh(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in ssh.install(shared.root / "kit").items():
        monkeypatch.setenv(name, value)
    is_gone_there(shared, "far", monkeypatch, capfd)


def is_gone_there(
    shared: Shared, kind: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (shared.root / "objects").mkdir()
    urls = {"folder": shared.url, "far": f"ssh://host{shared.url}", "bucket": "bucket:../objects"}
    monkeypatch.chdir(shared.ada.root)
    shared.ada.remotes.add(kind, urls[kind])
    shared.ada.push(kind)
    secret = shared.ids[0]
    shared.ada.storage.forget(secret)
    shared.ada.push(kind)

    def listed() -> list[dict[str, object]]:
        capfd.readouterr()
        assert run(["forget", "--list", "--json", "--remote", kind, str(secret)]) == 0
        found = json.loads(capfd.readouterr().out)["receipts"]
        return [state for receipt in found for state in receipt["states"]]

    (before,) = listed()
    assert (before["commit"], before["gone"], before["came"]) == (str(secret), None, True)
    assert run(["gc", "-q", "--grace", "0", "--remote", kind]) == 0
    (after,) = listed()
    assert (after["gone"] is None) == (kind == "bucket")  # its bytes stay there for 14 days


def test_a_bucket_is_told_of_deployments_once(shared: Shared) -> None:
    (shared.root / "objects").mkdir()
    shared.ada.remotes.add("bucket", f"bucket:{shared.root / 'objects'}")
    shared.ada.deploy(shared.ids[0], "prod")
    assert shared.ada.push("bucket").operations == 4
    assert not shared.ada.push("bucket").is_news


def test_where_no_bucket_is_nothing_is_cloned(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_text("none")
    with pytest.raises(NotARepository, match="contains no repository"):
        mvc.clone(f"bucket:{tmp_path / 'photos'}", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_remote_that_was_replaced_or_is_nowhere_is_said(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared.bob.fetch()
    monkeypatch.chdir(shared.bob.root)
    Path(shared.url).rename(shared.root / "gone")
    assert run(["remote", "add", "-f", "away", shared.url]) == 0
    assert "there is no folder" in capsys.readouterr().err
    Repository.init(shared.url, bare=True).close()
    assert run(["remote", "add", "-f", "away", shared.url]) == 0
    assert "warning" not in capsys.readouterr().err
    assert run(["remote", "show"]) == 4
    assert "origin is a different repository than at the last fetch" in capsys.readouterr().err
    assert run(["remote", "show", "away"]) == 0
    assert "warning" not in capsys.readouterr().err
