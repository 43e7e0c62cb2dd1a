"""docs/backup.md: its script, run beside processes that commit and one that moves every pack."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from tests.crash.child import state_for
from tests.moving import move_every_pack
from tests.repo.working import tensors_of, write_model

DOCS = Path(__file__).parents[2] / "docs" / "backup.md"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (text,) = re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    path = tmp_path / "backup.sh"
    path.write_text(text)
    return path


def back_up(script: Path, root: Path, target: Path) -> None:
    subprocess.run(["sh", script, root, target], check=True, stderr=subprocess.DEVNULL, timeout=60)


def move_everything(root: Path) -> None:
    with Repository.open(root) as repo:
        move_every_pack(repo.context)


def start(root: Path, name: str, count: int) -> subprocess.Popen[str]:
    child = [sys.executable, "-m", "tests.crash.child", str(root), name, str(count)]
    return subprocess.Popen(child, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("commits, rounds", [(6, 3), pytest.param(150, 60, marks=pytest.mark.long)])
def test_backups_of_a_repository_in_use(
    tmp_path: Path, script: Path, commits: int, rounds: int
) -> None:
    root, target = tmp_path / "repo", tmp_path / "backup"
    with Repository.init(root) as repo:
        repo.commit(state_for("first", 0))
    mover = subprocess.Popen([sys.executable, "-m", "tests.repo.test_backup", str(root)])
    children = [start(root, name, commits) for name in ("one", "two")]
    try:
        done, moved = 0, False
        while done < rounds or not moved:
            done += 1
            assert mover.poll() is None, "maintenance failed"
            with Repository.open(root) as repo:
                acknowledged = {entry.id for entry in repo.log()}
                moved = any(each.entry.operation == "repack" for each in repo.oplog())
            back_up(script, root, target)
            with Repository.open(target) as repo:
                assert repo.storage.fsck(full=True).problems == ()
                assert acknowledged <= {entry.id for entry in repo.log()}
        for child in children:
            child.communicate(timeout=120)
            assert child.returncode == 0
        assert mover.poll() is None, "maintenance failed"
    finally:
        mover.kill()
        mover.wait()
        for child in children:
            child.kill()
            child.wait()
    back_up(script, root, target)
    with Repository.open(root) as repo, Repository.open(target) as copy:
        assert [e.id for e in copy.log()] == [e.id for e in repo.log()]
        assert copy.storage.fsck(full=True).sound and repo.storage.fsck(full=True).sound
        assert len(list(copy.log())) == 1 + 2 * commits


def test_restoring(tmp_path: Path, script: Path) -> None:
    root = tmp_path / "repo"
    with Repository.init(root) as repo:
        write_model(root / "m.safetensors", w=np.arange(9000, dtype=np.float32))
        made = repo.commit(root, deploy="prod")
    back_up(script, root, tmp_path / "backup")
    names = {p.name for p in (tmp_path / "backup" / ".mvc").iterdir()}
    assert names == {"config.yaml", "format", "journal", "packs"}
    restored = tmp_path / "restored"
    shutil.copytree(tmp_path / "backup", restored)
    with Repository.open(restored) as repo:
        repo.checkout("HEAD", force=True, to=repo.root)
        assert repo.live("prod").commit == made.id
    found = tensors_of(restored / "m.safetensors")
    assert found["w"].tobytes() == np.arange(9000, dtype=np.float32).tobytes()


def test_an_older_backup_is_brought_up_to_date(tmp_path: Path, script: Path) -> None:
    root, target = tmp_path / "repo", tmp_path / "backup"
    with Repository.init(root) as repo:
        repo.commit(state_for("one", 0))
    back_up(script, root, target)
    with Repository.open(target) as repo:
        assert len(list(repo.log())) == 1
    with Repository.open(root) as repo:
        repo.commit(state_for("one", 1))
    move_everything(root)
    back_up(script, root, target)
    with Repository.open(target) as repo:
        assert len(list(repo.log())) == 2
        assert repo.storage.fsck(full=True).sound
        repo.storage.gc()
        assert sorted(p.name for p in (target / ".mvc/packs").iterdir()) == sorted(
            p.name for p in (root / ".mvc/packs").iterdir()
        )


if __name__ == "__main__":
    while True:
        move_everything(Path(sys.argv[1]))
        time.sleep(0.2)
