"""kill -9 in the middle of lossy training: what was served is stored, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import mvc
from mvc.serving.reader import FileReader
from tests.training.child import digest
from tests.training.killed import lines_until_killed


@pytest.mark.parametrize("after", [1, 7, 20])
def test_what_was_served_is_stored(tmp_path: Path, after: int) -> None:
    folder, file = tmp_path / "repo", tmp_path / "served.safetensors"
    lines = lines_until_killed(
        "tests.training.lossy_child", folder, file,
        enough=lambda said: len(said) >= after, delay=0.002 * after,
    )  # fmt: skip
    served = {words[1]: words[2] for words in map(bytes.split, lines) if len(words) == 3}
    assert len(served) >= after
    with mvc.Repository.open(folder) as repo:
        log = [str(entry.id).encode() for entry in repo.log()][::-1]
        told = list(served)
        assert log[: len(told)] == told  # in order, none missing
        assert len(log) <= len(told) + 1  # one may be durable and not served yet
        for commit, state in repo.iter_versions(path="model.safetensors"):
            if (name := str(commit.id).encode()) in served:
                assert digest(state).encode() == served[name]
        live = FileReader(file).swap()
        assert live is not None and str(live.commit).encode() in log[len(told) - 1 :]
        assert digest(dict(live.state)) == digest(
            repo.checkout(live.commit, path="model.safetensors")
        )
        steps = [int(e.commit.message.split()[1]) for e in repo.log()][::-1]
        assert all(step % 3 for step in steps)  # every third was skipped, and left no trace
        assert repo.live("prod").commit == repo.find("HEAD")
