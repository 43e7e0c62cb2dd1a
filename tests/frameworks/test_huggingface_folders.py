"""Folders as versions: those of save_pretrained, and those that the callback makes of steps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import mvc
from tests.frameworks.need import need

transformers = need("transformers", "accelerate")

from mvc.frameworks.huggingface import MVCCallback  # noqa: E402
from tests.frameworks.huggingface_runs import trainer  # noqa: E402
from tests.frameworks.trainings import MODEL, PIPELINE, TRAINING  # noqa: E402


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


# -- what the callback commits --------------------------------------------------------------

SMALL: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 8,
}  # fmt: skip


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def mixtral() -> Any:
    """Its file has other names than its module where ``save_pretrained`` writes it."""
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, num_local_experts=2))


def tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="?", pad_token="?"
    )


TRAINED = {
    "gpt2": (gpt2, "AutoModelForCausalLM"),
    "bert": (bert, "AutoModelForMaskedLM"),
    "bfloat16": (half, "AutoModelForCausalLM"),
    "t5": (t5, "AutoModelForSeq2SeqLM"),
    "mixtral": (mixtral, "AutoModelForCausalLM"),
}


def equal(loaded: Any, state: dict[str, torch.Tensor]) -> bool:
    found = loaded.state_dict()
    return found.keys() == state.keys() and all(torch.equal(found[k], state[k]) for k in state)


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_is_a_folder_of_from_pretrained(
    tmp_path: Path, repo: mvc.Repository, name: str
) -> None:
    net, auto = TRAINED[name]
    run = trainer(tmp_path, [MVCCallback(repo)], net=net, max_steps=2, processing_class=tokenizer())
    run.train()
    assert run.model.config.architectures is None  # that of the training stays as it is
    repo.checkout("HEAD", to=tmp_path / "out")
    loaded, wrong = getattr(transformers, auto).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(wrong.values()) and type(loaded) is type(run.model)
    assert equal(loaded, run.model.state_dict()) and loaded.dtype == run.model.dtype
    assert loaded.config.architectures == [type(loaded).__name__]
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("a b")["input_ids"] == [
        0,
        1,
    ]
    assert (tmp_path / "out" / "generation_config.json").exists() == loaded.can_generate()


def test_production_weights_in_a_folder_of_their_own(tmp_path: Path, repo: mvc.Repository) -> None:
    name, keep = f"net/{MODEL}", {"pipeline": PIPELINE, "keep_training": True}
    callback = MVCCallback(repo, name=name, **keep)
    trainer(tmp_path, [callback], max_steps=2).train()
    repo.checkout("HEAD", to=tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "net")
    assert equal(loaded, repo.checkout("HEAD", path=name))


def test_files_are_stored_once_and_come_back(tmp_path: Path, repo: mvc.Repository) -> None:
    callback, beside = MVCCallback(repo), {"config.json", "generation_config.json"}
    trainer(tmp_path, [callback], max_steps=2).train()
    assert callback.report is not None and callback.report.newest is not None
    assert beside.isdisjoint(callback.report.newest.entries)  # the second step has them unread
    repo.commit(message="without", states={"config.json": None})
    assert beside - {*repo.manifest("HEAD").by_path} == {"config.json"}
    trainer(tmp_path, [callback], max_steps=1).train()
    assert {*callback.report.newest.entries} == {"config.json", MODEL, TRAINING}
    assert {*repo.manifest("HEAD").by_path} == {*beside, MODEL, TRAINING}


def test_what_transformers_refuses_to_save_ends_no_training(
    tmp_path: Path, repo: mvc.Repository
) -> None:
    class Broken:
        def save_pretrained(self, folder: str) -> None:
            raise NotImplementedError("no vocabulary")

    run = trainer(tmp_path, [MVCCallback(repo)], max_steps=1)
    run.callback_handler.processing_class = Broken()
    with pytest.warns(UserWarning, match="mvc: the tokenizer is not recorded: no vocabulary"):
        run.train()
    assert "config.json" in repo.manifest("HEAD").by_path
