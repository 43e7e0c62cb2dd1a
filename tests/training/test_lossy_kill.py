"""kill -9 in the middle of lossy training: what was served is stored, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import mvc
from mvc.errors import UnknownRevision
from mvc.serving.reader import FileReader
from mvc.state import StateFile
from tests.training.child import digest
from tests.training.killed import lines_until_killed


@pytest.mark.parametrize("after", [1, 7, 20])
def test_what_was_served_is_stored(tmp_path: Path, after: int) -> None:
    folder, file = tmp_path / "repo", tmp_path / "served.safetensors"
    lines = lines_until_killed(
        "tests.training.lossy_child", folder, file,
        enough=lambda said: len(said) >= after, delay=0.002 * after,
    )  # fmt: skip
    served = {words[1]: words[2] for words in map(bytes.split, lines) if len(words) == 4}
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


@pytest.mark.parametrize("after", [1, 9])
def test_served_first_and_killed_anywhere(tmp_path: Path, after: int) -> None:
    """All that was served is stored, but for the last version at most; nothing else is."""
    lines = lines_until_killed(
        "tests.training.lossy_child", tmp_path / "repo", tmp_path / "served.safetensors", "first",
        enough=lambda said: len(said) >= after, delay=0.003 * after,
    )  # fmt: skip
    served = [words[1:] for words in map(bytes.split, lines) if len(words) == 4]
    with mvc.Repository.open(tmp_path / "repo") as repo:
        log = list(repo.log())[::-1] if served[1:] else []
        times = {d.commit: d.time_ns for d in repo.deployments("prod")} if log else {}
        assert len(served) - 1 <= len(log) <= len(served) + 1
        for entry, (commit, bits, moment) in zip(log, served, strict=False):
            assert str(entry.id).encode() == commit
            state = repo.checkout(entry.id, path="model.safetensors")
            assert digest(state).encode() == bits
            assert times[entry.id] == int(moment)


def test_killed_between_serving_and_storing(tmp_path: Path) -> None:
    """What the page says: the file has a version that nobody knows, and the one before is live."""
    folder, file = tmp_path / "repo", tmp_path / "served.safetensors"
    lines = lines_until_killed(
        "tests.training.lossy_child", folder, file, "first", 3, enough=lambda said: len(said) >= 3
    )
    *stored, lost = [(w[1].decode(), w[2].decode(), int(w[3])) for w in map(bytes.split, lines)]
    live = FileReader(file).swap()
    assert live is not None and (str(live.commit), digest(dict(live.state))) == lost[:2]
    with mvc.Repository.open(folder) as repo:
        assert [str(entry.id) for entry in repo.log()][::-1] == [each[0] for each in stored]
        with pytest.raises(UnknownRevision):
            repo.find(lost[0])
        assert [d.time_ns for d in repo.deployments("prod")] == [each[2] for each in stored]
        for moment in (lost[2], None):
            assert str(repo.live("prod", at=moment).commit) == stored[-1][0]
        assert str(repo.live("prod", at=stored[1][2] - 1).commit) == stored[0][0]
        assert repo.storage.fsck(full=True).sound
        # The file still has the weights: they can be stored with the time at which they went live.
        made = repo.commit(
            {"model.safetensors": StateFile.of(live.state)}, deploy="prod",
            options=mvc.CommitOptions(at=lost[2]),
        )  # fmt: skip
        assert repo.live("prod", at=lost[2]).commit == made.id
        assert digest(repo.checkout(made.id, path="model.safetensors")) == lost[1]
