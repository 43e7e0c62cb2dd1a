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
