"""A file that a training made elsewhere, committed with its recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import mvc
import mvc.recipes as recipes
from mvc.errors import CannotRecord, RetrainingDiffers, WeightsDropped, WrongUsage
from tests.recipes.trainings import Conv, shift

pytestmark = pytest.mark.usefixtures("prepared")


@pytest.fixture
def model(repo: mvc.Repository) -> Iterator[Conv]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    made = mvc.constructed(Conv, 2, dropout=0.5)
    repo.commit(made.state_dict())
    yield made
    torch.set_num_threads(before)


def shifted(model: nn.Module, by: float) -> dict[str, torch.Tensor]:
    names = dict(model.named_parameters())
    return {n: v + by if n in names else v for n, v in model.state_dict().items()}


def test_a_file_is_committed_as_what_the_service_made(repo: mvc.Repository, model: Conv) -> None:
    file = repo.root / "model.safetensors"
    save_file(shifted(model, 1.0), file)
    with mvc.record(repo, model, service=shift, drop_weights=True) as run:
        run.trained(file)
    assert run.result is not None
    (newest, *_) = repo.log()
    assert newest.dropped is not None and newest.dropped.proven_ns is not None
    assert {change.kind for change in repo.status().changes} == {"unchanged"}
    repo.storage.gc(grace="0")
    with pytest.raises(WeightsDropped):
        repo.checkout()
    with mvc.retraining(repo, trust=True):
        again = repo.checkout()
    assert all(torch.equal(again[n], v) for n, v in shifted(model, 1.0).items())
    recipes.store_weights(repo, "HEAD", trust=True)
    assert repo.storage.fsck(full=True).sound
    data = file.read_bytes()
    file.unlink()
    repo.checkout("HEAD", force=True, to=repo.root)
    assert file.read_bytes() == data


def test_a_file_that_the_service_does_not_make_keeps_its_weights(
    repo: mvc.Repository, model: Conv
) -> None:
    file = repo.root / "model.safetensors"
    save_file(shifted(model, 2.0), file)
    with (
        pytest.raises(RetrainingDiffers, match=r"by at most 1\).* committed with its weights"),
        mvc.record(repo, model, service=shift, drop_weights=True) as run,
    ):
        run.trained(file)
    assert next(iter(repo.log())).dropped is None
    repo.storage.gc(grace="0")
    assert torch.equal(repo.checkout()["net.0.weight"], shifted(model, 2.0)["net.0.weight"])


def test_files_at_other_paths_and_of_other_models_are_refused(
    repo: mvc.Repository, model: Conv, tmp_path: Path
) -> None:
    other = repo.root / "other.safetensors"
    save_file(shifted(model, 1.0), other)
    with (
        pytest.raises(WrongUsage, match=r"other\.safetensors is not at model\.safetensors"),
        mvc.record(repo, model, service=shift) as run,
    ):
        run.trained(other)
    save_file({"x": torch.zeros(3)}, other)
    with (
        pytest.raises(CannotRecord, match=r"other\.safetensors lacks net\.0\.bias"),
        mvc.record(repo, model, service=shift, path="other.safetensors") as run,
    ):
        run.trained(other)
    assert len(list(repo.log())) == 1
