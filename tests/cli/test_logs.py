"""``--log-format json``, and the loggers that programs in Python see."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.serving.follower import Follower
from tests.cli.program import Mvc, imports
from tests.remote.kit.serving import door, serving, token
from tests.server.moving import served_folder
from tests.waiting import until


def events(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("place", ["before", "behind"])
def test_what_is_not_data_is_json(mvc: Mvc, place: str) -> None:
    words = ["--log-format", "json"]
    given = [*words, "init", "new"] if place == "before" else ["init", "new", *words]
    done = mvc(*given)
    (event,) = events(done.err)
    assert done.out == ""
    assert event.keys() == {"time", "level", "logger", "message"}
    assert event["level"] == "info" and event["logger"] == "mvc.cli"
    assert event["message"].startswith("Initialized empty mvc repository in ")


def test_an_error_is_one_event(mvc: Mvc) -> None:
    (event,) = events(mvc("--log-format", "json", "show", "nothing\n", code=3).err)
    assert event["level"] == "error" and event["message"] and "hint" in event
    assert "\n" not in mvc("--log-format", "json", "show", "nothing", code=3).err.rstrip("\n")


def test_data_and_what_is_said_do_not_mix(mvc: Mvc) -> None:
    mvc.commit(1.0)
    done = mvc("--log-format", "json", "deploy", "HEAD", "prod", "--json")
    assert done.json["schema"] == "mvc.deploy/1"
    (event,) = events(done.err)
    assert event["logger"] == "mvc.deployments" and event["action"] == "deploy"
    assert event["target"] == "prod" and len(event["version"]) == 64
    assert mvc("-q", "--log-format", "json", "rollback", "prod", code=None).err.count("\n") == 1


def test_the_next_command_is_as_before(mvc: Mvc) -> None:
    mvc("--log-format", "json", "init", "one")
    done = mvc("init", "two")
    assert done.err.startswith("Initialized")
    assert not logging.getLogger("mvc").handlers


def test_a_word_that_is_no_format(mvc: Mvc) -> None:
    assert "'xml' is not one of 'text', 'json'" in mvc("--log-format", "xml", "log", code=2).err


def test_commands_that_log_nothing_import_no_logging(mvc: Mvc) -> None:
    mvc.commit(1.0)
    assert imports(("logging", "mvc.cli.logs"), ["log"], mvc.folder) == "0 []"


def test_a_server_writes_an_object_for_each_request(tmp_path: Path) -> None:
    folder = served_folder(tmp_path / "served")
    with serving(folder) as server:  # as lines, by default
        door(f"{server.url}/models", token(folder, "read")).head()
        until(lambda: "anna GET models head 200" in server.log, 10)
    with serving(folder, "--log-format", "json", told=json_url) as server:
        door(f"{server.url}/models", token(folder, "read", name="ada")).head()
        until(lambda: "mvc.server.access" in server.log, 10)
        found = [each for each in events(server.log) if each["logger"] == "mvc.server.access"]
    fields = {
        "token": "ada", "method": "GET", "repository": "models", "request": "head", "status": 200,
    }  # fmt: skip
    assert fields.items() <= found[-1].items()
    assert found[-1]["ms"] >= 0 and found[-1]["level"] == "info"


def json_url(log: str) -> str | None:
    for line in log.splitlines():
        text = json.loads(line)["message"]
        if text.startswith("serving "):
            return text.rpartition(" ")[2]
    return None


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
