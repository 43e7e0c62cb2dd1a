"""``store.max_recovery`` is kept: real recoveries against the bound, whatever decodes them.

Measured is processor time, with one processor to use, so that other processes do not count. The
estimate is for that one, too. The disk is not measured: flushing takes no processor.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import InvalidConfig
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.pipelines.table import PRESETS
from mvc.repo.config import set_value
from mvc.store.recovery.rates import Rates
from mvc.testing import fresh_process

TOLERATED = 1.3
SLOW = ["xor | planes | bz2:9", "xor | planes | lzma", "xor | planes | zstd:19"]
CONV = [(32, 25), (32,), (32, 800), (32,), (64, 288), (64,), (64, 576), (64,), (3136, 256), (256,),
        (2560,), (10,)]  # fmt: skip


@pytest.fixture(autouse=True)
def one_processor() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def states(shapes: list[tuple[int, ...]], seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Weights that all move a little."""
    random = np.random.default_rng(seed)
    state = {f"w{i}": 0.05 * random.standard_normal(shape) for i, shape in enumerate(shapes)}
    while True:
        yield {name: array.astype(np.float32) for name, array in state.items()}
        for array in state.values():
            array += 1e-4 * random.standard_normal(array.shape)


def configure(root: Path, **settings: object) -> None:
    for key, value in settings.items():
        set_value(FileSystem(), root / ".mvc/config.yaml", f"store.{key}", str(value))


def recovery(root: Path, rev: object, runs: int = 2) -> float:
    """Processor seconds to open the repository and to restore a version: the best of several."""
    took = []
    for _ in range(runs):
        fresh_process()
        begun = time.process_time()
        with mvc.Repository.open(root) as repo:
            repo.checkout(rev, to=root / "out.safetensors", force=True)  # type: ignore[arg-type]
        took.append(time.process_time() - begun)
    return min(took)


@pytest.mark.parametrize(
    ("pipeline", "layout"), [*((line, "chain") for line in SLOW), (SLOW[0], "skip:4")]
)
def test_every_version_comes_back_within_the_bound(
    tmp_path: Path, pipeline: str, layout: str
) -> None:
    series, ids = states([(256, 256), (256,)]), []
    mvc.Repository.init(tmp_path).close()
    configure(tmp_path, layout=layout)
    with mvc.Repository.open(tmp_path) as repo:
        ids.append(repo.commit(next(series), pipeline=pipeline).id)
        bound = 2 * repo.storage.stats().recovery_worst
    configure(tmp_path, max_recovery=bound)
    with mvc.Repository.open(tmp_path) as repo:
        ids += [repo.commit(next(series), pipeline=pipeline).id for _ in range(11)]
        found = repo.storage.stats()
    assert found.recovery_worst <= bound * TOLERATED
    assert found.deltas_worst > 0
    took = [recovery(tmp_path, id_) for id_ in ids]
    assert max(took) <= bound * TOLERATED
    assert found.recovery_worst >= max(took) / TOLERATED


@pytest.mark.parametrize("pipeline", ["xor | planes | bz2:9", "xor | planes:all | zstd:1"])
def test_a_repack_keeps_the_bound_too(tmp_path: Path, pipeline: str) -> None:
    series = states([(256, 256), (256,)])
    with mvc.Repository.init(tmp_path) as repo:
        configure(tmp_path, layout="chain")
    with mvc.Repository.open(tmp_path) as repo:
        ids = [repo.commit(next(series), pipeline=pipeline).id for _ in range(12)]
        before = repo.storage.stats()
        bound = 0.5 * before.recovery_worst + 0.5 * min(
            point.worst_seconds for point in repo.storage.curve().points
        )
        now = repo.storage.repack(max_recovery=bound).now
        assert now is not None and now.worst_seconds <= bound
        assert repo.storage.stats().recovery_worst == pytest.approx(now.worst_seconds, rel=0.1)
    assert max(recovery(tmp_path, id_) for id_ in ids) <= bound * TOLERATED


def grown_in_groups(repo: mvc.Repository) -> CommitId:
    """Each version changes one large tensor, and another small one: the last needs every group."""
    random = np.random.default_rng(0)
    state = {f"small{i}": random.standard_normal(64).astype(np.float32) for i in range(20)}
    state["large"] = random.standard_normal((800, 800)).astype(np.float32)
    for i in range(20):
        version = repo.commit(state, pipeline="xor | planes:all | zstd:1")
        state = {name: array.copy() for name, array in state.items()}
        for name in ("large", f"small{i}"):
            state[name] += np.float32(1e-4) * random.standard_normal(state[name].shape)
    return version.id


def test_groups_that_small_tensors_alone_need_count_whole_in_every_estimate(
    tmp_path: Path,
) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        took = recovery(tmp_path, grown_in_groups(repo), runs=3)
        assert repo.storage.stats().recovery_worst >= took / TOLERATED
        curve = repo.storage.curve()
        assert curve.today.worst_seconds == pytest.approx(
            repo.storage.stats().recovery_worst, rel=0.1
        )
        least = min(point.worst_seconds for point in curve.points)
        bound = (curve.today.worst_seconds + least) / 2
        now = repo.storage.repack(max_recovery=bound).now
        assert now is not None and now.worst_seconds <= bound
        ids = [version.commit.id for version in repo.log()]
    assert max(recovery(tmp_path, id_) for id_ in ids) <= bound * TOLERATED


def test_an_estimate_of_groups_is_not_far_too_long(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path / "large") as repo:
        took = recovery(tmp_path / "large", grown_in_groups(repo), runs=3)
        assert took / TOLERATED <= repo.storage.stats().recovery_worst <= 3 * took


@pytest.mark.parametrize("slower", [20, 160])
def test_a_bound_that_the_fastest_layout_meets_is_met_whatever_a_group_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slower: int
) -> None:
    inner = Rates.seconds

    def slow(self: Rates, text: str, raw: Any, stored: Any, width: int) -> Any:
        seconds = inner(self, text, raw, stored, width)
        return seconds * (1 if text.startswith("xor") else slower)

    with mvc.Repository.init(tmp_path) as repo:
        grown_in_groups(repo)
        monkeypatch.setattr(Rates, "seconds", slow)
        seconds = [point.worst_seconds for point in repo.storage.curve().points]
        least, most = min(seconds), max(seconds)
        for part in (1.1, 1.5, 2, 5, 10, 20):
            bound = least + (most - least) / part
            plan = repo.storage.repack(max_recovery=bound, dry_run=True).plan
            assert plan.after.worst_seconds <= bound


def test_a_bound_below_a_full_version_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    series = states([(256, 256)])
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(next(series))
        full = repo.storage.stats().recovery_worst
    configure(tmp_path, max_recovery=full / 2)
    with (
        mvc.Repository.open(tmp_path) as repo,
        pytest.raises(InvalidConfig, match=r"stored in full takes .* to open .* to decode"),
    ):
        repo.commit(next(series))


def whole(preset: str) -> str:
    """A preset without its save decision: that leaves out versions, not bytes."""
    parts = PRESETS.get(preset, preset).split(" | ")
    return " | ".join(part for part in parts if not part.startswith(("dsed", "guard")))


@pytest.mark.long
@pytest.mark.parametrize(("pipeline", "bound"), list(zip([*PRESETS, *SLOW], cycle([0.1, 0.3, 1]))))
def test_sixty_versions_within_the_bound(tmp_path: Path, pipeline: str, bound: float) -> None:
    series, ids = states(CONV), []
    mvc.Repository.init(tmp_path).close()
    configure(tmp_path, max_recovery=bound)
    with mvc.Repository.open(tmp_path) as repo:
        try:
            for _ in range(60):
                options = {"pipeline": whole(pipeline), "metrics": {"loss": 0.3}}
                ids.append(repo.commit(next(series), **options).id)  # type: ignore[arg-type]
        except InvalidConfig:
            ids = [repo.find("HEAD")]
    took = [recovery(tmp_path, id_, runs=5 if id_ == ids[-1] else 3) for id_ in ids]
    if len(ids) == 1:
        assert took[0] * TOLERATED >= bound, "a full version could have met it"
    else:
        assert max(took) <= bound * TOLERATED


def trainings() -> Iterator[dict[str, object]]:
    """Weights and states of an RMSprop, whose steps are predicted with grades."""
    torch.manual_seed(0)
    model = torch.nn.Linear(400, 400)
    optimizer = torch.optim.RMSprop(model.parameters())
    while True:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        yield copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def test_the_bound_counts_what_predictions_take(tmp_path: Path) -> None:
    series = trainings()
    with mvc.Repository.init(tmp_path) as repo:
        ids = [repo.commit(next(series)).id for _ in range(12)]
        estimate = repo.storage.stats().recovery_worst
        assert repo.storage.stats().deltas_worst > 10
    assert estimate >= recovery(tmp_path, ids[-1], runs=3) / TOLERATED
    configure(tmp_path, max_recovery=estimate / 2)
    with mvc.Repository.open(tmp_path) as repo:
        ids = [repo.commit(next(series)).id for _ in range(12)]
    assert max(recovery(tmp_path, id_) for id_ in ids) <= estimate / 2 * TOLERATED
