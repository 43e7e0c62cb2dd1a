"""iter_versions: every version once, in order, exact, at the price of one delta each."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import (
    DamagedData,
    StateForgotten,
    UnknownPath,
    UnknownRevision,
    UnknownTarget,
    WrongUsage,
)
from mvc.repo.commit.request import CommitOptions
from mvc.store.packs.reader import PackReader
from tests.training.runs import tensor_bits

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND


def history(
    folder: Path,
    count: int,
    *,
    pipeline: str = "lossless",
    interval: int | None = None,
    layout: str = "skip:4",
) -> tuple[mvc.Repository, list[dict[str, Any]]]:
    """Versions a second apart; three tensors, of which one never changes."""
    repo = mvc.Repository.init(folder)
    if interval is not None:
        repo.close()
        (folder / ".mvc/config.yaml").write_text(
            f"store:\n  reset_interval: {interval}\n  layout: {layout}\n"
        )
        repo = mvc.Repository.open(folder)
    random = np.random.default_rng(count)
    state: dict[str, Any] = {
        "a": random.standard_normal(700, np.float32),
        "b": random.standard_normal((30, 40)),
        "still": np.arange(50),
    }
    states = []
    for i in range(count):
        state = state | {
            "a": state["a"] + random.standard_normal(700, np.float32) / 1000,
            "b": state["b"] * 1.001,
        }
        states.append(state)
        repo.commit(state, options=CommitOptions(time=START + i * SECOND), pipeline=pipeline)
    return repo, states


def same(found: Any, expected: dict[str, Any]) -> bool:
    return list(found) == list(expected) and all(
        found[name].tobytes() == value.tobytes() and found[name].dtype == value.dtype
        for name, value in expected.items()
    )


@pytest.mark.parametrize("pipeline", ["lossless", "vsol", "none"])
def test_every_version_in_order(tmp_path: Path, pipeline: str) -> None:
    repo, states = history(tmp_path, 12, pipeline=pipeline, interval=5)
    found = list(repo.iter_versions())
    assert [version.time_ns for version, _ in found] == [START + i * SECOND for i in range(12)]
    for (version, state), expected in zip(found, states, strict=True):
        assert same(state, expected)
        assert same(repo.checkout(version.id), expected)
    repo.close()


def test_after_repack_to_other_reset_points(tmp_path: Path) -> None:
    repo, states = history(tmp_path, 14)
    repo.storage.repack(interval=4)
    repo.storage.forget("HEAD~6")
    repo.storage.gc(grace="0")
    found = list(repo.iter_versions(on_error="skip"))
    assert len(found) == 13
    assert all(same(s, e) for (_, s), e in zip(found, states[:7] + states[8:], strict=True))
    repo.close()


@pytest.mark.parametrize(("layout", "payloads"), [("chain", 1), ("skip:4", 2)])
def test_it_costs_a_payload_or_two_a_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, payloads: int
) -> None:
    """Not the whole chain for each of them."""
    count = 40
    repo, _ = history(tmp_path, count, interval=1000, layout=layout)
    read = 0
    payload = PackReader.payload

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal read
        read += 1
        return payload(*arguments, **options)

    monkeypatch.setattr(PackReader, "payload", counted)
    assert len(list(repo.iter_versions())) == count
    # Two tensors change, and a manifest each; the first version has two more objects.
    assert read <= 3 * payloads * count + 5
    once, read = read, 0
    for version, _ in repo.iter_versions():
        repo.checkout(version.id)
    assert read > (count * count if payloads == 1 else once)  # each by itself
    repo.close()


def test_bounds_and_keys(tmp_path: Path) -> None:
    repo, states = history(tmp_path, 6)
    found = list(repo.iter_versions(START + SECOND, START + 3 * SECOND, keys=["b"]))
    assert [v.time_ns - START for v, _ in found] == [SECOND, 2 * SECOND, 3 * SECOND]
    assert [list(s) for _, s in found] == [["b"]] * 3
    for (_, state), expected in zip(found, states[1:4], strict=True):
        assert state["b"].tobytes() == expected["b"].tobytes()
    assert len(list(repo.iter_versions(since=START + 4 * SECOND, keys=["a"]))) == 2
    assert len(list(repo.iter_versions(rev="HEAD~4"))) == 2
    assert list(repo.iter_versions(until=START - 1)) == []
    repo.close()


def test_by_deployment(tmp_path: Path) -> None:
    repo, states = history(tmp_path, 4)
    log = [entry.id for entry in repo.log()][::-1]
    for minute, which in enumerate([2, 0, 3, 2, 1]):
        repo.deploy(log[which], "prod", at=START + minute * 60 * SECOND)
    repo.retract(log[3], "prod")
    found = list(repo.iter_versions(target="prod"))
    assert [log.index(deployed.commit) for deployed, _ in found] == [2, 0, 2, 1]
    assert [d.time_ns for d, _ in found] == [START + m * 60 * SECOND for m in (0, 1, 3, 4)]
    assert all(same(state, states[log.index(d.commit)]) for d, state in found)
    late = list(repo.iter_versions(START + 60 * SECOND, START + 180 * SECOND, "prod"))
    assert [log.index(d.commit) for d, _ in late] == [0, 2]
    repo.close()


def test_what_the_caller_does_to_a_state_reaches_no_other(tmp_path: Path) -> None:
    repo, states = history(tmp_path, 8)
    for i, (_, state) in enumerate(repo.iter_versions()):
        assert same(state, states[i])
        for array in state.values():
            array[...] = 0
    kept = [state for _, state in repo.iter_versions()]
    kept[0]["still"][:] = 9
    assert all(same(state, expected) for state, expected in zip(kept[1:], states[1:], strict=True))
    repo.close()


def test_at_most_the_next_version_is_held_beside(tmp_path: Path) -> None:
    repo, _ = history(tmp_path, 8)
    alive: list[weakref.ref[Any]] = []
    most = 0
    for _, state in repo.iter_versions():
        alive.append(weakref.ref(state["a"]))
        del state
        gc.collect()
        most = max(most, sum(ref() is not None for ref in alive))
    assert most <= 1
    repo.close()


def test_leaving_early(tmp_path: Path) -> None:
    repo, states = history(tmp_path, 6)
    for _, state in repo.iter_versions():
        assert same(state, states[0])
        break
    walk = repo.iter_versions()
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    assert same(repo.checkout(), states[-1])
    repo.close()


def test_torch_files_and_models_that_change_their_shape(tmp_path: Path) -> None:
    repo = mvc.Repository.init(tmp_path)
    made = []
    for width in (3, 3, 5, 5, 4):
        state = {
            "w": torch.randn(width, 7), "b": torch.randn(width).to(torch.bfloat16),
            "n": torch.tensor(width),
        }  # fmt: skip
        made.append(state)
        repo.commit(state, states={"training.safetensors": {"step": len(made), "m": state["w"]}})
    found = [tensor_bits(s) for _, s in repo.iter_versions(path="model.safetensors")]
    assert found == [tensor_bits(s) for s in made]
    beside = [s for _, s in repo.iter_versions(path="training.safetensors")]
    assert [s["step"] for s in beside] == [1, 2, 3, 4, 5]
    single = [s["b"] for _, s in repo.iter_versions(path="model.safetensors", keys=["b"])]
    assert all(isinstance(b, torch.Tensor) and b.dtype == torch.bfloat16 for b in single)
    torch.save(made[0], tmp_path / "model.pt")
    repo.commit(["model.pt"], files=mvc.FileOptions(cwd=tmp_path))
    last = list(repo.iter_versions(path="model.pt", on_error="skip"))
    assert len(last) == 1 and tensor_bits(last[0][1]) == tensor_bits(made[0])
    repo.close()


def test_a_tensor_of_several_pieces(tmp_path: Path) -> None:
    repo = mvc.Repository.init(tmp_path)
    big = np.zeros(9 << 20, np.float32)  # 36 MiB
    for i in range(3):
        big[[0, 5_000_000, -1]] = i
        repo.commit({"big": big, "small": big[:3].copy()})
    for i, (_, state) in enumerate(repo.iter_versions()):
        assert state["big"][[0, 5_000_000, -1]].tolist() == [i] * 3
        assert state["small"][0] == i
    repo.close()


def damage(repo: mvc.Repository, folder: Path, which: int, key: str) -> None:
    """Flips a bit in every payload that gives a version's tensor."""
    commit = [entry.id for entry in repo.log()][::-1][which]
    tensor = next(t for t in repo.manifest(commit).entries[0].tensors if t.key == key)
    for step in repo.handle.store.graph.codings(tensor.id):
        at = step.offset + step.header.body_at + step.member.at + step.member.stored // 2
        path = folder / f".mvc/packs/{step.pack:08d}.pack"
        data = bytearray(path.read_bytes())
        data[at] ^= 0x40
        path.write_bytes(data)


def test_damage_is_named_and_the_rest_stays_readable(tmp_path: Path) -> None:
    repo, states = history(tmp_path, 9, interval=4)
    log = [entry.id for entry in repo.log()][::-1]
    repo.close()
    repo = mvc.Repository.open(tmp_path)
    damage(repo, tmp_path, 4, "a")
    damage(repo, tmp_path, 5, "a")  # the other way to 4
    repo.close()
    repo = mvc.Repository.open(tmp_path)
    seen = []
    with pytest.raises(DamagedData, match=log[4].short):
        for version, state in repo.iter_versions():
            assert same(state, states[len(seen)])
            seen.append(version.id)
    assert seen == log[:4]
    rest = [(v, s) for v, s in repo.iter_versions(on_error="yield")]
    errors = [i for i, (_, s) in enumerate(rest) if isinstance(s, DamagedData)]
    assert [v.id for v, _ in rest] == log
    assert errors == [4]  # 5 is reached from 8
    for i, (version, state) in enumerate(rest):
        if i in errors:
            with pytest.raises(DamagedData):
                repo.checkout(version.id)
        else:
            assert same(state, states[i])
    skipped = [v.id for v, _ in repo.iter_versions(on_error="skip")]
    assert skipped == [id_ for i, id_ in enumerate(log) if i not in errors]
    repo.close()


def test_forgotten_versions(tmp_path: Path) -> None:
    repo, states = history(tmp_path, 5)
    repo.storage.forget("HEAD~2")
    with pytest.raises(StateForgotten):
        list(repo.iter_versions())
    found = [s for _, s in repo.iter_versions(on_error="yield")]
    assert isinstance(found[2], StateForgotten)
    assert all(same(found[i], states[i]) for i in (0, 1, 3, 4))
    repo.close()


def test_wrong_usage_comes_at_once(tmp_path: Path) -> None:
    repo = mvc.Repository.init(tmp_path)
    with pytest.raises(UnknownRevision):
        repo.iter_versions()
    repo.commit({"w": np.ones(3)})
    with pytest.raises(UnknownTarget):
        repo.iter_versions(target="prod")
    with pytest.raises(WrongUsage, match="on_error"):
        repo.iter_versions(on_error="ignore")
    with pytest.raises(WrongUsage, match="since"):
        repo.iter_versions(since=5, until=4)
    with pytest.raises(UnknownPath, match="no tensor v"):
        list(repo.iter_versions(keys=["v"]))
    with pytest.raises(UnknownPath, match=r"version .*no path other"):
        list(repo.iter_versions(path="other"))
    repo.close()


def test_another_process_may_collect_meanwhile(tmp_path: Path) -> None:
    repo, states = history(tmp_path, 10)
    walk = repo.iter_versions()
    assert same(next(walk)[1], states[0])
    with mvc.Repository.open(tmp_path) as other:
        other.storage.repack(interval=2)
        other.storage.gc(grace="0")
    assert all(same(state, states[i]) for i, (_, state) in enumerate(walk, 1))
    repo.close()
