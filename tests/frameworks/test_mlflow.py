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


@pytest.fixture
def repo(repo, monkeypatch):
    monkeypatch.chdir(repo.root)
    return repo


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
    assert provider.in_context()
    assert provider.tags() == {"mvc.branch": "main"}
    first = repo.commit({"w": torch.ones(2)})
    repo.commit({"w": torch.zeros(2)})
    repo.checkout(str(first.id), force=True, to=repo.root)
    assert provider.tags() == {"mvc.commit": str(first.id), "mvc.root": str(first.root)}


def test_outside_of_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not VersionTags().in_context()


def test_a_repository_that_cannot_be_read_gives_a_warning(repo, caplog):
    repo.commit({"w": torch.ones(2)})
    (repo.root / ".mvc/format").write_text("nonsense")
    provider = VersionTags()
    assert provider.in_context()
    assert provider.tags() == {}
    assert "no tags" in caplog.text
