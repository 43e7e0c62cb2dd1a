"""The loggers that programs in Python see, and what a server prints of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.serving.follower import Follower
from tests.cli.program import Mvc, imports
from tests.remote.kit.serving import serving, token, transport
from tests.server.moving import served_folder
from tests.waiting import until


def test_what_is_piped_imports_neither_logging_nor_rich(mvc: Mvc) -> None:
    mvc.commit(1.0)
    assert imports(("logging", "rich"), ["log", "--metrics"], mvc.folder) == "0 []"


def test_a_server_writes_a_line_for_each_request(tmp_path: Path) -> None:
    folder = served_folder(tmp_path / "served")
    with serving(folder) as server:
        transport(f"{server.url}/models", token(folder, "read")).head()
        until(lambda: "anna GET models head 200" in server.log, 10)


def test_programs_see_deployments_and_followers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import numpy as np

    with Repository.init(tmp_path) as repo, caplog.at_level(logging.INFO, "mvc"):
        made = repo.commit({"w": np.zeros(3)}, deploy="prod")
        with Follower(repo, "prod") as follower:
            follower.poll()
        repo.retract("HEAD", "prod", reason="a\nb")
    told = [(each.name, each.getMessage()) for each in caplog.records]
    short = made.id.short
    assert told == [
        ("mvc.deployments", f"deploy {short} prod"),
        ("mvc.serving", f"prod is {short}"),
        ("mvc.deployments", f"retract {short} prod"),
    ]
    assert caplog.records[-1].reason == r"a\nb"
