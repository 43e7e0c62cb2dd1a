"""The public Repository: loading into a live module, healing, results in a notebook."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.api import Gone
from mvc.errors import DamagedData, DoesNotFit, NotARepository, WrongUsage
from mvc.maintenance.forget import preview
from mvc.repo.commit.request import CommitOptions
from mvc.repo.history.log import Log
from mvc.repo.worktree.identify import earlier

STATE = {"w": np.arange(6, dtype=np.float32)}


def _net(width: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width))


def test_load_puts_a_version_into_a_live_module(repo: mvc.Repository) -> None:
    kept, live = _net(), _net()
    first = repo.commit(kept.state_dict(), deploy="prod")
    repo.commit(_net().state_dict())
    parameters = list(live.parameters())
    loaded = mvc.load(repo, live, rev=first.id)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert all(a is b for a, b in zip(parameters, live.parameters(), strict=True))
    for name, value in kept.state_dict().items():
        assert torch.equal(live.state_dict()[name], value)
    assert mvc.load(repo, _net(), target="prod") == loaded


def test_load_lists_what_does_not_fit_and_changes_nothing(repo: mvc.Repository) -> None:
    repo.commit(_net(3).state_dict())
    live = _net(4)
    before = {name: value.clone() for name, value in live.state_dict().items()}
    with pytest.raises(DoesNotFit, match=r"0.weight: float32 \(3, 2\).*float32 \(4, 2\).*0.bias"):
        mvc.load(repo, live, strict=False)
    with pytest.raises(DoesNotFit, match=r"0\.bias: the version lacks it"):
        repo.commit({"0.weight": torch.zeros(4, 2), "more": torch.zeros(1)})
        mvc.load(repo, live)
    assert all(torch.equal(before[name], value) for name, value in live.state_dict().items())
    loaded = mvc.load(repo, live, strict=False)
    assert loaded.unexpected == ("more",)
    assert "0.bias" in loaded.missing
    assert not live.state_dict()["0.weight"].any()


def test_load_names_the_parts_of_a_checkpoint(repo: mvc.Repository) -> None:
    live = _net()
    optimizer = torch.optim.Adam(live.parameters())
    repo.commit({"net": live.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
    for strict in (True, False):
        with pytest.raises(DoesNotFit, match="net, optimizer") as caught:
            mvc.load(repo, live, strict=strict)
        assert "load_state_dict" in str(caught.value.hint)


def test_load_takes_numpy_arrays(repo: mvc.Repository) -> None:
    repo.commit({"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)})
    live = torch.nn.Linear(2, 3)
    mvc.load(repo, live)
    assert live.weight.sum().item() == 6


def test_heal_a_repository_that_does_not_open(repo: mvc.Repository) -> None:
    repo.commit({"w": np.arange(9)})
    repo.close()
    (repo.root / ".mvc" / "format").write_bytes(b"gone")
    with pytest.raises(DamagedData):
        mvc.Repository.open(repo.root)
    done = mvc.heal(repo.root)
    assert "format" in [healed.kind for healed in done.healed]
    assert done.after.sound
    with mvc.Repository.open(repo.root) as again:
        assert again.checkout()["w"].tolist() == list(range(9))


def test_heal_needs_a_repository(tmp_path: Path) -> None:
    with pytest.raises(NotARepository):
        mvc.heal(tmp_path)


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
    assert "1 of 1 files differ" in repr(diff)


def test_times_are_accepted_alike(repo: mvc.Repository) -> None:
    repo.commit({"w": np.ones(3)}, options=CommitOptions(time="2026-01-02T00:00Z"))
    assert len(repo.log("HEAD", mvc.LogOptions(since="2026-01-01", until="2026-01-03"))) == 1
    assert len(repo.log("HEAD", mvc.LogOptions(since=repo.time("2026-01-03")))) == 0


def test_several_states_are_one_version(repo: mvc.Repository) -> None:
    states = {"a.safetensors": {"w": np.ones(3)}, "model.safetensors": {"w": np.zeros(3)}}
    made = repo.commit(states=states)
    assert set(made.entries) == set(states)
    assert made.state is states["model.safetensors"]
    more = repo.commit({"w": np.ones(2)}, path="b.safetensors", states=states)
    assert set(more.entries) == {*states, "b.safetensors"}
    assert repo.checkout(path="a.safetensors")["w"].tolist() == [1, 1, 1]
    with pytest.raises(WrongUsage, match="named twice"):
        repo.commit({"w": np.ones(2)}, states=states)


def test_a_lossy_pipeline_reduces_one_of_several_states(repo: mvc.Repository) -> None:
    lossy = "xor | lsb:16 | planes | zstd:1"
    rng = np.random.default_rng(1)
    given = {name: {"w": rng.normal(size=99).astype(np.float32)} for name in ("a.st", "b.st")}
    repo.commit(states=given, path="a.st")
    moved = {name: {"w": state["w"] * 1.01} for name, state in given.items()}
    made = repo.commit(states=moved, path="a.st", pipeline=lossy)
    assert made.state["w"].tobytes() == repo.checkout(path="a.st")["w"].tobytes()
    assert made.state["w"].tobytes() != moved["a.st"]["w"].tobytes()
    assert repo.checkout(path="b.st")["w"].tobytes() == moved["b.st"]["w"].tobytes()
    with pytest.raises(WrongUsage, match="but there is none"):
        repo.commit(states=moved, pipeline=lossy)


def test_a_recorder_opens_the_public_repository(repo: mvc.Repository) -> None:
    model = _net()
    with mvc.Recorder(repo.root, model) as recorder:
        recorder.step(wait=True)
        opened = recorder.repo
        assert isinstance(opened, mvc.Repository)
        assert not mvc.load(opened, model).missing


def test_names_and_versions(repo: mvc.Repository) -> None:
    first = repo.commit({"w": np.arange(3)}, message="first", deploy="prod")
    second = repo.commit({"w": np.ones(3)})
    repo.branch("old", first.id)
    repo.rename_branch("old", "older")
    repo.tag("v1", first.id)
    assert repo.delete_ref("branch", "older").commit == first.id
    assert repo.delete_ref("tag", "v1").commit == first.id
    assert (repo.head().branch, repo.head().commit) == ("main", second.id)
    assert repo.version(first.id).message == "first"
    assert repo.targets() == ["prod"]
    assert [d.target for d in repo.deployments(rev=first.id)] == ["prod"]
    assert earlier(repo.handle.store, first.entries["model.safetensors"]) == first.id
    (entry,) = repo.manifest(first.id).entries
    file = repo.open_file(first.id, entry.path)
    assert file.tensor_bytes(entry.tensors[0]) == np.arange(3).tobytes()
    assert repo.tracked_name(repo.root / "a" / "b.pt") == "a/b.pt"
    assert not isinstance(repo.availability(first.id), Gone)
    assert not repo.gaps
    assert repo.config.get("init.branch") == "main"
    chosen = repo.storage.forget(first.id, dry_run=True)
    assert preview(repo.handle.store, repo.handle.config, chosen).tensors == 1


def test_a_report_of_versions_without_tensors(repo: mvc.Repository) -> None:
    for text in "abc":
        (repo.root / "config.json").write_text(text)
        repo.commit([repo.root / "config.json"])
    mvc.write_report(repo, repo.root / "report.html")
    assert "</html>" in (repo.root / "report.html").read_text()


# -- tables of pandas --------------------------------------------------------------------------


def test_the_log_as_a_table_of_pandas(repo: mvc.Repository) -> None:
    pandas = pytest.importorskip("pandas")
    for i in range(3):
        repo.commit(
            {"w": np.full(3, i)}, message=f"step {i}", metrics={"acc": i / 4},
            params={"lr": 10.0**-i, "data": "mnist"} if i else {},
            deploy="prod" if i == 1 else None,
        )  # fmt: skip
    table = repo.log().to_pandas()
    assert list(table["metrics.acc"]) == [0.5, 0.25, 0.0]
    assert table["params.lr"].dtype == float and table["params.lr"].isna().tolist() == [0, 0, 1]
    assert table["params.data"].tolist()[:2] == ["mnist", "mnist"]
    assert table["deployed"].tolist() == [[], ["prod"], []]
    assert str(table["time"].dt.tz) == "UTC"
    assert [int(t.value) for t in table["time"]] == [e.commit.time_ns for e in repo.log()]
    assert table["version"][0] == str(repo.find())
    assert isinstance(repo.log("HEAD..HEAD").to_pandas(), pandas.DataFrame)


def test_without_pandas_the_error_says_so(
    repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit(STATE)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mvc.MvcError, match="to_pandas needs pandas") as caught:
        repo.log().to_pandas()
    assert "pip install" in str(caught.value.hint)


def test_the_time_of_a_deployment_is_a_datetime(repo: mvc.Repository) -> None:
    repo.commit({"w": np.ones(3)})
    for at in ("2026-11-20T10:00:00.123456Z", "1969-12-31T23:59:59Z", "2200-01-01T00:00Z"):
        time = repo.deploy("HEAD", "prod", at=at).time
        assert time.utcoffset() is not None
        assert time == datetime.fromisoformat(at)
        assert repo.time(time) == repo.time(at)
