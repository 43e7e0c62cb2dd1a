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


def test_no_version_is_one(mvc) -> None:
    mvc.commit(1)
    mvc.write(9, "other.safetensors")
    result = mvc("identify", "other.safetensors", code=1)
    assert (result.out, result.err) == ("", "no version has the state of other.safetensors\n")
    assert mvc("identify", "other.safetensors", "--json", code=1).json["versions"] == []


def test_a_forgotten_version_had_it(mvc) -> None:
    id_ = mvc.commit(1)
    mvc("checkout", "HEAD", "-o", "copy.safetensors")
    mvc.commit(2)
    mvc("forget", id_, "-f")
    mvc("gc")
    out = mvc("identify", "copy.safetensors").out
    assert out.startswith(f"{id_[:10]} had it (forgotten on 20") and out.endswith("  value 1\n")
    (found,) = mvc("identify", "copy.safetensors", "--json").json["versions"]
    assert (found["commit"], found["path"], found["exact"]) == (id_, None, False)
    assert found["forgotten"].startswith("20")
