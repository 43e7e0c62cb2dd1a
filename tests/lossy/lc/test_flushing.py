"""A process that flushes subnormal numbers to zero adds nothing approximate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

_CODE = """
import sys
import numpy as np
import torch
import mvc
from mvc.lossy.lc.quantise import quantise
from mvc.lossy.lc.step import Addition
from mvc.pipelines.pipeline import Pipeline
from mvc.errors import DamagedData, MvcError

if not torch.set_flush_denormal(True):
    sys.exit(77)
old, new = (np.array(v, np.float32).tobytes() for v in ([0, 1], [0.5, 1.5]))
found = quantise(Pipeline.parse("lc:x=2"), [(old, "float32")], [(new, "float32")])
assert found == [None], found
state = bytearray(old)
try:
    Addition(np.zeros(2, np.uint8), np.zeros(1, np.float32), "float32").apply(memoryview(state))
except MvcError as error:
    assert not isinstance(error, DamagedData) and "set_flush_denormal(False)" in str(error)
else:
    raise AssertionError("added")
assert state == old

with mvc.Repository.open(sys.argv[1]) as repo:
    weights = 3e-38 * torch.randn(4096)
    for _ in range(3):
        done = repo.commit({"w": weights}, pipeline="lc:x=2")
        assert torch.equal(done.state["w"].view(torch.int32), weights.view(torch.int32))
        weights = weights + 3e-38 * torch.randn(4096)
torch.save(done.state["w"], sys.argv[2])
"""


def test_versions_of_such_a_process_are_exact_and_readable(tmp_path: Path) -> None:
    import mvc

    with mvc.Repository.init(tmp_path / "repo") as repo:
        repo.commit({"w": 3e-38 * torch.randn(4096)}, pipeline="lc:x=2")
    places = (str(tmp_path / "repo"), str(tmp_path / "last.pt"))
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *places], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("this processor cannot flush")
    assert done.returncode == 0, done.stderr
    with mvc.Repository.open(tmp_path / "repo") as repo:
        found, last = repo.checkout()["w"], torch.load(places[1], weights_only=True)
        assert torch.equal(found.view(torch.int32), last.view(torch.int32))
        assert repo.storage.fsck(full=True).sound
