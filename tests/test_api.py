"""The public Repository: loading into a live module, healing, results in a notebook."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import DamagedData, DoesNotFit, NotARepository
from mvc.repo.display import Log


@pytest.fixture
def repo(tmp_path: Path) -> mvc.Repository:
    return mvc.Repository.init(tmp_path / "repo")


def _net(width: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width))


def test_load_puts_a_version_into_a_live_module(repo: mvc.Repository) -> None:
    kept, live = _net(), _net()
    first = repo.commit(kept.state_dict(), deploy="prod")
    repo.commit(_net().state_dict())
    parameters = list(live.parameters())
    loaded = repo.load(live, rev=first.id)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert all(a is b for a, b in zip(parameters, live.parameters(), strict=True))
    for name, value in kept.state_dict().items():
        assert torch.equal(live.state_dict()[name], value)
    assert repo.load(_net(), target="prod") == loaded


def test_load_lists_what_does_not_fit_and_changes_nothing(repo: mvc.Repository) -> None:
    repo.commit(_net(3).state_dict())
    live = _net(4)
    before = {name: value.clone() for name, value in live.state_dict().items()}
    with pytest.raises(DoesNotFit, match=r"0.weight: float32 \(3, 2\).*float32 \(4, 2\).*0.bias"):
        repo.load(live, strict=False)
    with pytest.raises(DoesNotFit, match=r"0\.bias: the version lacks it"):
        repo.commit({"0.weight": torch.zeros(4, 2), "more": torch.zeros(1)})
        repo.load(live)
    assert all(torch.equal(before[name], value) for name, value in live.state_dict().items())
    loaded = repo.load(live, strict=False)
    assert loaded.unexpected == ("more",)
    assert "0.bias" in loaded.missing
    assert not live.state_dict()["0.weight"].any()


def test_load_takes_numpy_arrays(repo: mvc.Repository) -> None:
    repo.commit({"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)})
    live = torch.nn.Linear(2, 3)
    repo.load(live)
    assert live.weight.sum().item() == 6


def test_heal_a_repository_that_does_not_open(repo: mvc.Repository) -> None:
    repo.commit({"w": np.arange(9)})
    repo.close()
    (repo.root / ".mvc" / "format").write_bytes(b"gone")
    with pytest.raises(DamagedData):
        mvc.Repository.open(repo.root)
    done = mvc.Repository.heal(repo.root)
    assert "format" in [healed.kind for healed in done.healed]
    assert done.after.sound
    with mvc.Repository.open(repo.root) as again:
        assert again.checkout()["w"].tolist() == list(range(9))


def test_heal_needs_a_repository(tmp_path: Path) -> None:
    with pytest.raises(NotARepository):
        mvc.Repository.heal(tmp_path)


def test_the_log_is_a_list_that_is_read_as_far_as_needed(repo: mvc.Repository) -> None:
    for number in range(5):
        repo.commit({"w": np.full(3, number)}, message=f"number {number}")
    read: list[int] = []
    log = Log(read.append(i) or entry for i, entry in enumerate(repo.log()))  # type: ignore[func-returns-value]
    assert log[0].commit.message == "number 4"
    assert read == [0]
    assert [entry.commit.message for entry in log[1:3]] == ["number 3", "number 2"]
    assert read == [0, 1, 2]
    assert log[-1].commit.message == "number 0"
    assert len(log) == len(list(log)) == 5
    assert repo.log()[5:] == []
    with pytest.raises(IndexError):
        repo.log()[5]


def test_results_show_themselves(repo: mvc.Repository) -> None:
    first = repo.commit({"w": np.ones(3)}, message="<first>", metrics={"loss": 0.5}, deploy="prod")
    second = repo.commit({"w": np.zeros(3)})
    log, diff = repo.log(), repo.diff(first.id, second.id)
    assert first.id.short in repr(log)
    assert "loss=0.5" in repr(log)
    assert "&lt;first&gt;" in log._repr_html_()
    assert "<first>" not in log._repr_html_()
    assert "1 of 1 files differ" in repr(diff)
    for result in (diff, second):
        assert "model.safetensors" in result._repr_html_()
        assert "1 of 1" in result._repr_html_()


def test_times_are_accepted_alike(repo: mvc.Repository) -> None:
    repo.commit({"w": np.ones(3)}, time="2026-01-02T00:00Z")
    assert len(repo.log(since="2026-01-01", until="2026-01-03")) == 1
    assert len(repo.log(since=repo.time("2026-01-03"))) == 0
