"""examples/bench.py: every pipeline gives every version back, and deltas take less than copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import bench

FEW = bench.PIPELINES[0], bench.PIPELINES[-1]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bench, "PIPELINES", FEW)
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.05, 20_000).astype(np.float32)
    for i in range(3):
        values = values + (1e-4 * rng.standard_normal(20_000)).astype(np.float32)
        save_file({"w": values}, tmp_path / f"v{i}.safetensors")
    return tmp_path


def test_a_table_of_all_pipelines(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lossless, none = bench.main([str(runs)])
    assert lossless.ratio < 0.95 < none.ratio < 1.05
    assert min(lossless.commit, lossless.checkout) > 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 versions, 0.2 MB"
    assert [line[:45].strip() for line in lines[2:]] == list(FEW)


def test_other_bytes_end_it(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.filecmp, "cmp", lambda *_, **__: False)
    with pytest.raises(SystemExit, match="other bytes came back"):
        bench.main([str(runs / "v0.safetensors")])
