"""What a recorded training holds, and what is refused before training begins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import mvc
import mvc.recipes as recipes
from mvc.errors import CannotRecord, DamagedData, WrongUsage
from mvc.recipes.recipe import Recipe, recipe_of
from tests.recipes import trainings
from tests.recipes.recorded import recorded
from tests.recipes.trainings import (
    Conv,
    Counter,
    Half,
    Images,
    ImageService,
    Sampler,
    make_images,
    nothing,
    spoil,
    train_images,
)


@pytest.fixture
def model(repo: mvc.Repository) -> Iterator[Conv]:
    torch.manual_seed(0)
    made = mvc.constructed(Conv, 2, dropout=0.5)
    repo.commit(made.state_dict())
    yield made


def test_the_recipe_names_objects_by_their_place_and_refers_to_them(
    repo: mvc.Repository, model: Conv, images: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    data = mvc.constructed(Images, images, noise=0.2)
    sampler = mvc.constructed(RandomSampler, data, generator=generator)
    loader = mvc.constructed(DataLoader, data, batch_size=4, sampler=sampler)
    loss = mvc.constructed(nn.CrossEntropyLoss, label_smoothing=0.1)
    service = mvc.constructed(ImageService, optimizer, loader, loss=loss)
    run = recorded(repo, model, optimizer, data={"pictures": images}, service=service, epochs=1)
    recipe = recipe_of(repo, run.result.id)
    assert [(o.name, o.kind, o.state) for o in recipe.objects] == [
        ("service.optimizer", "optimizer", True),
        ("service.loader.dataset", "made", False),
        ("service.loader.sampler.generator", "torch.Generator", True),
        ("service.loader.sampler", "made", False),
        ("service.loader", "made", False),
        ("service.loss", "made", False),
        ("service", "made", False),
    ]
    by_name = {o.name: o for o in recipe.objects}
    assert by_name["service.loader"].args == ({"object": "service.loader.dataset"},)
    assert by_name["service.loader.dataset"].args == ({"data": "pictures", "path": ""},)
    assert by_name["service.loader.dataset"].keywords == {"noise": 0.2}
    assert recipe.service == {"method": [{"object": "service"}, "train"]}
    assert recipe.arguments == {"epochs": 1}
    assert recipe.makes.root == run.result.root
    assert recipe.steps == 4
    commit = repo.version()
    assert commit.needs == tuple(
        sorted([repo.find("HEAD~1"), recipes.data_set(repo, "pictures").version])
    )
    assert set(commit.attached) == {
        "code", "environment.json", "model.json", "recipe.json", "service",
    }  # fmt: skip
    assert "code/tests/recipes/trainings.py" in recipe.code
    assert isinstance(mvc.load_model(repo, trust=True), nn.Module)


def test_a_recipe_is_read_back_as_it_was_written(
    repo: mvc.Repository, model: Conv, images: Path
) -> None:
    given = {
        "numbers": [1, 2.5, float("inf"), -0.0, True, None],
        "table": {(1, "a"): {"x": []}},
        "kind": torch.float16,
        "where": torch.device("cpu"),
        "weights": torch.arange(3.0),
        "array": np.arange(4, dtype=np.int16),
        "call": partial(nn.functional.cross_entropy, label_smoothing=0.1),
        "choice": random.Random(3),
        "numpy": np.random.default_rng(4),
        "old": np.random.RandomState(5),
        "same": "text with no / file",
        "path": images / "labels.npy",
    }
    run = recorded(repo, model, data={"pictures": images}, service=nothing, **given)
    encoded = run.recipe.encoded()
    assert Recipe.decode(encoded) == run.recipe
    assert Recipe.decode(encoded).encoded() == encoded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"f": lambda x: x}, "f: a lambda cannot be recorded"),
        ({"f": [Counter()]}, r"f\[0\] is a Counter, and its constructor call is unknown"),
        ({"f": iter([1])}, "f is an iterator"),
        ({"f": open(__file__, encoding="utf-8")}, "f is an open file"),  # noqa: SIM115
        ({"f": torch}, "f is the module torch"),
        ({"f": Path("/etc/hostname")}, "f is the path /etc/hostname, which is in no data set"),
        (
            {"f": mvc.constructed(Sampler, 3)},
            "attribute rng of f is a Generator, whose state",
        ),
        ({"f": mvc.constructed(Half)}, "f has a state_dict, but no load_state_dict"),
        ({"f": {1, 2}}, "f is a set"),
        ({"f": object()}, "f is an object, and its constructor call is unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_recorded_is_refused_by_name_before_training(
    repo: mvc.Repository, model: Conv, arguments: dict[str, Any], message: str
) -> None:
    nothing.seen = None  # type: ignore[attr-defined]
    with pytest.raises(CannotRecord, match=message):
        recorded(repo, model, service=nothing, **arguments)
    assert nothing.seen is None  # type: ignore[attr-defined]
    assert len(list(repo.log())) == 1


def test_an_object_that_changed_since_it_was_made_has_a_state(
    repo: mvc.Repository, model: Conv
) -> None:
    counter = mvc.constructed(Counter)
    counter.count = 3
    with pytest.raises(
        CannotRecord, match=r"f has changed since it was created \(count: 0, now 3\)"
    ):
        recorded(repo, model, service=nothing, f=counter)


def test_a_function_inside_another_and_a_wrong_call_are_refused(
    repo: mvc.Repository, model: Conv
) -> None:
    def inner(model: nn.Module) -> None: ...

    with pytest.raises(CannotRecord, match=r"service: .*inner is defined inside a function"):
        recorded(repo, model, service=inner)
    with pytest.raises(WrongUsage, match=r"does not accept these arguments: .*'epochs'"):
        recorded(repo, model, service=trainings.make_images, epochs=3)
    with (
        pytest.raises(WrongUsage, match=r"nothing was trained"),
        mvc.record(repo, model, service=nothing),
    ):
        pass


def test_a_training_outside_of_a_with_block_is_refused(repo: mvc.Repository, model: Conv) -> None:
    with pytest.raises(WrongUsage, match="use a with block"):
        mvc.record(repo, model, service=nothing).train()


def test_wrong_arguments_are_named_as_what_they_are(repo: mvc.Repository, model: Conv) -> None:
    with pytest.raises(TypeError, match="depth"):
        mvc.constructed(Conv, depth=1)  # type: ignore[call-arg]
    with pytest.raises(WrongUsage, match="cannot remember an int"):
        mvc.constructed(int, 3)
    with pytest.raises(WrongUsage, match="service is of type NoneType"):
        recorded(repo, model, service=None)
    with pytest.raises(WrongUsage, match=r"model is a class: it must be a torch\.nn\.Module"):
        mvc.describe_model(Conv)
    with pytest.raises(WrongUsage, match="model is a class"):
        recorded(repo, Conv, service=nothing)


def test_weights_of_no_version_and_a_model_changed_afterwards_are_refused(
    repo: mvc.Repository, model: Conv
) -> None:
    with (
        pytest.raises(CannotRecord, match=r"changed after run.train"),
        mvc.record(repo, model, service=nothing, verify=False) as run,
    ):
        run.train()
        nn.init.ones_(model.net[0].weight)
    with pytest.raises(CannotRecord, match=r"no version has the model's current weights"):
        recorded(repo, model, service=nothing)


def test_a_model_with_hooks_is_refused(repo: mvc.Repository, model: Conv) -> None:
    model.net[1].register_forward_hook(lambda *_: None)
    with pytest.raises(CannotRecord, match=r"the module net.1 has hooks"):
        recorded(repo, model, service=nothing)


def test_data_that_is_written_to_during_training_is_noticed(
    repo: mvc.Repository, model: Conv, images: Path
) -> None:
    with pytest.raises(CannotRecord, match=r"labels.npy changed during the training"):
        recorded(repo, model, data=images, service=spoil)


def hostile(recipe: Recipe) -> Iterator[tuple[bytes, bytes]]:
    yield b'"schema": "mvc.recipe/1"', b'"schema": "mvc.recipe/2"'
    yield b'"steps": 0', b'"steps": -1'
    yield b'"seconds": ', b'"seconds": 1e99, "more": '
    yield b'"code": "tests.', b'"code": "../tests.'
    yield b'"version": "', b'"version": "0'
    yield b'"path": "model.safetensors"', b'"path": "../model.safetensors"'
    yield b'"objects": []', b'"objects": [{"name": "a"}]'
    yield b'"arguments": {}', b'"arguments": {"x": {"object": "b"}}'
    yield b'"arguments": {}', b'"arguments": {"x": {"data": "none", "path": ""}}'
    yield b'"arguments": {}', b'"arguments": {"x": {"data": [1], "path": ""}}'
    yield b'"arguments": {}', b'"arguments": {"x": {"data": {"a": 1}, "path": ""}}'
    yield b'"arguments": {}', b'"arguments": {"x": NaN}'
    yield b'"arguments": {}', b'"arguments": {"x": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    yield b'"arguments": {}', b'"arguments": {"x": {"method": [1, "__class__.x"]}}'


def test_hostile_recipes_are_refused(repo: mvc.Repository, model: Conv) -> None:
    run = recorded(repo, model, service=nothing)
    encoded = run.recipe.encoded()
    for old, new in hostile(run.recipe):
        assert old in encoded, old
        with pytest.raises(DamagedData, match="a recipe cannot be read"):
            Recipe.decode(encoded.replace(old, new, 1))
    for cut in range(0, len(encoded) - 2, 97):
        with pytest.raises(DamagedData):
            Recipe.decode(encoded[:cut])


def test_a_model_may_be_described_by_its_architecture(repo: mvc.Repository) -> None:
    torch.manual_seed(0)
    model = Conv(2, dropout=0.1)
    repo.commit(model.state_dict())
    given = mvc.Architecture(model, {"width": 2, "dropout": 0.1})
    run = recorded(repo, given, service=nothing)
    assert run.recipe.model.constructor == {
        "partial": [
            {"code": "tests.recipes.trainings:Conv"},
            [],
            [["width", 2], ["dropout", 0.1]],
        ]
    }
    with (
        pytest.raises(WrongUsage, match=r"one block records one call"),
        mvc.record(repo, given, service=nothing, verify=False) as run,
    ):
        run.train()
        run.train()
    with pytest.raises(CannotRecord, match="has parameters"):
        recorded(repo, model, service=nothing)


def test_the_state_of_an_optimizer_is_a_delta_of_the_one_before(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    """Where that is smaller: here Adam has trained for long and goes on for one step."""
    model = mvc.constructed(Conv, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-12, betas=(0.9999, 0.99999))
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(1e5),
            "exp_avg": 1e-2 * torch.randn_like(parameter),
            "exp_avg_sq": 1e-4 * torch.rand_like(parameter),
        }
    repo.commit(model.state_dict())
    data = make_images(tmp_path / "images", 8)
    for _ in range(2):
        recorded(repo, model, optimizer, data=data, service=train_images)
    second, first, _ = (e.storage for e in repo.log("HEAD", mvc.LogOptions(prices=True)))
    whole = 2 * 4 * sum(parameter.numel() for parameter in model.parameters())
    assert sum(first.bytes.values()) > 0.8 * whole
    assert sum(second.bytes.values()) < 0.7 * whole
    assert repo.storage.fsck(full=True).sound
