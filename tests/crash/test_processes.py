"""Real processes, each started on its own, that commit at once."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from mvc.api.repository import Repository
from mvc.ids import CommitId
from tests.crash.crowd import state_for
from tests.crash.state import check_arrays

PROJECT = Path(__file__).parents[2]


def start(root: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.child", str(root), name, str(count)]
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)


def acknowledged(output: str) -> list[tuple[CommitId, int]]:
    """(commit, step) of every complete line."""
    lines = [line.split() for line in output.split("\n")[:-1]]
    return [(CommitId.parse(id_), int(step)) for id_, step in lines]


def check_history(repo: Repository, told: dict[CommitId, tuple[str, int]]) -> None:
    """One line of versions that holds all that was told, each bit for bit."""
    history = [entry.commit.id for entry in repo.log()]
    assert set(told) <= set(history)
    for id_, (name, step) in told.items():
        check_arrays(repo.checkout(id_, path=f"{name}.safetensors"), state_for(name, step))


def all_at_once(root: Path, processes: int, commits: int) -> None:
    with Repository.init(root) as repo:
        first = repo.commit(state_for("first", 0)).id
    children = {name: start(root, name, commits) for name in map("p{}".format, range(processes))}
    told: dict[CommitId, tuple[str, int]] = {}
    for name, child in children.items():
        output, _ = child.communicate(timeout=300)
        assert child.returncode == 0
        told |= {id_: (name, step) for id_, step in acknowledged(output)}
    assert len(told) == processes * commits
    with Repository.open(root) as repo:
        check_history(repo, told)
        history = [entry.commit for entry in repo.log()]
        assert len(history) == len(told) + 1
        for child, parent in pairwise(history):
            assert child.parents == (parent.id,)
        assert history[-1].id == first
        last = repo.manifest(history[0].id)
        assert set(last.by_path) == {"model.safetensors", *(f"{n}.safetensors" for n in children)}
        for name in children:
            check_arrays(repo.checkout(path=f"{name}.safetensors"), state_for(name, commits - 1))
            assert len(repo.deployments(name)) == commits
        graph = repo.handle.store.graph
        tips = [c.id for n in children for c in last.by_path[f"{n}.safetensors"].contents]
        depths = [graph.path(id_).depth for id_ in tips]
        assert sum(depth > 0 for depth in depths) == processes  # the counters are in full
        assert max(depths) <= 12  # skip deltas, with the others' commits between
        assert repo.storage.fsck(full=True).problems == ()


def test_processes_that_commit_at_once_all_succeed(tmp_path: Path) -> None:
    all_at_once(tmp_path / "repo", 6, 8)
