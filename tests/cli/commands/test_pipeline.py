from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc.api import bench as bench_module
from mvc.cli.main import run
from mvc.pipelines.table import PRESETS, STAGES


def test_lists_all_stages_and_presets(mvc) -> None:
    lines = mvc("pipeline").out.splitlines()
    for kind in STAGES.values():
        assert any(line.startswith(f"{kind.usage} ") and kind.about in line for line in lines)
    for name, text in PRESETS.items():
        assert any(line.split() == [name, *text.split()] for line in lines)
    found = mvc("pipeline", "--json").json
    assert found["schema"] == "mvc.pipeline/1"
    assert found["presets"] == PRESETS
    assert [stage["usage"] for stage in found["stages"]] == [s.usage for s in STAGES.values()]
    assert set(found["stages"][0]) == {"usage", "about", "lossy", "decides"}


def test_set(mvc, tmp_path, monkeypatch) -> None:
    mvc("pipeline", "--lossy", "--max-recovery", "2.5", "--set")
    assert mvc("config", "commit.pipeline").out == "frontier-0\n"
    assert mvc("config", "store.max_recovery").out == "2.5\n"
    mvc("pipeline", "sub|zigzag|planes|zstd:huff", "--set")
    assert mvc("config", "commit.pipeline").out == "sub | zigzag | planes | zstd:huff\n"
    assert mvc("config", "store.max_recovery").out == "2.5\n"
    mvc("pipeline", "xor | lsb:20 | planes:all | zstd:1", "--set", "--json")
    assert mvc("config", "commit.pipeline").out == "vsol-0-fast\n"
    monkeypatch.chdir(tmp_path)
    assert mvc("pipeline", "vsol").out
    assert "not a repository" in mvc("pipeline", "vsol", "--set", code=3).err


# -- measured on models ------------------------------------------------------------------


FEW = (PRESETS["lossless"], "xor | planes | zstd:1", PRESETS["none"])


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "ROUNDS", 1)
    monkeypatch.setattr(bench_module, "PIPELINES", FEW)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three versions, each a small step from the one before."""
    folder = tmp_path / "runs"
    folder.mkdir()
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.05, 20_000).astype(np.float32)
    for i in range(3):
        values = values + (1e-4 * rng.standard_normal(20_000)).astype(np.float32)
        save_file({"w": values}, folder / f"v{i}.safetensors")
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_table_and_json(mvc, runs: Path) -> None:
    before = files(mvc.folder) | files(runs)
    out = mvc("pipeline", "--bench", runs).out.splitlines()
    assert out[0] == "3 versions of 80.0 kB, 2 pairs compared; 100 % changes from one to the next"
    lines = out[4 : 4 + len(FEW)]
    assert [line.split("  ")[0] for line in lines] == list(FEW)
    assert sum("recommended" in line for line in lines) == 1
    assert "lossless" in lines[0]
    assert "in use" in lines[0]
    assert out[-2].startswith("Recommended: ")
    found = mvc("pipeline", "--bench", *sorted(runs.iterdir()), "--json").json
    assert found["schema"] == "mvc.pipeline.bench/1"
    assert found["exact"] is True
    assert (found["versions"], found["compared"], found["raw_bytes"]) == (3, 2, 80_000)
    assert found["base"] == str(runs / "v1.safetensors")
    assert found["in_use"] == FEW[0]
    assert found["recommended"] in {p["preset"] or p["pipeline"] for p in found["pipelines"]}
    by_preset = {p["preset"]: p for p in found["pipelines"]}
    assert by_preset["lossless"]["delta"]["ratio"] < 0.9
    assert by_preset["none"]["delta"]["ratio"] == pytest.approx(1, abs=1e-2)
    assert by_preset["none"]["interval"] == 1
    assert files(mvc.folder) | files(runs) == before  # nothing is written


def test_how_to_set_what_is_recommended(mvc, runs: Path) -> None:
    mvc("config", "commit.pipeline", "none")
    out = mvc("pipeline", "--bench", runs).out
    command = out.splitlines()[-1].removeprefix("To use it:").strip()
    assert command.startswith("mvc config commit.pipeline ")
    value = command.removeprefix("mvc config commit.pipeline ").strip("'")
    mvc("config", "commit.pipeline", value)
    assert mvc("pipeline", "--bench", runs, "--json").json["in_use"] != "raw"


def test_outside_a_repository(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.setenv("MVC_COMMIT_PIPELINE", "none")
    assert run(["pipeline", "--bench", "."]) == 0
    assert "mvc config --user commit.pipeline " in capsys.readouterr().out


def test_a_tracked_file_and_a_bound(mvc, runs: Path) -> None:
    model = mvc.folder / "m.safetensors"
    model.write_bytes((runs / "v0.safetensors").read_bytes())
    mvc("commit", "m.safetensors")
    result = mvc("pipeline", "--bench", "m.safetensors")
    assert "m.safetensors is as at HEAD" in result.err
    model.write_bytes((runs / "v1.safetensors").read_bytes())
    assert (
        "m.safetensors, 80.0 kB, compared with HEAD"
        in mvc("pipeline", "--bench", "m.safetensors").out
    )
    mvc("config", "store.max_recovery", "1e-9")
    out = mvc("pipeline", "--bench", "m.safetensors").out
    assert out.count("over the bound") == len(FEW)
    assert "No recommendation: no pipeline recovers" in out
    assert mvc("pipeline", "--bench", "m.safetensors", "--json").json["recommended"] is None


def test_a_share_and_what_is_refused(mvc, runs: Path) -> None:
    rng = np.random.default_rng(1)
    tensors = {f"t{i}": rng.random(1000).astype(np.float32) for i in range(8)}
    save_file(tensors, mvc.folder / "m.safetensors")
    found = mvc("pipeline", "--bench", "m.safetensors", "--max-bytes", "16kB")
    assert "1 version of 32.0 kB, 50.0 % of the bytes looked at" in found.out
    assert "only full versions are measured" in found.err
    mvc("pipeline", "--bench", code=2)
    mvc("pipeline", "--bench", runs, "--max-bytes", 0, code=2)
    mvc("pipeline", "--bench", runs, "--max-bytes", "1q", code=2)
    mvc("pipeline", "--bench", "absent", code=3)
    (mvc.folder / "empty.pt").touch()
    assert "nothing to measure" in mvc("pipeline", "--bench", "empty.pt", code=3).err
    assert mvc("pipeline", "--bench", "empty.pt", "--json", code=3).json["kind"] == "bad-model-file"
