"""What commands say of weights that were given up, and how they train them again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file

import mvc as library
from tests.cli.program import Mvc
from tests.recipes.trainings import Conv, nothing, shift

pytestmark = pytest.mark.usefixtures("prepared")


@pytest.fixture
def dropped(mvc: Mvc) -> Iterator[str]:
    """A version that gave up its weights."""
    from tests.recipes.by_hand import drop

    torch.manual_seed(0)
    model = library.made(Conv, 2)
    with library.Repository.open(mvc.folder) as repo:
        repo.commit(model.state_dict())
        with repo.recipes.record(model, service=nothing, verify=False) as run:
            run.train()
        assert run.result is not None
        drop(repo.context, run.result.id)
        yield str(run.result.id)


def test_given_up_weights_are_told_and_need_a_word_to_be_trained(mvc: Mvc, dropped: str) -> None:
    assert "recoverable by retraining" in mvc("log", "-n", 1, "--oneline").out
    assert "given up; recoverable by retraining" in mvc("show", dropped).out
    assert mvc("log", "-n", 1, "--json").json["commits"][0]["dropped"]["path"] == (
        "model.safetensors"
    )
    assert "1 by retraining" in mvc("stats").out
    assert mvc("stats", "--json").json["dropped"] == 1
    assert "recoverable by retraining" in mvc("fsck").err
    assert "given up" in mvc("undo", "--list", "--max-count", 1).out
    # The base has the same weights here, so nothing needs to be trained.
    assert "nothing is trained" in mvc("checkout", "--retrain", dropped, "-o", "a.safetensors").err
    mvc("checkout", "--trust-code", dropped, code=2)
    mvc("checkout", "--anyway", dropped, code=2)
    mvc("repack", "--trust-code", code=2)
    mvc("repack", "--add", dropped)
    assert "retraining" not in mvc("log", "-n", 1, "--oneline").out
    assert "given up: the weights of" in mvc("repack", "--drop-weights", dropped).err


def test_a_whole_model_is_written_of_weights_that_are_trained_again(mvc: Mvc) -> None:
    from tests.recipes.by_hand import drop

    with library.Repository.open(mvc.folder) as repo:
        model = library.made(Conv, 2)
        repo.commit(model.state_dict())
        with repo.recipes.record(model, service=shift, verify=False) as run:
            run.train()
        assert run.result is not None
        drop(repo.context, run.result.id)
        repo.storage.gc(grace="0")
    wanted = ("checkout", "--model", "--trust-code", str(run.result.id), "-o", "out")
    assert "--retrain" in mvc(*wanted, code=3).err
    told = mvc(*wanted, "--retrain").err
    assert "the code builds a Conv" in told
    assert (mvc.folder / "out/load.py").exists()
    written = load_file(mvc.folder / "out/model.safetensors")
    assert all(torch.equal(written[n], v) for n, v in model.state_dict().items())


def test_versions_without_a_recipe_are_refused(mvc: Mvc) -> None:
    mvc.commit()
    assert "has no recipe" in mvc("repack", "--drop-weights", "HEAD", code=3).err
