"""2n epochs have the bits of n epochs, a resume and n more; refused where they would not."""

# ruff: noqa: E402 (the backend is set, and Keras looked for, before anything imports it)

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.frameworks.need import need

os.environ["KERAS_BACKEND"] = "torch"
need("keras")

import keras

import mvc
from mvc.errors import CannotResume
from mvc.frameworks.keras.callback import MVCCallback
from tests.frameworks.keras_runs import (
    BATCH,
    BATCHES,
    INPUTS,
    LABELS,
    SAMPLES,
    bits,
    compiled,
    fit,
    made,
    network,
)  # fmt: skip


@pytest.fixture(autouse=True)
def as_before(one_thread: None) -> Iterator[None]:
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


def goes_on(
    repo: mvc.Repository, make: Callable[[int], Any], epochs: int = 3, back: int = 7, **options: Any
) -> None:
    """From ``back`` versions before the end, by default in the middle of an epoch."""
    whole = make(0)
    losses = fit(whole, MVCCallback(repo), epochs=epochs, **options)
    again = make(99)
    recording = MVCCallback(repo, resume=f"HEAD~{back}")
    rest = fit(again, recording, epochs=epochs, **options)
    assert recording.resumed.step == epochs * BATCHES - back
    assert bits(again) == bits(whole)
    assert rest == {name: values[-len(rest[name]) :] for name, values in losses.items()}


@pytest.mark.parametrize("back", [0, 14])
def test_from_the_very_last_and_first_version(repo: mvc.Repository, back: int) -> None:
    goes_on(repo, made, back=back)


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_in_other_precisions(repo: mvc.Repository, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    goes_on(repo, made)
    scaled = any("dynamic_scale" in name for name in optimizer_of(repo))
    assert scaled == (policy == "mixed_float16")


def optimizer_of(repo: mvc.Repository) -> dict[str, torch.Tensor]:
    kept = repo.checkout("HEAD", path="model.training.safetensors")
    found: dict[str, torch.Tensor] = kept["optimizer"]["variables"]
    return found


def schedule() -> Any:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd-schedule": schedule,
    "adamw-ema": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=4),
    "rmsprop-accumulated": lambda: keras.optimizers.RMSprop(gradient_accumulation_steps=3),
    "loss-scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Nadam(), dynamic_growth_steps=3
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_other_optimizers(repo: mvc.Repository, name: str) -> None:
    goes_on(repo, lambda seed: made(seed, OPTIMIZERS[name]()))


@pytest.mark.parametrize("shuffle", [False, "batch"])
def test_with_other_orders(repo: mvc.Repository, shuffle: Any) -> None:
    goes_on(repo, made, shuffle=shuffle)


def test_from_the_end_of_an_epoch(repo: mvc.Repository) -> None:
    """Also what callbacks before this one have changed by then."""

    def halved() -> Any:
        return keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=100)

    whole = made()
    fit(whole, halved(), MVCCallback(repo, every="epoch"), epochs=2)
    two = fit(whole, halved(), epochs=4, initial_epoch=2)
    again = made(99)
    recording = MVCCallback(repo, resume="HEAD", every="epoch")
    rest = fit(again, halved(), recording, epochs=4)
    assert recording.resumed.batch == {"epoch": 2, "batch": 0}
    assert rest["loss"] == two["loss"]
    assert bits(again) == bits(whole)
    said = [entry.commit.message for entry in repo.log()]
    begun = f"step 3 (resumed from {recording.resumed.commit.short})"
    assert said == ["step 4", begun, "step 2", "step 1"]
    # A second fit with the same callback begins where its caller says.
    assert len(fit(again, halved(), recording, epochs=1)["loss"]) == 1


class Branched(keras.Model):
    """A layer used twice, torch's own modules, two layers of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = keras.layers.Dense(6, activation="tanh")
        self.norm = torch.nn.BatchNorm1d(6)
        self.one = keras.layers.Dense(4, name="same")
        self.two = keras.layers.Dense(4, name="same")
        self.drop = keras.layers.Dropout(0.3)
        self.last = keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.norm(self.shared(self.shared(x)), training=training)
        return self.last(self.drop(self.one(x) + self.two(x), training=training))


def test_with_a_model_that_is_a_class(repo: mvc.Repository) -> None:
    def make(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        return compiled(Branched())

    goes_on(repo, make)
    names = list(repo.checkout("HEAD"))
    assert [name for name in names if name.endswith("same/kernel#2")]
    assert [name for name in names if name.endswith("running_mean")]


class Noisy(torch.utils.data.Dataset[Any]):
    """Draws as often as it likes."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> Any:
        row = torch.tensor(INPUTS[index])
        if torch.rand(()) < 0.5:
            row += 0.1 * torch.randn(6)
        return row, torch.tensor(LABELS[index])


def test_from_a_loader_of_torch_whose_data_draws(repo: mvc.Repository) -> None:
    def train(seed: int, *callbacks: Any) -> Any:
        model = made(seed)
        loader = torch.utils.data.DataLoader(Noisy(), batch_size=BATCH, shuffle=True)
        model.fit(loader, epochs=3, verbose=0, callbacks=[*callbacks])
        return model

    whole = train(0, MVCCallback(repo))
    assert bits(train(99, MVCCallback(repo, resume="HEAD~2"))) == bits(whole)


# -- refused -----------------------------------------------------------------------------


def refuses(
    repo: mvc.Repository, reason: str, model: Any, rev: str = "HEAD", **options: Any
) -> Any:
    with pytest.raises(CannotResume, match=reason) as caught:
        fit(model, MVCCallback(repo, resume=rev), **options)
    return caught.value.hint


def test_refuses_other_data_in_the_middle_of_an_epoch(repo: mvc.Repository) -> None:
    fit(made(), MVCCallback(repo), epochs=2)
    train = made().train_function
    for options, reason in (
        ({"batch_size": 12}, r"data have changed: batch size: 12, not 8\n"),
        ({"shuffle": False}, "order of the data differs from the recorded epoch"),
    ):
        model = made()
        refuses(repo, reason, model, "HEAD~2", **options)
        assert type(model.train_function) is not type(train)
        assert "Skip" not in type(model.train_function).__name__


def first(count: int, model: Any, *callbacks: Any, epochs: int = 2) -> None:
    model.fit(INPUTS[:count], LABELS[:count], batch_size=BATCH, epochs=epochs, verbose=0,
              callbacks=[*callbacks])  # fmt: skip


@pytest.mark.parametrize("count", [35, 33])
def test_another_number_of_rows(repo: mvc.Repository, count: int) -> None:
    """As many batches as before; yet their order is one of other rows."""
    first(SAMPLES, made(), MVCCallback(repo), epochs=1)
    said = f"data have changed: rows: {count}, not 36\n"
    with pytest.raises(CannotResume, match=said) as caught:
        first(count, made(), MVCCallback(repo, resume="HEAD~2"))
    assert "the same data" in str(caught.value.hint)
    end = MVCCallback(repo, every="epoch")
    first(SAMPLES, made(), end, epochs=1)
    going = MVCCallback(repo, resume="HEAD")
    first(count, made(), going)
    assert going.resumed.differs == (f"rows: {count}, not 36",)


def test_fewer_epochs_than_were_begun_are_told(repo: mvc.Repository) -> None:
    fit(made(), MVCCallback(repo, every="epoch"), epochs=2)
    rest = "have started: nothing is left to train"
    for epochs, told in ((2, ()), (1, (f"epochs: 1, but 2 {rest}",))):
        recording = MVCCallback(repo, resume="HEAD")
        fit(made(), recording, epochs=epochs)
        assert recording.resumed.differs == told


def test_refuses_what_the_model_is_not(repo: mvc.Repository) -> None:
    fit(made(), MVCCallback(repo, every="epoch"), epochs=1)
    other = keras.Sequential([keras.layers.Dense(3)])
    model = compiled(other)
    refuses(repo, "the version has", model)
    assert "optimizer" in refuses(repo, "optimizer is Adam, this one is SGD", made(0, "sgd"))
    keras.config.set_dtype_policy("float64")
    before = made(5)
    as_built = bits(before)
    refuses(repo, r"kernel is float64 .* in the model, float32", before)
    assert bits(before)[: len(as_built)] == as_built


def test_refuses_a_model_that_was_committed_later(repo: mvc.Repository) -> None:
    fit(made(), MVCCallback(repo, every="epoch"), epochs=1)
    repo.commit({"weight": torch.zeros(3)})
    refuses(repo, r"belongs to another version of model\.safetensors", made())


class InOrder(keras.utils.PyDataset):
    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index::BATCHES], LABELS[index::BATCHES]


def rows() -> Iterator[Any]:
    while True:
        for index in range(BATCHES):
            yield INPUTS[index::BATCHES], LABELS[index::BATCHES]


DATA: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "steps": (lambda: INPUTS, {"y": LABELS, "steps_per_epoch": 1}, "iterator of the previous one"),
    "workers": (lambda: InOrder(workers=2), {}, "a PyDataset with workers"),
    "generator": (rows, {"steps_per_epoch": 2}, "a generator"),
}


@pytest.mark.parametrize("kind", DATA)
def test_data_that_no_other_process_can_read_again(repo: mvc.Repository, kind: str) -> None:
    """Refused within an epoch; from the end of one training goes on, and says what differs."""
    make, options, reason = DATA[kind]

    def train(recording: MVCCallback) -> Any:
        model = made()
        model.fit(make(), epochs=2, verbose=0, callbacks=[recording], **options)
        return model

    train(MVCCallback(repo, every="epoch"))
    recording = MVCCallback(repo, resume="HEAD~1", every="epoch")
    model = train(recording)
    assert [reason in said for said in recording.resumed.differs] == [True]
    assert int(model.optimizer.iterations) == recording.resumed.step * 2 * (
        options.get("steps_per_epoch") or BATCHES
    )
    train(MVCCallback(repo))
    with pytest.raises(CannotResume, match=reason) as caught:
        train(MVCCallback(repo, resume="HEAD"))
    assert "every='epoch'" in str(caught.value.hint)


def test_from_a_dataset_of_keras(repo: mvc.Repository) -> None:
    """Keras shuffles its batches by Python's generator."""

    def train(seed: int, *callbacks: Any) -> Any:
        model = made(seed)
        model.fit(InOrder(), epochs=3, verbose=0, callbacks=[*callbacks])
        return model

    whole = train(0, MVCCallback(repo))
    assert bits(train(99, MVCCallback(repo, resume="HEAD~7"))) == bits(whole)


def test_a_fit_broken_off_while_it_skips_leaves_nothing_behind(repo: mvc.Repository) -> None:
    fit(made(), MVCCallback(repo), epochs=1)

    class Breaks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    model = made()
    with pytest.raises(KeyboardInterrupt):
        fit(model, MVCCallback(repo, resume="HEAD~1"), Breaks())
    trained = int(model.optimizer.iterations)
    fit(model, epochs=1)
    assert int(model.optimizer.iterations) == trained + BATCHES


def test_network_is_what_the_other_tests_take_it_for() -> None:
    model = network()
    assert len(model.variables) > len(model.weights) > len(model.trainable_weights) + 2
