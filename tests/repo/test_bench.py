"""What bench measures is what a repository stores; its advice follows from it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.numpy import save_file

from mvc.api import bench as bench_module
from mvc.api.bench import BenchRow, Figures, Measured, advise, bench
from mvc.api.repository import Repository
from mvc.errors import BadModelFile, DamagedData, UnknownPath, WrongUsage
from mvc.io.files import FileSystem
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS
from mvc.repo.config import Config, load_config
from mvc.store.writing.layout import Layout

FS = FileSystem()
FEW = (PRESETS["lossless"], PRESETS["vsol"], "xor | planes | zstd:1", PRESETS["none"])


def weights(seed: int, steps: int = 0, elements: int = 60_000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.05, elements).astype(np.float32)
    for _ in range(steps):
        values += (1e-4 * rng.standard_normal(elements)).astype(np.float32)
    return values


def write(path: Path, steps: int, **more: np.ndarray) -> Path:
    """Two tensors that move with ``steps``, and one that never does."""
    save_file(
        {
            "a": weights(1, steps).reshape(200, 300),
            "b": weights(2, steps, 20_000),
            "still": weights(3, elements=20_000),
            **more,
        },
        path,
    )
    return path


def series(folder: Path, count: int = 3) -> list[Path]:
    return [write(folder / f"v{i}.safetensors", i) for i in range(count)]


def row_of(found: Measured, pipeline: str) -> BenchRow:
    return next(row for row in found.rows if pipeline in (row.pipeline, row.preset))


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on how exact the times are."""
    monkeypatch.setattr(bench_module, "ROUNDS", 1)
    monkeypatch.setattr(bench_module, "PIPELINES", FEW)


@pytest.mark.parametrize("pipeline", ["lossless", "vsol", "none", "xor | planes | zstd:1"])
def test_ratios_are_those_of_a_repository(tmp_path: Path, pipeline: str) -> None:
    versions = series(tmp_path)
    found = bench(versions)
    row = row_of(found, pipeline)
    assert row.delta is not None
    moving, whole = 4 * 80_000, 4 * 100_000
    assert (found.raw_bytes, found.sampled, found.compared) == (whole, whole, 2)
    assert found.changed == pytest.approx(moving / whole)
    stored = []
    with Repository.init(tmp_path / "repo") as repo:
        for version in versions:
            (repo.root / "m.safetensors").write_bytes(version.read_bytes())
            kept = repo.commit(repo.root / "m.safetensors", pipeline=pipeline)
            stored.append(kept.stored_bytes)
    assert row.full.ratio * whole == pytest.approx(stored[0], rel=0.01)
    assert row.delta.ratio * 2 * whole == pytest.approx(sum(stored[1:]), rel=0.01)


def test_every_pipeline_is_timed_and_the_one_in_use_is_among_them(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "repo") as repo:
        (repo.root / ".mvc" / "config.yaml").write_text("commit:\n  pipeline: sub|planes|zstd:4\n")
    with Repository.open(tmp_path / "repo") as repo:
        found = bench(series(tmp_path), repository=repo)
    assert [row.pipeline for row in found.rows] == [*FEW, "sub | planes | zstd:4"]
    assert found.in_use == "sub | planes | zstd:4"
    for row in found.rows:
        assert row.delta is not None
        speeds = [row.delta.commit, row.delta.checkout, row.full.commit, row.full.checkout]
        assert min(speeds) > 0
    assert found.advice.row in found.rows


def test_one_tracked_file_is_compared_with_head(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "repo") as repo:
        path = write(repo.root / "m.safetensors", 0)
        repo.commit(path)
        same = bench([path], repository=repo)
        write(path, 1)
        moved = bench([path], repository=repo)
        outside = bench([path])
        untracked = bench([write(tmp_path / "other.safetensors", 1)], repository=repo)
    assert (same.base, same.changed) == ("HEAD", 0.0)
    assert same.rows[0].delta is None
    assert "is as at HEAD" in same.notes[0]
    assert moved.base == "HEAD"
    assert moved.rows[0].delta is not None
    assert moved.rows[0].delta.ratio < moved.rows[0].full.ratio
    for alone in (outside, untracked):
        assert (alone.base, alone.changed, alone.compared) == (None, None, 0)
        assert all(row.delta is None for row in alone.rows)
        assert "only full versions" in alone.notes[0]
        assert alone.advice.row is not None
        assert alone.advice.row.takes_bases  # one version says nothing against deltas


def test_a_folder_is_its_versions_by_number(tmp_path: Path) -> None:
    for i in (10, 9, 2):
        write(tmp_path / f"v{i}.safetensors", i)
    (tmp_path / "notes.txt").write_text("not a model")
    found = bench([tmp_path])
    assert found.versions == 3
    assert Path(found.newest).name == "v10.safetensors"
    assert found.base is not None
    assert Path(found.base).name == "v9.safetensors"


def test_copies_resized_tensors_and_raw_bytes_find_their_bases(tmp_path: Path) -> None:
    old = {"a": weights(1).reshape(200, 300), "grown": weights(2, elements=3000).reshape(100, 30)}
    new = {"a": weights(1, 1).reshape(200, 300)}
    new["copy"] = new["a"].astype(np.float16)
    extra = weights(5, elements=300).reshape(10, 30)
    new["grown"] = np.concatenate([old["grown"] + np.float32(1e-4), extra])
    save_file(old, tmp_path / "0.safetensors")
    save_file(new, tmp_path / "1.safetensors")
    found = bench([tmp_path / "0.safetensors", tmp_path / "1.safetensors"])
    lossless = row_of(found, "lossless").delta
    assert lossless is not None
    assert lossless.ratio < 0.5  # the rounded copy costs nothing
    rng = np.random.default_rng(0)
    data = rng.bytes(50_000)
    (tmp_path / "0.dat").write_bytes(data)
    (tmp_path / "1.dat").write_bytes(data[:20_000] + b"inserted" + data[20_000:])
    opaque = bench([tmp_path / "0.dat", tmp_path / "1.dat"])
    patched = row_of(opaque, "lossless").delta
    assert patched is not None
    assert patched.ratio < 0.05
    assert sum("measured as raw bytes" in note for note in opaque.notes) == 2


def test_what_cannot_be_measured_is_refused_or_said(tmp_path: Path) -> None:
    good = write(tmp_path / "good.safetensors", 0)
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnknownPath):
        bench([tmp_path / "absent"])
    with pytest.raises(WrongUsage, match="no model files"):
        bench([tmp_path / "folder"])
    with pytest.raises(BadModelFile, match="empty"):
        bench([tmp_path / "empty.pt"])
    with pytest.raises(WrongUsage):
        bench([good], max_bytes=0)
    save_file({"none": np.zeros((0, 3), np.float32)}, tmp_path / "bare.safetensors")
    with pytest.raises(BadModelFile, match="no tensors"):
        bench([tmp_path / "bare.safetensors"])
    notes = bench([tmp_path / "empty.pt", good, good]).notes
    assert "empty.pt is empty and left out" in notes[0]
    assert "same tensors" in notes[1]
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:5000])
    assert "cut off" in bench([tmp_path / "cut.safetensors"]).notes[0]
    save_file({"x": np.ones((7, 3), np.float64)}, tmp_path / "other.safetensors")
    found = bench([good, tmp_path / "other.safetensors"])
    assert "every version is stored in full" in found.notes[0]
    assert found.rows[0].interval == 1


def test_only_a_share_is_looked_at_and_it_is_spread(tmp_path: Path) -> None:
    tensors = {f"t{i:02}": weights(i, elements=1000) for i in range(40)}
    paths = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
    save_file(tensors, paths[0])
    save_file({k: v + np.float32(1e-3) for k, v in tensors.items()}, paths[1])
    found = bench(paths, max_bytes=40_000)
    assert (found.raw_bytes, found.sampled) == (160_000, 40_000)
    assert found.changed == 1.0
    whole = bench(paths)
    assert found.rows[0].version_bytes == pytest.approx(whole.rows[0].version_bytes, rel=0.1)
    places = [(("m", f"t{i:02}", 0), 4000) for i in range(40)]
    chosen = sorted(int(key[1:]) for _, key, _ in bench_module._spread(places, 0.25))
    assert len(chosen) == 10
    assert max(np.diff([-1, *chosen, 40])) <= 5
    assert bench(paths, max_bytes=1).sampled == 4000  # one piece at least


def test_a_large_tensor_is_looked_at_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of raw bytes and of a tensor alike, each piece stays where it was."""
    cuts = [(start, 10_000) for start in range(0, 80_000, 10_000)]
    monkeypatch.setattr(bench_module, "pieces", lambda spec: cuts[: -(-spec.nbytes // 10_000)])
    for suffix, write_ in ((".safetensors", lambda p, v: save_file({"w": v}, p)),
                           (".dat", lambda p, v: p.write_bytes(v.tobytes()))):  # fmt: skip
        paths = [tmp_path / f"{i}{suffix}" for i in range(2)]
        for i, path in enumerate(paths):
            write_(path, weights(1, i, 20_000))
        found = bench(paths, max_bytes=20_000)
        assert (found.raw_bytes, found.sampled, found.changed) == (80_000, 20_000, 1.0)
        assert found.rows[0].delta is not None


def test_little_time_means_few_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "SECONDS", 0.0)
    found = bench(series(tmp_path, 4))
    assert (found.versions, found.compared) == (4, 1)
    assert "only the newest 2 versions" in found.notes[0]


def test_of_many_versions_some_pairs_are_looked_at(tmp_path: Path) -> None:
    found = bench(series(tmp_path, 9), max_bytes=400_000 // 2)
    assert (found.versions, found.compared) == (9, 3)


@pytest.mark.parametrize("max_bytes", [1 << 20, 100_000])
def test_other_bytes_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    honest = bench_module.export

    def wrong(context, commit, paths, output, **more):
        honest(context, commit, paths, output, **more)
        (file,) = (path for path in output.rglob("*") if path.is_file())
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)

    monkeypatch.setattr(bench_module, "export", wrong)
    with pytest.raises(DamagedData, match="does not give back"):
        bench(series(tmp_path, 2), max_bytes=max_bytes)


def test_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    bench(series(tmp_path, 2))
    assert not list((tmp_path / "t").iterdir())


def test_progress_grows_to_the_end(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    bench(series(tmp_path), progress=lambda *args: told.append(args))
    dones = [done for done, _, _ in told]
    assert dones == sorted(dones)
    assert all(0 < done <= total for done, total, _ in told)
    assert dones[-1] > 0.9 * told[-1][1]


def made(name: str, bytes_: float, commit: float, *, fits: bool = True) -> BenchRow:
    figures = Figures(0.5, commit, 1e9)
    return BenchRow(name, None, figures, figures, 28, round(bytes_), 0.1, fits)


QUICK, SMALL, SLOW = "sub | planes | zstd:1", "xor | planes | zstd:1", "sub | planes | zstd:9"


def test_advice_is_the_smallest_that_keeps_up() -> None:
    rows = [made(QUICK, 3e6, 1e9), made(SMALL, 2e6, 0.6e9), made(SLOW, 1e6, 0.4e9)]
    advice = advise([*rows, made("raw", 1e7, 9e9)], QUICK)
    assert advice.row is rows[1]


def test_advice_keeps_what_is_as_good() -> None:
    rows = [made(QUICK, 2e6, 1e9), made(SMALL, 2.005e6, 1e9)]
    assert advise(rows, SMALL).row is rows[1]
    assert advise(rows, SLOW).row is rows[0]


def test_advice_within_the_bound() -> None:
    rows = [made(SMALL, 2e6, 1e9, fits=False), made(QUICK, 3e6, 1e9)]
    advice = advise(rows, SMALL)
    assert advice.row is rows[1]
    assert "within store.max_recovery" in advice.reason
    assert advise(rows[:1], SMALL).row is None


@pytest.mark.parametrize("layout", ["chain", "skip:4"])
@given(
    st.floats(0.01, 1), st.floats(1e-4, 10), st.floats(0.01, 10), st.floats(0, 1), st.floats(1, 99)
)
def test_costs_keep_within_the_settings(
    layout: str, ratio: float, step: float, bound: float, touched: float, chain: float
) -> None:
    """What a long history costs follows from what a short one did."""
    raw = 10**9
    trial = bench_module._BenchTrial(Pipeline.parse("lossless"), [9 * raw // 10, int(ratio * raw)],
                                [1.0, 1.0], [0.51, 0.51 + step], 1)  # fmt: skip
    run = SimpleNamespace(versions=[0, 1], sizes=[raw, raw], total=raw, changed=1.0,
                          touched=touched)  # fmt: skip

    def row(bound: float | None) -> BenchRow:
        default = load_config(FS, None, None, {}, {})
        more = {"store.max_recovery": bound, "store.max_chain": chain, "store.layout": layout}
        values = {**default.values, **{k: (v, "flag") for k, v in more.items()}}
        return bench_module._row(trial, run, Config(values))

    free, bounded = row(None), row(bound)
    assert free.fits
    assert 1 <= free.interval <= Layout.parse(layout).interval
    deltas = replace(Layout.parse(layout), interval=free.interval).deepest
    assert deltas * ratio <= chain * (1 + 1e-6)
    assert bounded.fits == (bound >= 0.51)
    if bounded.fits:
        assert bounded.recovery <= bound * (1 + 1e-9)
    assert row(bound / 2).interval <= bounded.interval


def test_a_checkpoint_folder_is_one_version(tmp_path: Path) -> None:
    for step in (5, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        write(folder / "model-00001-of-00002.safetensors", step)
        save_file({"rest": weights(7, step, 5_000)}, folder / "model-00002-of-00002.safetensors")
        (folder / "config.json").write_text('{"layers": 2}')
    found = bench([tmp_path])
    assert (found.versions, found.compared) == (2, 1)
    assert found.raw_bytes == 4 * 105_000 + len('{"layers": 2}')
    assert found.changed == pytest.approx(4 * 85_000 / found.raw_bytes)
    assert found.notes == ()  # config.json is no model, and is not said to be a bad one
    assert found.rows[0].delta is not None
    assert found.rows[0].delta.ratio < found.rows[0].full.ratio
