from __future__ import annotations

from pathlib import Path

from mvc.api.repository import Repository
from tests import children

PROCESSES = 100


def test_many_processes_make_one_repository(tmp_path: Path) -> None:
    """The folder is absent, as where each rank of a training opens or makes the repository."""
    path = tmp_path / "runs/models"
    found = children.run("repo.makers", path, PROCESSES)
    assert (found["done"], found["failed"]) == (PROCESSES, 0)
    assert sorted(p.name for p in path.iterdir()) == [".mvc"]
    with Repository.open(path) as repo:
        names = {f"{number}.safetensors" for number in range(PROCESSES)}
        assert set(repo.manifest("HEAD").by_path) == names
        assert len(repo.log()) == PROCESSES
        assert repo.storage.fsck(full=True).sound
