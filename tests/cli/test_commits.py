from __future__ import annotations

import time

import pytest

from mvc.cli.commits import as_json, details, heading, one_liner
from mvc.cli.output import Output
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


def nowhere(deployed: Deployed) -> bool:
    return False


def test_names_like_git() -> None:
    out = Output("never")
    assert heading(out, entry(("HEAD", "main", "tag: v1")), "main", nowhere) == (
        "commit ababababab (HEAD -> main, tag: v1)"
    )
    assert heading(out, entry(("HEAD", "main")), None, nowhere) == "commit ababababab (HEAD, main)"
    assert heading(out, entry(("side",)), "main", nowhere) == "commit ababababab (side)"
    assert one_liner(out, entry(), "main", nowhere) == "ababababab nightly"
    assert one_liner(out, entry(message=""), "main", nowhere) == "ababababab (no message)"


def test_targets_are_named_where_it_is_live_now() -> None:
    found = (deployed("prod"), deployed("edge"), deployed("eu"))
    text = one_liner(
        Output("never"), entry(deployments=found), None, lambda d: d.target in ("prod", "eu")
    )
    assert text == "ababababab [prod, eu] nightly"


def test_details_in_the_users_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    lines = details(entry(metrics={"loss": 0.25, "acc": float("nan")}), 20_001 * DAY)
    assert lines[0] == "Author:   ada"
    monkeypatch.undo()
    time.tzset()
    assert lines[1] == "Date:     2024-10-04T09:00:00+09:00 (1 day ago)"
    assert lines[3] == "Metrics:  acc=nan  loss=0.25"
    assert lines[4:] == ["", "    nightly", "", "    body"]


def test_nothing_from_data_controls_the_terminal() -> None:
    hostile = entry(message="a\x1b[2Jb\u202ec", author="x\x07", pipeline="p\x9b", code="c\r")
    text = "\n".join([*details(hostile, 0), one_liner(Output("never"), hostile, None, nowhere)])
    assert not set(text) & set("\x1b\x07\x9b\r\u202e")


def test_json_times() -> None:
    found = as_json(entry())
    assert found["time"] == "2024-10-04T00:00:00+00:00"
    assert found["time_ns"] == 20_000 * DAY
