from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from mvc.cli.commits import as_json, details, names_of, one_liner
from mvc.cli.session import Session
from mvc.errors import NoDeployment
from mvc.ids import CommitId, ManifestId, Root, StatementId
from mvc.model.commit import Commit
from mvc.repo.history.log import LogEntry
from mvc.repo.statements.live import Deployed

DAY = 86_400 * 10**9


def entry(refs=(), deployments=(), **fields) -> LogEntry:
    settings = {
        "manifest": ManifestId(bytes(32)),
        "root": Root(bytes(32)),
        "parents": (),
        "author": "ada",
        "time_ns": 20_000 * DAY,
        "zone_minutes": 60,
        "message": "nightly\n\nbody",
        "pipeline": "lossless",
    }
    commit = Commit(**(settings | fields))
    return LogEntry(CommitId(b"\xab" * 32), commit, refs, deployments)


def deployed(target: str) -> Deployed:
    id_ = StatementId(bytes(32))
    return Deployed(
        target, 20_000 * DAY, 20_000 * DAY, 3, CommitId(b"\xab" * 32), id_, 20_000 * DAY
    )


class Fixed(Session):
    """Its HEAD is on ``branch``; deployments to ``targets`` are live."""

    def __init__(self, branch: str | None, *targets: str) -> None:
        super().__init__()
        self.set_color("never")
        self._branch, self._targets = branch, targets

    @property
    def repo(self) -> Any:
        return SimpleNamespace(head=lambda **_: SimpleNamespace(branch=self._branch), live=self)

    def __call__(self, target: str) -> Any:
        if target not in self._targets:
            raise NoDeployment("nothing is live")
        return SimpleNamespace(deployment=deployed(target))


def test_names_like_git() -> None:
    on_main = names_of(Fixed("main"))
    assert on_main(entry(("HEAD", "main", "tag: v1"))) == " (HEAD -> main, tag: v1)"
    assert names_of(Fixed(None))(entry(("HEAD", "main"))) == " (HEAD, main)"
    assert on_main(entry(("side",))) == " (side)"
    assert one_liner(Fixed("main"), entry(), "") == "ababababab nightly"
    assert one_liner(Fixed("main"), entry(message=""), "") == "ababababab (no message)"


def test_targets_are_named_where_it_is_live_now() -> None:
    found = (deployed("prod"), deployed("edge"), deployed("eu"))
    names = names_of(Fixed(None, "prod", "eu"))
    assert names(entry(deployments=found)) == " [prod, eu]"


def test_details_in_the_users_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    monkeypatch.setattr(Session, "now_ns", lambda _: 20_001 * DAY)
    lines = details(Fixed(None), entry(metrics={"loss": 0.25, "acc": float("nan")}))
    assert lines[0] == "Author:   ada"
    monkeypatch.undo()
    time.tzset()
    assert lines[1] == "Date:     2024-10-04T09:00:00+09:00 (1 day ago)"
    assert lines[3] == "Metrics:  acc=nan  loss=0.25"
    assert lines[4:] == ["", "    nightly", "", "    body"]


def test_nothing_from_data_controls_the_terminal() -> None:
    hostile = entry(message="a\x1b[2Jb\u202ec", author="x\x07", pipeline="p\x9b", code="c\r")
    text = "\n".join([*details(Fixed(None), hostile), one_liner(Fixed(None), hostile, "")])
    assert not set(text) & set("\x1b\x07\x9b\r\u202e")


def test_json_times() -> None:
    found = as_json(entry())
    assert found["time"] == "2024-10-04T00:00:00+00:00"
    assert found["time_ns"] == 20_000 * DAY
