"""Folders of save_pretrained as versions: back byte for byte, and from_pretrained takes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import mvc
from tests.frameworks.need import need

transformers = need("transformers")


def gpt2() -> Any:
    """Input and output embeddings are one."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def half() -> Any:
    return gpt2().to(torch.bfloat16)


MODELS = {"gpt2": gpt2, "bert": bert, "bfloat16": half}


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def change(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.001)


@pytest.mark.parametrize("shard", ["10GB", "9KB"], ids=["whole", "sharded"])
@pytest.mark.parametrize("name", MODELS)
def test_folder(tmp_path: Path, name: str, shard: str) -> None:
    model = MODELS[name]()
    folder = tmp_path / "net"
    with mvc.Repository.init(tmp_path) as repo:
        written, states = [], []
        for _ in range(3):
            model.save_pretrained(folder, max_shard_size=shard)
            repo.commit(folder, deploy="prod")
            written.append(files(folder))
            states.append({k: v.clone() for k, v in model.state_dict().items()})
            change(model)
        sharded = "model.safetensors.index.json" in written[0]
        assert sharded == (shard == "9KB")
        assert {"config.json", *(["generation_config.json"] if name == "gpt2" else [])} <= {
            *written[0]
        }
        shutil.rmtree(folder)
        for version in range(3):
            output = tmp_path / f"out{version}"
            repo.checkout(f"HEAD~{2 - version}", to=output)
            assert files(output / "net") == written[version]
            loaded = type(model).from_pretrained(output / "net")
            joined = repo.checkout(f"HEAD~{2 - version}", path="net")  # tied ones once
            assert joined
            assert all(torch.equal(joined[k], states[version][k]) for k in joined)
            state = loaded.state_dict()
            assert all(torch.equal(state[k], v) for k, v in states[version].items())
            assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
        repo.checkout("HEAD~1", force=True, to=repo.root)
        assert files(folder) == written[1]
        assert repo.identify(folder / "config.json")
