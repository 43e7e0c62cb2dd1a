"""What a follower receives of versions that only a full record leads to: what changed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from mvc import CommitOptions
from mvc.api.repository import Repository
from tests.fleet.folders import contents
from tests.fleet.following import follow
from tests.fleet.test_joining import checked_out, versions


@pytest.mark.parametrize("how", ["repack", "commit"])
def test_a_reset_point_comes_as_what_changed(how: str, repo: Repository, tmp_path: Path) -> None:
    line, node, url = versions(), tmp_path / "node", str(repo.root)
    for each in islice(line, 3):
        repo.commit(states=each, deploy="prod")
    whole = follow(url, "prod", to=node, once=True)
    assert whole is not None
    for each in islice(line, 3):
        made = repo.commit(
            states=each, deploy="prod", options=CommitOptions(reset_point=how == "commit")
        ).id
        if how == "repack":
            repo.storage.repack(interval=1)
        done = follow(url, "prod", to=node, once=True)
        assert done is not None and done.commit == made
        assert done.received < whole.received / 50
        assert contents(node) == checked_out(repo, made, tmp_path / "out")
    repo.rollback("prod", steps=2)
    back = follow(url, "prod", to=node, once=True)
    assert back is not None and back.received < whole.received / 50
    assert contents(node) == checked_out(repo, back.commit, tmp_path / "out")


def test_a_forgotten_version_is_nothing_to_code_against(repo: Repository, tmp_path: Path) -> None:
    line, node, url = versions(), tmp_path / "node", str(repo.root)
    old = repo.commit(states=next(line), deploy="prod").id
    whole = follow(url, "prod", to=node, once=True)
    made = repo.commit(states=next(line), deploy="prod", options=CommitOptions(reset_point=True)).id
    repo.storage.forget([old])
    done = follow(url, "prod", to=node, once=True)
    assert whole is not None and done is not None and done.commit == made
    assert done.received > whole.received / 2
    assert contents(node) == checked_out(repo, made, tmp_path / "out")
