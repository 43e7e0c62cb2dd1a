"""Files that Keras itself writes: they come back byte for byte, with all variables as tensors."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")
pytest.importorskip("torch")
os.environ["KERAS_BACKEND"] = "torch"
keras = pytest.importorskip("keras")
layers = keras.layers

from tests.adapters.helpers import round_trip  # noqa: E402
from tests.adapters.test_hdf5 import arrays, seen_by_h5py  # noqa: E402


def dense():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(9), layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.zeros((8, 6)), np.zeros((8, 1)), verbose=0)
    return model


def convolutional():
    stack = [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization()]
    return keras.Sequential([*stack, layers.Flatten(), layers.Dropout(0.1), layers.Dense(2)])


def recurrent():
    return keras.Sequential([keras.Input((5, 3)), layers.LSTM(4), layers.Dense(2)])


def nested():
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4)], name="inner")
    x = keras.Input((4,))
    return keras.Model(x, layers.Add()([inner(x), inner(inner(x))]))


def attention():
    words = keras.Input((7,), dtype="int32")
    x = layers.Embedding(20, 8)(words)
    x = layers.MultiHeadAttention(2, 4)(x, x)
    return keras.Model(words, layers.Dense(3)(layers.LayerNormalization()(x)))


def half():
    return keras.Sequential([keras.Input((6,)), layers.Dense(9, dtype="bfloat16")])


MODELS = [dense, convolutional, recurrent, nested, attention, half]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_every_saved_variable_is_a_tensor(tmp_path: Path, make, name: str) -> None:
    model, file = make(), tmp_path / name
    (model.save if name == "m.keras" else model.save_weights)(file)
    data = file.read_bytes()
    found, weights = arrays(data), data
    if name == "m.keras":
        weights = zipfile.ZipFile(io.BytesIO(data)).read("model.weights.h5")
    assert found == seen_by_h5py(weights)
    saved = [*model.trainable_weights, *getattr(model, "optimizer", model.layers[-1]).variables]
    values = [np.asarray(keras.ops.convert_to_numpy(each.value)).tobytes() for each in saved]
    assert values and set(values) <= set(found.values())


def test_files_as_keras_2_wrote_them(tmp_path: Path) -> None:
    model = dense()
    model.save(tmp_path / "m.h5")
    data = (tmp_path / "m.h5").read_bytes()
    found = arrays(data)
    assert found == seen_by_h5py(data)
    kernel = keras.ops.convert_to_numpy(model.layers[0].kernel)
    assert kernel.tobytes() in [v for k, v in found.items() if k.startswith("model_weights/")]


def test_bfloat16_is_no_pair_of_bytes(tmp_path: Path) -> None:
    half().save_weights(tmp_path / "m.weights.h5")
    entry = round_trip((tmp_path / "m.weights.h5").read_bytes())
    assert {tensor.spec.dtype for tensor in entry.tensors} == {"bfloat16"}
