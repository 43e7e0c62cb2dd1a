from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.repo.commit.request import CommitOptions
from mvc.store.recovery.rates import Rates
from tests.repo.working import write_model


def test_an_empty_repository(repo: Repository) -> None:
    found = repo.storage.stats()
    assert (found.versions, found.raw_bytes, found.ratio, found.deltas_worst) == (0, 0, 0.0, 0)
    assert found.bytes["journal"] > 0


def test_a_chain_of_versions(repo: Repository) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((200, 100)).astype(np.float32)
    fixed = rng.standard_normal(500).astype(np.float32)
    size = 0
    path = repo.root / "m.safetensors"
    for i in range(5):
        weights = weights + rng.standard_normal(weights.shape).astype(np.float32) * 1e-5
        write_model(path, layers=0, w=weights, fixed=fixed)
        size += path.stat().st_size
        repo.commit(path, deploy="prod" if i % 2 else None)
    repo.branch("side")
    repo.tag("v1")
    found = repo.storage.stats()
    assert (found.versions, found.tensors, found.raw_bytes) == (5, 6, size)
    assert (found.deployments, found.targets, found.branches, found.tags) == (2, 1, 2, 1)
    assert (found.deltas_worst, found.reset_points) == (3, 1)
    assert found.deltas_mean == pytest.approx(7 / 5)  # 0 1 2 3 1
    assert 0 < found.recovery_mean < found.recovery_worst
    assert found.recovery_worst_commit == repo.find("HEAD~")
    assert found.bytes["full"] > weights.nbytes * 0.8
    assert 0 < found.bytes["delta"] < found.bytes["full"] * 4
    packs = sum(p.stat().st_size for p in (repo.root / ".mvc" / "packs").iterdir())
    in_packs = sum(found.bytes[kind] for kind in ("full", "delta", "metadata"))
    assert packs - in_packs == len(list((repo.root / ".mvc" / "packs").iterdir())) * 8
    assert found.bytes["journal"] == (repo.root / ".mvc" / "journal").stat().st_size
    assert found.stored_bytes == sum(found.bytes.values())
    assert found.ratio == pytest.approx(found.stored_bytes / size)


def test_files_that_are_flushed_at_a_time_count_as_one_flush(repo: Repository) -> None:
    (repo.root / "0.txt").write_text("a file")
    repo.commit(repo.root / "0.txt")
    one = repo.storage.stats().recovery_worst
    for i in range(320):
        (repo.root / f"{i}.txt").write_text(f"file {i}")
    repo.commit(repo.root)
    assert 5e-3 < one < 0.1
    assert 320 / 16 * 5e-3 < repo.storage.stats().recovery_worst < 320 * 2e-3


def test_stats_and_repack_count_the_same_deltas(repo: Repository) -> None:
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(5000).astype(np.float32) for name in "abc"}
    for i in range(7):
        for name in "abc"[: 1 + i % 3]:  # chains of different lengths
            tensors[name] = tensors[name] + rng.standard_normal(5000).astype(np.float32) * 1e-5
        repo.commit(
            {name: values.copy() for name, values in tensors.items()},
            options=CommitOptions(reset_point=i == 4),
        )
    found, planned = (
        repo.storage.stats(),
        repo.storage.repack(interval=100, dry_run=True).plan.before,
    )
    assert found.deltas_worst == planned.worst_deltas > 1
    assert found.deltas_mean == pytest.approx(planned.mean_deltas)
    by_hand = [each.deltas for each in repo.storage.by_version()[1].values()]
    assert found.deltas_mean == pytest.approx(sum(by_hand) / len(by_hand))


def test_reset_points_and_whole_model_pipelines(repo: Repository) -> None:
    path = repo.root / "m.safetensors"
    for seed in range(3):
        write_model(path, seed=seed)
        repo.commit(path, pipeline="vsol", options=CommitOptions(reset_point=seed == 2))
    found = repo.storage.stats()
    assert found.versions == 3
    assert found.reset_points >= 2
    assert sum(found.bytes[kind] for kind in ("full", "delta")) < 3 * path.stat().st_size


def test_figures_of_each_version(repo: Repository) -> None:
    path = repo.root / "m.safetensors"
    ids = []
    weights = np.random.default_rng(0).standard_normal((100, 100)).astype(np.float32)
    for i in range(6):
        weights = weights + np.float32(1e-5 * (i + 1))
        write_model(path, layers=0, w=weights)
        ids.append(repo.commit(path, options=CommitOptions(reset_point=i == 3)).id)
    repo.tag("v1")  # an operation without a version
    total, found = repo.storage.by_version()
    for kind in ("full", "delta", "metadata"):
        assert sum(each.bytes[kind] for each in found.values()) == total.bytes[kind]
    assert list(found) == ids
    assert [each.reset_point for each in found.values()] == [True, False, False, True, False, False]
    assert [each.deltas for each in found.values()] == [0, 1, 1, 0, 1, 2]
    assert [ids.index(each.base) for each in found.values()] == [0, 0, 3, 3, 3, 3]
    assert all(bool(each.bytes["full"]) == each.reset_point for each in found.values())


def test_estimates_know_what_a_payload_holds(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    halves = rng.standard_normal(40_000).astype(np.float16)
    for _ in range(3):
        halves = halves + rng.standard_normal(halves.shape).astype(np.float16) / 1000
        repo.commit({"half": halves, "byte": rng.integers(0, 9, 80_000, np.uint8)})
    asked = set()
    inner = Rates.seconds

    def noted(self: Rates, text: str, raw: Any, stored: Any, width: int) -> Any:
        asked.update((width, nbytes) for nbytes in np.unique(raw).tolist())
        return inner(self, text, raw, stored, width)

    monkeypatch.setattr(Rates, "seconds", noted)
    assert repo.storage.stats().versions == 3
    assert {(2, 80_000), (1, 80_000)} <= asked
