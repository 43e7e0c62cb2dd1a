"""Recovery times are estimated from constants; reports may use rates of their own machine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.errors import InvalidConfig
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from mvc.store.recovery.rates import Rates
from tests.benchmarks.bench_rates import constant_table, measured_table

SCHEMA = "mvc.rates/1"


@contextmanager
def load(processes: int) -> Iterator[None]:
    line = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(line) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def packs(root: Path, bound: float) -> list[bytes]:
    """The packs after commits within a bound, and after a repack to a wider one."""
    random = np.random.default_rng(0)
    state = {f"w{i}": random.standard_normal((150, 100)).astype(np.float32) for i in range(4)}
    mvc.Repository.init(root).close()
    set_value(FileSystem(), root / ".mvc/config.yaml", "store.max_recovery", str(bound))
    with mvc.Repository.open(root) as repo:
        for _ in range(12):
            state = {name: w + np.float32(1e-4) for name, w in state.items()}
            state["w0"] += np.float32(1e-3) * random.standard_normal((150, 100)).astype(np.float32)
            repo.commit(state, pipeline="xor | planes | bz2:9")
        found = [path.read_bytes() for path in sorted(root.glob(".mvc/packs/*"))]
        repo.storage.repack(max_recovery=1.5 * bound)
    return found + [path.read_bytes() for path in sorted(root.glob(".mvc/packs/*"))]


def test_a_load_changes_no_stored_byte(tmp_path: Path) -> None:
    bound = 0.025
    quiet = packs(tmp_path / "quiet", bound)
    with load(4):
        assert packs(tmp_path / "loaded", bound) == quiet


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/mvc/rates.json"


def test_reports_count_with_measured_rates_and_commits_never_do(
    tmp_path: Path, cache: Path
) -> None:
    with mvc.Repository.init(tmp_path / "repo") as repo:
        repo.commit({"w": np.arange(10_000, dtype=np.float32)})
        before = repo.storage.stats().recovery_worst
        assert not cache.exists()
        assert repo.storage.stats(calibrate=True).recovery_worst != before
        assert 0.01 < json.loads(cache.read_text())["factor"] < 1000
        cache.write_text(json.dumps({"schema": SCHEMA, "factor": 1e5}))
        assert repo.storage.stats().recovery_worst > before + 1
    file = tmp_path / "repo/.mvc/config.yaml"
    set_value(FileSystem(), file, "store.max_recovery", str(2 * before))
    with mvc.Repository.open(tmp_path / "repo") as repo:
        repo.commit({"w": np.ones(10_000, np.float32)})
        assert repo.storage.curve().today.worst_seconds < 2 * before


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "mvc.rates/1", "factor": 0}'])
def test_a_file_of_rates_that_is_none_is_told(tmp_path: Path, cache: Path, text: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(text)
    with (
        mvc.Repository.init(tmp_path / "repo") as repo,
        pytest.raises(InvalidConfig, match="has no valid rates"),
    ):
        repo.storage.stats()


def test_every_stage_of_the_table_is_measured() -> None:
    found = measured_table()
    assert {row: set(of) for row, of in found.items()} == {
        row: set(of) for row, of in constant_table().items()
    }
    assert all(a >= 0 <= b for of in found.values() for a, b in of.values())


def test_a_wide_coding_takes_its_own_row_and_an_unknown_one_the_slowest() -> None:
    known = {width: Rates().seconds("bz2:9", 1e9, 0.0, width) for width in (0, 1, 2, 4, 8)}
    assert known[0] == known[1] > known[2] > known[4]
