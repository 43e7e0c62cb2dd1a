"""A killed merge: HEAD and the files are as before, or those of the merged version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mvc.api import Repository
from mvc.io.files import FileSystem
from mvc.testing import HookedFS, fresh_process, killed
from tests.counters import count
from tests.repo.checkout.test_together import held
from tests.repo.merge.test_merge import FIRST, full, two
from tests.seeds import draw

MODEL = "model.safetensors"


@pytest.mark.parametrize("points", [12, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("forward", [False, True])
def test_a_killed_merge_is_completed_or_never_was(
    tmp_path: Path, points: int, detached: bool, forward: bool
) -> None:
    first, root = tmp_path / "first", tmp_path / "models"
    with Repository.init(first) as repo:
        ours = {} if forward else {MODEL: {**FIRST, "a": full(1)}}
        two(repo, {MODEL: FIRST, "gone": b"0"}, ours, {MODEL: {**FIRST, "a": full(3)}, "new": b"1"})
        (repo.root / "gone").unlink()
        if detached:
            repo.checkout(repo.find("side") if forward else repo.find(), to=repo.root, force=True)
            repo.checkout(repo.find("main"), to=repo.root, force=True)
        else:
            repo.checkout("HEAD", to=repo.root, force=True)
        old = repo.find()

    def act(fs: FileSystem) -> None:
        fresh_process()
        with Repository.open(root, fs=fs) as repo:
            repo.merge("side", strategy="mean")

    shutil.copytree(first, root)
    before = held(root)
    calls: list[str] = []
    act(HookedFS(lambda _, op, path: calls.append(op)))
    with Repository.open(root) as repo:
        assert repo.status().clean and repo.find() != old
        assert repo.head().branch == (None if detached else "main")
    after = held(root)
    rng, total, kept, completed = draw("killed merges"), len(calls), 0, 0
    behind = range(total - total // 8, total + 1)  # once the new files are written
    chosen = {*rng.sample(range(1, total + 1), min(points, total)), *rng.sample(behind, 3)}
    for at in sorted(chosen):
        shutil.rmtree(root)
        shutil.copytree(first, root)
        killed(act, lambda number, op, path, at=at: number == at)
        fresh_process()
        with Repository.open(root) as repo:
            now = held(root)
            assert now in (before, after) and repo.status().clean, f"a mixture, call {at}"
            assert (repo.find() == old) == (now == before), f"call {at}"
            newest = next(iter(repo.operations())).entry
            if now == after:
                assert newest.operation == "merge" and repo.storage.fsck(full=True).sound
                assert forward or repo.version("HEAD").parents == (old, repo.find("side"))
            kept, completed = kept + (now == before), completed + (now == after)
            if now == before:  # and it can be done again
                assert repo.merge("side", strategy="mean").new is not None
    count("killed merges", calls=total, old_version=kept, new_version=completed)
    assert kept and completed
