from __future__ import annotations

import torch
from safetensors.torch import load_file


def test_same_state_in_another_format(mvc) -> None:
    id_ = mvc.commit(1)
    mvc.commit(2)
    mvc("checkout", "HEAD~1", "-o", "copy.safetensors")
    exact = mvc("identify", "copy.safetensors", "--json").json
    assert exact["schema"] == "mvc.identify/1"
    assert [(v["commit"], v["exact"]) for v in exact["versions"]] == [(id_, True)]
    torch.save(load_file(mvc.folder / "copy.safetensors"), mvc.folder / "copy.pt")
    out = mvc("identify", "copy.pt").out
    assert out.startswith(f"{id_[:10]} model.safetensors (same tensors)")


def test_the_nearest_version(mvc) -> None:
    id_ = mvc.commit(1)
    state = load_file(mvc.folder / "model.safetensors")
    name = min(state)
    state[name] = state[name] + 1e-3
    torch.save(state, mvc.folder / "near.pt")
    result = mvc("identify", "near.pt", code=1)
    assert result.err == "no version has the state of near.pt\n"
    first, second = result.out.splitlines()
    assert first.startswith(f"nearest: {id_[:10]} model.safetensors  ")
    same = f"{len(state) - 1} of {len(state)} tensors equal those of this version"
    assert second == f"  {same}; mvc diff {id_[:10]} near.pt"
    found = mvc("identify", "near.pt", "--json", code=1).json
    assert found["versions"] == [] and found["nearest"]["commit"] == id_
    assert [row["key"] for row in found["nearest"]["differing"]] == [name]
