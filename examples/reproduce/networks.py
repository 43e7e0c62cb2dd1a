"""The networks of the thesis (section 4.4) in torch, and two small ones for the digits.

Layers, counts, initial distributions and optimizers are those of the Keras models: Glorot
uniform kernels, orthogonal recurrent ones, zero biases except ones for forget gates, an
embedding uniform in +-0.05; RMSprop(1e-3, rho 0.9, eps 1e-8) and Adam(1e-3, eps 1e-7).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mvc.errors import WrongUsage

from .data import VOCABULARY, Dataset
from .experiment import known

__all__ = ["LSTM", "RECIPES", "Recipe", "Rows", "conv", "recipe_for", "small", "tensors_of"]

M = TypeVar("M", bound=nn.Module)

_ONE_IN_1000 = Fraction(1, 1000)


@dataclass(frozen=True)
class Recipe:
    """A network with how it is trained: the defaults of an experiment.

    ``batch_size`` is taken as far as the data allow. ``seen``: share of the drifting label
    in the offline data. ``recurrent``: its figures belong beside those of the thesis's LSTM.
    """

    name: str
    kind: str
    build: Callable[[Dataset], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batch_size: int
    epochs: int = 10
    batches: int = 150
    seen: Fraction = Fraction(1, 10_000)
    recurrent: bool = False


def conv(classes: int = 10) -> nn.Sequential:
    """The net for 28 x 28 grey images: 887,530 parameters at ten classes, 12 tensors.

    Takes float32 ``(batch, 1, 28, 28)`` in [0, 1], gives logits ``(batch, classes)``.
    """
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(1, 32, 5, padding="same"),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 32, 5, padding="same"),
        relu2=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        drop1=nn.Dropout(0.25),
        conv3=nn.Conv2d(32, 64, 3, padding="same"),
        relu3=nn.ReLU(),
        conv4=nn.Conv2d(64, 64, 3, padding="same"),
        relu4=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        drop2=nn.Dropout(0.25),
        flatten=nn.Flatten(),
        fc1=nn.Linear(3136, 256),
        relu5=nn.ReLU(),
        drop3=nn.Dropout(0.5),
        fc2=nn.Linear(256, classes),
    )
    return _initialised(nn.Sequential(layers))


def small(pixels: int = 64, classes: int = 10) -> nn.Sequential:
    """A net of two layers for images of a few pixels: 2,410 parameters for digits."""
    layers = OrderedDict[str, nn.Module](
        flatten=nn.Flatten(),
        fc1=nn.Linear(pixels, 32),
        relu=nn.ReLU(),
        fc2=nn.Linear(32, classes),
    )
    return _initialised(nn.Sequential(layers))


class LSTM(nn.Module):
    """The net for texts: 1,905,924 parameters at four classes, 1,907,466 at ten.

    Takes int64 ``(batch, words)``, gives logits ``(batch, classes)``. An embedding, two
    bidirectional LSTMs, the maximum over time, three dense layers.
    """

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 128)
        self.lstm1 = _one_bias(nn.LSTM(128, 128, batch_first=True, bidirectional=True))
        self.lstm2 = _one_bias(nn.LSTM(256, 64, batch_first=True, bidirectional=True))
        self.fc1 = nn.Linear(128, 512)
        self.drop = nn.Dropout(0.25)
        self.fc2 = nn.Linear(512, 256)
        self.fc3 = nn.Linear(256, classes)
        _initialised(self)

    def forward(self, words: Tensor) -> Tensor:
        first, _ = self.lstm1(self.embedding(words))
        second, _ = self.lstm2(first)
        dense = self.drop(torch.relu(self.fc1(second.amax(1))))
        logits: Tensor = self.fc3(torch.relu(self.fc2(dense)))
        return logits


class Rows(nn.Module):
    """A recurrent net for images of a few pixels, which reads them row by row.

    Takes float32 ``(batch, 1, height, width)``, gives logits ``(batch, classes)``. 11,146
    parameters for digits: a bidirectional LSTM, the maximum over rows, a dense layer.
    """

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.lstm = _one_bias(nn.LSTM(width, 32, batch_first=True, bidirectional=True))
        self.fc = nn.Linear(64, classes)
        _initialised(self)

    def forward(self, images: Tensor) -> Tensor:
        rows, _ = self.lstm(images.squeeze(1))
        logits: Tensor = self.fc(rows.amax(1))
        return logits


def _rmsprop(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, eps=1e-8)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-7)


def _small(data: Dataset) -> nn.Module:
    return small(math.prod(data.inputs.shape[1:]), len(data.classes))


def _rows(data: Dataset) -> nn.Module:
    return Rows(data.inputs.shape[2], len(data.classes))


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("conv", "images", lambda data: conv(len(data.classes)), _rmsprop, 86),
        Recipe(
            *("lstm", "texts", lambda data: LSTM(len(data.classes)), _adam, 256),
            seen=_ONE_IN_1000,
            recurrent=True,
        ),
        Recipe("small", "images", _small, _rmsprop, 8, batches=60, seen=_ONE_IN_1000),
        Recipe(
            *("rows", "images", _rows, _adam, 8),
            batches=60,
            seen=_ONE_IN_1000,
            recurrent=True,
        ),
    )
}


def recipe_for(name: str | None, data: Dataset) -> Recipe:
    """The network of this name, or the one that fits the data; WrongUsage if it does not."""
    if name is None:
        large = data.inputs.shape[1:] == (28, 28)
        name = "lstm" if data.kind == "texts" else "conv" if large else "small"
    recipe = known("model", RECIPES, name)
    if recipe.kind != data.kind:
        raise WrongUsage(f"the model {name} takes {recipe.kind}, but {data.name} holds {data.kind}")
    if name == "conv" and data.inputs.shape[1:] != (28, 28):
        height, width = data.inputs.shape[1:]
        raise WrongUsage(
            f"the model conv takes images of 28 x 28, not {height} x {width}",
            hint="--model small and --model rows take images of any size",
        )
    return recipe


def tensors_of(data: Dataset, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Samples as a network takes them: images float32 in [0, 1] with a channel, words int64."""
    labels = torch.from_numpy(data.labels[rows])
    chosen = torch.from_numpy(data.inputs[rows])
    if data.kind == "texts":
        return chosen.long(), labels
    return chosen.unsqueeze(1).float() / data.brightest, labels


def _one_bias(layer: nn.LSTM) -> nn.LSTM:
    """Leaves one bias a direction, as in Keras: torch adds two and trains both.

    The second becomes a constant zero, which is neither trained nor part of the state.
    """
    for name in [name for name, _ in layer.named_parameters() if name.startswith("bias_hh")]:
        zeros = torch.zeros_like(getattr(layer, name))
        delattr(layer, name)
        setattr(layer, name, zeros)
    return layer


def _initialised(model: M) -> M:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_uniform_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.05, 0.05)
        elif isinstance(module, nn.LSTM):
            _initialise_lstm(module)
    return model


def _initialise_lstm(layer: nn.LSTM) -> None:
    hidden = layer.hidden_size
    for name, value in layer.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(value)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(value)
        else:
            nn.init.zeros_(value)
            with torch.no_grad():  # gates in the order input, forget, cell, output
                value[hidden : 2 * hidden] = 1
