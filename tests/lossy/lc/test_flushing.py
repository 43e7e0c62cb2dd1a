"""A process that flushes subnormal numbers to zero stores and reads the same steps as another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mvc
from mvc.errors import DamagedData, MvcError
from mvc.lossy.lc.quantise import quantise
from mvc.lossy.lc.step import Addition
from mvc.pipelines.pipeline import Pipeline

torch = pytest.importorskip("torch")

PIPELINES = ("lc:x=2", "lc:uniform,budget=0.05")

_CODE = """
import sys
import torch
from tests.lossy.lc.test_flushing import story
if not torch.set_flush_denormal(True):
    sys.exit(77)
story(sys.argv[1], torch.load(sys.argv[2]))
assert torch.tensor([2.0**-126]) * 0.5 == 0
"""


def story(place: str | Path, states: list[torch.Tensor]) -> list[torch.Tensor]:
    """Approximates two versions; the bits of what was stored, which a checkout gives as well."""
    stored = []
    with mvc.Repository.open(place) as repo:
        for weights, pipeline in zip(states, PIPELINES, strict=True):
            state = repo.commit({"w": weights}, pipeline=pipeline).state
            assert state is not None
            stored.append(state["w"].view(torch.int32))
            assert torch.equal(repo.checkout()["w"].view(torch.int32), stored[-1])
    return stored


def test_the_same_versions_in_both_modes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, *later = 3e-38 * torch.randn(3, 4096).cumsum(0)
    for name in ("keeps", "flushes"):
        with mvc.Repository.init(tmp_path / name) as repo:
            repo.commit({"w": first}, pipeline="lc:x=2")
    kept = story(tmp_path / "keeps", later)
    assert any((bits & 0x7F800000 == 0).sum() > 100 for bits in kept)
    torch.save(later, tmp_path / "later.pt")
    done = subprocess.run(
        [sys.executable, "-c", _CODE, tmp_path / "flushes", tmp_path / "later.pt"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("this processor cannot flush")
    assert done.returncode == 0, done.stderr
    with mvc.Repository.open(tmp_path / "flushes") as repo:
        for revision, bits in zip(("HEAD~1", "HEAD"), kept, strict=True):
            assert torch.equal(repo.checkout(revision)["w"].view(torch.int32), bits)
        assert repo.storage.fsck(full=True).sound


def test_a_mode_that_torch_cannot_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mvc.codecs.floats.flushes", lambda: True)
    old, new = (bytearray(torch.tensor(v).numpy().tobytes()) for v in ([0.0, 1.0], [0.5, 1.5]))
    with pytest.raises(MvcError, match="rounds subnormal numbers to zero"):
        quantise(Pipeline.parse("lc:x=2"), [(old, "float32")], [(new, "float32")])
    symbols = torch.zeros(2, dtype=torch.uint8).numpy()
    step = Addition(symbols, torch.zeros(1).numpy(), "float32")
    before = bytes(old)
    with pytest.raises(MvcError, match="rounds subnormal numbers to zero") as raised:
        step.apply(memoryview(old))
    assert not isinstance(raised.value, DamagedData)
    assert old == before
