from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import save_file


def test_values_and_summary(mvc) -> None:
    mvc.commit(0, w=np.array([1.0, 0.0, np.nan, -3.0], np.float32))
    lines = mvc("show", "HEAD", "w").out.splitlines()
    assert lines[0].startswith("w  float32 4, 16 B, ")
    assert lines[1] == "min -3  max 1  mean -0.6667  std 1.7  zeros 1  not finite 1"
    assert lines[2] == "[ 1.  0. nan -3.]"


def test_saved_values_are_the_same(mvc) -> None:
    value = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    mvc.commit(0, w=value)
    result = mvc("show", "HEAD", "w", "-o", "w.npy")
    assert result.out == ""
    loaded = np.load(mvc.folder / "w.npy")
    assert loaded.dtype == value.dtype
    assert loaded.tobytes() == value.tobytes()
    assert "-f" in mvc("show", "HEAD", "w", "-o", "w.npy", code=3).err


def test_bfloat16_is_widened_exactly(mvc) -> None:
    value = torch.randn(5, 7).to(torch.bfloat16)
    save_file({"w": value}, str(mvc.folder / "b.safetensors"))
    mvc("commit", "b.safetensors")
    mvc("show", "HEAD", "w", "-o", "w.npy")
    assert np.array_equal(np.load(mvc.folder / "w.npy"), value.float().numpy())


def test_view_of_a_torch_file(mvc) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    torch.save({"t": base.T, "base": base}, mvc.folder / "m.pt")
    mvc("commit", "m.pt")
    found = mvc("show", "HEAD", "t", "--json").json
    assert found["values"] == base.T.tolist()
    assert found["summary"]["max"] == 11
