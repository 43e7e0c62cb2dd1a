"""deploy.hook: the user's own command after a deployment, which stands whatever it does."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import InvalidConfig
from mvc.io.files import FileSystem
from mvc.repo.config import set_value, user_file
from mvc.repo.hook import HookFailed
from tests.cli.program import Mvc

FACTS = (
    *("action", "target", "version", "live", "previous", "time"),
    *("author", "reason", "repository"),
)
VALUE = {"w": np.ones(5, np.float32)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("MVC_USER_NAME", "ada")


def hook(command: str, seconds: float = 60) -> None:
    settings = {"deploy.hook": command, "deploy.hook_timeout": str(seconds)}
    for key, value in settings.items():
        set_value(FileSystem(), user_file(os.environ), key, value, user=True)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """What the hook was told: a line of JSON a call, and the variables as another."""
    path = tmp_path / "told"
    names = [
        "ACTION",
        "TARGET",
        "VERSION",
        "LIVE",
        "PREVIOUS",
        "TIME",
        "AUTHOR",
        "REASON",
        "REPOSITORY",
    ]
    said = "|".join(f"$DEPLOY_{name}" for name in names)
    hook(f'{{ cat; echo; printf "%s\\n" "{said}"; pwd; }} >> {path}')
    return path


def calls(told: Path) -> list[dict[str, str]]:
    lines = told.read_text().splitlines() if told.exists() else []
    found = []
    for i in range(0, len(lines), 3):
        facts = json.loads(lines[i])
        assert facts.pop("schema") == "mvc.hook/1"
        order = [
            "action",
            "target",
            "version",
            "live",
            "previous",
            "time",
            "author",
            "reason",
            "repository",
        ]
        assert lines[i + 1] == "|".join(facts[name] or "" for name in order)
        assert lines[i + 2] == os.environ["HOME"] and len(facts) == len(order)
        found.append(facts)
    told.unlink(missing_ok=True)
    return found


def test_it_is_told_what_went_live_after_it_is_durable(repo: mvc.Repository, told: Path) -> None:
    first = repo.commit(VALUE)
    assert calls(told) == []
    deployed = repo.deploy(first.id, "prod", reason="the first")
    (facts,) = calls(told)
    assert facts == {
        "action": "deploy",
        "repository": str(repo.root),
        "target": "prod",
        "version": str(first.id),
        "live": str(first.id),
        "previous": None,
        "time": facts["time"],
        "author": deployed.author,
        "reason": "the first",
    }
    assert repo.time(facts["time"]) == deployed.time_ns
    second = repo.commit({"w": np.zeros(5)}, deploy="prod")
    (facts,) = calls(told)
    assert (facts["action"], facts["version"]) == ("deploy", str(second.id))
    assert (facts["live"], facts["previous"]) == (str(second.id), str(first.id))
    repo.rollback("prod", reason="wrong\nin two lines")
    repo.retract(None, "prod", reason="not so wrong")
    back, retracted = calls_with_line_breaks(told)
    assert (back["action"], back["version"], back["live"]) == ("rollback", *[str(first.id)] * 2)
    assert back["previous"] == str(second.id)
    assert (retracted["action"], retracted["version"]) == ("retract", str(first.id))
    assert (retracted["live"], retracted["previous"]) == (str(second.id), str(first.id))
    assert retracted["reason"] == "not so wrong"
    repo.deploy(first.id, "prod", at="2020-01-01T00:00Z")  # late: something else stays live
    (facts,) = calls(told)
    assert (facts["version"], facts["live"]) == (str(first.id), str(second.id))


def calls_with_line_breaks(told: Path) -> list[dict[str, str]]:
    """As ``calls``; texts of people are on one line in the variables."""
    lines = told.read_text().splitlines()
    assert "wrong\\nin two lines" in lines[1]
    told.unlink()
    return [json.loads(line) for line in lines[::3]]


def test_a_recorder_runs_it(repo: mvc.Repository, told: Path) -> None:
    with mvc.Recorder(repo, torch.nn.Linear(2, 2), deploy="prod") as recorder:
        for _ in range(2):
            recorder.step(wait=True)
    assert [facts["target"] for facts in calls(told)] == ["prod", "prod"]


def test_the_command_line_runs_it(
    repo: mvc.Repository, told: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    repo.commit(VALUE)
    repo.commit({"w": np.zeros(5)})
    monkeypatch.chdir(repo.root)
    mvc_ = Mvc(repo.root, capsys)
    mvc_("deploy", "HEAD", "prod")
    mvc_("deploy", "HEAD~1", "prod", "--json")
    mvc_("rollback", "prod")
    assert [facts["action"] for facts in calls(told)] == ["deploy", "deploy", "rollback"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("exit 7", "failed with exit status 7"),
        ("kill -9 $$", "was killed by signal 9 (Killed)"),
        ("sleep 300 & sleep 300", "took longer than 0.5 s and was killed"),
        ("trap '' TERM INT; while :; do :; done", "took longer than 0.5 s and was killed"),
    ],
)
def test_the_deployment_stands_and_one_line_says_so(
    repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    command: str, problem: str,
) -> None:  # fmt: skip
    hook(command, 0.5)
    made = repo.commit(VALUE)
    began = time.monotonic()
    with pytest.warns(HookFailed) as caught:
        deployed = repo.deploy(made.id, "prod")
    assert time.monotonic() - began < 60
    line = f"{made.id.short} on prod is recorded, but deploy.hook {problem}"
    assert [str(each.message) for each in caught] == [line]
    assert caught[0].filename == __file__
    assert repo.live("prod").deployment == deployed
    monkeypatch.chdir(repo.root)
    assert Mvc(repo.root, capsys)("deploy", "HEAD", "edge").err == (
        f"mvc: warning: {line}\n".replace("prod", "edge") + "mvc: warning: edge is a new target "
        f"('mvc deploy --retract {made.id.short} edge' withdraws this)\n"
    )
    assert repo.live("edge").commit == made.id


def test_what_it_started_ends_with_it(repo: mvc.Repository, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hook(f"sleep 300 & echo $! > {pids}; (sleep 300 & echo $! >> {pids}; wait); wait", 1)
    made = repo.commit(VALUE)
    with pytest.warns(HookFailed):
        repo.deploy(made.id, "prod")
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    deadline = time.monotonic() + 30
    while any(is_alive(pid) for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_what_it_prints_is_no_data_of_a_command(repo: mvc.Repository, tmp_path: Path) -> None:
    import subprocess

    repo.commit(VALUE)
    hook("echo to stdout; echo to stderr >&2")
    done = subprocess.run(
        [sys.executable, "-m", "mvc", "-C", str(repo.root), "deploy", "HEAD", "prod", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["deployment"]["target"] == "prod"
    assert done.stderr == "to stdout\nto stderr\n"


def test_a_hook_that_deploys_runs_no_hook(repo: mvc.Repository, tmp_path: Path) -> None:
    made = repo.commit(VALUE)
    count = tmp_path / "count"
    program = f"{sys.executable} -m mvc -C {repo.root}"
    hook(f"echo >> {count}; {program} deploy $DEPLOY_VERSION mirror")
    repo.deploy(made.id, "prod")
    assert count.read_text() == "\n" and repo.live("mirror").commit == made.id


def test_names_of_a_ci_system_do_not_switch_it_off(
    repo: mvc.Repository, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_ACTION", "release")
    monkeypatch.setenv("DEPLOY_SCHEMA", "public")
    repo.commit(VALUE, deploy="prod")
    assert len(calls(told)) == 1


def test_it_takes_no_file_of_the_repository_for_its_own(
    repo: mvc.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.root / "json.py").write_text(f"open('{tmp_path}/PWNED', 'w')\n")
    hook(f"{sys.executable} -c 'import json'; pwd > {tmp_path}/where")
    repo.commit(VALUE, deploy="prod")
    assert not (tmp_path / "PWNED").exists()
    assert (tmp_path / "where").read_text() == f"{tmp_path}/user\n"
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    repo.deploy("HEAD", "prod")
    assert (tmp_path / "where").read_text() == "/\n"


def test_an_import_runs_no_hook(repo: mvc.Repository, told: Path, tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"model-{i}.npy", np.full(5, i))
    mvc.import_checkpoints(repo, [tmp_path / f"model-{i}.npy" for i in range(3)], deploy="prod")
    assert len(repo.deployments("prod")) == 3 and calls(told) == []


def test_a_repository_cannot_set_it(
    repo: mvc.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(repo.root)
    refused = Mvc(repo.root, capsys)("config", "deploy.hook", f"touch {tmp_path}/ran", code=3).err
    assert refused.startswith(
        "mvc: deploy.hook is a personal setting, which a repository cannot set"
    )
    assert "hint: set it with 'mvc config --user deploy.hook ...'" in refused
    for setting in (f"hook: touch {tmp_path}/ran", "hook_timeout: 3"):
        (repo.root / ".mvc/config.yaml").write_text(f"deploy:\n  {setting}\n")
        with pytest.raises(InvalidConfig, match="is a personal setting"):
            mvc.Repository.open(repo.root)
    repo.commit(VALUE, deploy="prod")  # opened before
    assert not (tmp_path / "ran").exists()


def test_the_environment_can_set_it(
    repo: mvc.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVC_DEPLOY_HOOK", f"touch {tmp_path}/ran")
    repo.commit(VALUE, deploy="prod")
    assert (tmp_path / "ran").exists()


def test_settings_that_cannot_be_read_do_not_stop_a_deployment(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    file = user_file(os.environ)
    file.parent.mkdir(parents=True)
    file.write_text("deploy:\n  hock: true\n")
    with pytest.warns(HookFailed, match=r"deploy.hook was not run: .*sets deploy.hock"):
        made = repo.commit(VALUE, deploy="prod")
    assert repo.live("prod").commit == made.id
    file.write_text("deploy:\n  hook: exit 1\n")
    file.chmod(0o666)
    with pytest.warns(HookFailed, match=r"was not run: .* is ignored as unsafe"):
        repo.deploy(made.id, "prod")


def test_texts_that_no_variable_can_hold(repo: mvc.Repository, tmp_path: Path) -> None:
    long = "because " * 20_000
    told = tmp_path / "told"
    hook(f'cat > {told}; printf %s "$DEPLOY_REASON" > {told}.reason')
    made = repo.commit(VALUE)
    with warnings.catch_warnings(action="error"):
        repo.deploy(made.id, "prod", reason=long[:1000])
    assert json.loads(told.read_text())["reason"] == long[:1000]
    assert Path(f"{told}.reason").read_text() == long[:1000]
