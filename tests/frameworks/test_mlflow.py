"""MLflow runs say which version they began with, without a line of code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.frameworks.need import need

need("mlflow")

from mvc.frameworks.mlflow import VersionTags  # noqa: E402
from mvc.io.files import FileSystem  # noqa: E402
from mvc.repo.config import set_value, unset_value, user_file  # noqa: E402

PROGRAM = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
with mlflow.start_run() as run:
    pass
tags = mlflow.get_run(run.info.run_id).data.tags
print(json.dumps({k: v for k, v in tags.items() if k.startswith("mvc.")}))
print("torch" in sys.modules)
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MVC_MLFLOW_TAGS", raising=False)


@pytest.fixture
def repo(repo, monkeypatch):
    """It asks for tags."""
    monkeypatch.chdir(repo.root)
    ask(repo.root / ".mvc" / "config.yaml", "true")
    return repo


def ask(file, value, **options):
    set_value(FileSystem(), file, "mlflow.tags", value, **options)


def test_a_run_in_a_repository_has_the_tags(repo, tmp_path, monkeypatch):
    repo.commit({"w": torch.ones(2)})
    (repo.root / "src").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, (tmp_path / "runs").as_uri()],
        cwd=repo.root / "src",
        env={**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    tags, torch_loaded = done.stdout.splitlines()
    assert json.loads(tags) == {
        "mvc.commit": str(repo.find()),
        "mvc.branch": "main",
        "mvc.root": str(next(iter(repo.log())).commit.root),
    }
    assert torch_loaded == "False"


def test_where_head_is(repo):
    provider = VersionTags()
    assert provider.tags() == {"mvc.branch": "main"}
    first = repo.commit({"w": torch.ones(2)})
    repo.commit({"w": torch.zeros(2)})
    repo.checkout(str(first.id), force=True, to=repo.root)
    assert provider.tags() == {"mvc.commit": str(first.id), "mvc.root": str(first.root)}


def test_nothing_is_written_unless_it_is_asked_for(repo, monkeypatch, caplog):
    unset_value(FileSystem(), repo.root / ".mvc" / "config.yaml", "mlflow.tags")
    monkeypatch.setenv("MVC_NO_SETTING", "x")  # of another version of mvc, perhaps
    provider = VersionTags()
    assert not provider.tags()
    monkeypatch.setenv("MVC_MLFLOW_TAGS", "true")
    assert provider.tags()
    monkeypatch.delenv("MVC_MLFLOW_TAGS")
    ask(user_file(os.environ), "true", user=True)
    assert provider.tags()
    ask(repo.root / ".mvc" / "config.yaml", "false")
    assert not provider.tags()
    monkeypatch.setenv("MVC_MLFLOW_TAGS", "perhaps")
    assert not provider.tags() and "no tags" in caplog.text


def test_outside_of_a_repository(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    assert not VersionTags().tags() and not caplog.text


def test_a_repository_that_cannot_be_read_gives_a_warning(repo, caplog):
    repo.commit({"w": torch.ones(2)})
    (repo.root / ".mvc/format").write_text("nonsense")
    assert VersionTags().tags() == {}
    assert "no tags" in caplog.text
