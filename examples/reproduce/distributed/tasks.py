"""What is learned: data, and networks whose k copies are trained at once.

A network is a function of flat vectors: the models of all workers are the rows of one array, and
their gradients come from one backward pass, because no worker's loss depends on another's row.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mvc.errors import BadModelFile, UnknownPath, WrongUsage

from ..data import Dataset, load_data, unpacked

__all__ = ["Network", "Task", "load_task"]

_TEST = 0.2  # of all samples, where the data have no test part of their own
_SEQUENCE = 5  # crimes of a sample, as in the thesis
_WORDS = 40  # of a text: the last ones
_DICTIONARY = 3000


@dataclass(frozen=True)
class Network:
    """Dense layers behind ``depth`` LSTM layers (none for images) behind an embedding (texts).

    ``inputs``: numbers of a step, or of a sample without LSTM. ``words``: of the dictionary, or 0.
    """

    inputs: int
    classes: int
    hidden: int
    depth: int = 0
    words: int = 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the tensors, in the order of the vector."""
        found: list[tuple[int, ...]] = [(self.words, self.inputs)] if self.words else []
        width = self.inputs
        for _ in range(self.depth):
            gates = 4 * self.hidden
            found += [(width, gates), (self.hidden, gates), (gates,)]
            width = self.hidden
        if not self.depth:
            found += [(width, self.hidden), (self.hidden,)]
        return [*found, (self.hidden, self.classes), (self.classes,)]

    @property
    def length(self) -> int:
        """Parameters of the network."""
        return sum(map(math.prod, self.shapes))

    def first(self, seed: int) -> NDArray[np.float32]:
        """Weights uniform by the width of their layer, zero biases, ones for forget gates."""
        random, parts = np.random.default_rng(seed), []
        for shape in self.shapes:
            if len(shape) == 2:
                bound = math.sqrt(6 / sum(shape)) if shape[0] != self.words else 0.05
                parts.append(random.uniform(-bound, bound, math.prod(shape)))
            else:
                bias = np.zeros(shape)
                if self.depth and shape[0] == 4 * self.hidden:
                    bias[self.hidden : 2 * self.hidden] = 1
                parts.append(bias)
        return np.concatenate(parts).astype(np.float32)

    def logits(self, models: Tensor, samples: Tensor) -> Tensor:
        """``(k, batch, classes)`` of models ``(k, length)`` and samples ``(k, batch, ...)``."""
        ends = list(accumulate(map(math.prod, self.shapes)))
        parts = [
            part.view(len(models), *(shape if len(shape) == 2 else (1, *shape)))
            for part, shape in zip(
                torch.tensor_split(models, ends[:-1], 1), self.shapes, strict=True
            )
        ]
        values = samples
        if self.words:
            rows = torch.arange(len(models)).view(-1, 1, 1)
            values = parts.pop(0)[rows, samples]
        for _ in range(self.depth):
            into, within, bias, *parts = parts
            values = _lstm(values, into, within, bias)
        if self.depth:
            values = values[:, :, -1]
        else:
            into, bias, *parts = parts
            values = torch.relu(torch.baddbmm(bias, values, into))
        return torch.baddbmm(parts[1], values, parts[0])


def _lstm(values: Tensor, into: Tensor, within: Tensor, bias: Tensor) -> Tensor:
    """The outputs ``(k, batch, steps, hidden)`` of a layer."""
    count, batch, steps, width = values.shape
    gates = torch.baddbmm(bias, values.reshape(count, batch * steps, width), into)
    gates = gates.view(count, batch, steps, -1)
    hidden = values.new_zeros(count, batch, within.shape[1])
    cell, outputs = hidden, []
    for step in range(steps):
        now = torch.baddbmm(gates[:, :, step], hidden, within)
        enter, forget, candidate, leave = now.chunk(4, 2)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        hidden = torch.sigmoid(leave) * torch.tanh(cell)
        outputs.append(hidden)
    return torch.stack(outputs, 2)


@dataclass(frozen=True)
class Task:
    """Samples as tensors, and the network that learns them."""

    name: str
    network: Network
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]


def load_task(source: Path | None, limit: int | None = None) -> Task:
    """Digits if no data are named; a folder with ``train.csv.gz`` and ``test.csv.gz`` of Toronto's
    crimes; a folder of IDX files; a file of JSON lines with texts. ``limit``: training samples.
    """
    crimes = source is not None and (source / "train.csv.gz").exists()
    task = _crimes(source) if crimes and source else _of(load_data(source))
    if limit is None:
        return task
    if limit < 1:
        raise WrongUsage(f"limit is {limit}: it must be at least 1")
    samples, labels = task.train
    return replace(task, train=(samples[:limit], labels[:limit]))


def _of(data: Dataset) -> Task:
    order = np.random.default_rng(0).permutation(len(data.labels))
    labels = torch.from_numpy(data.labels[order])
    if data.kind == "texts":
        words = data.inputs[order][:, -_WORDS:]
        samples = torch.from_numpy(np.where(words < _DICTIONARY, words, 0)).long()
        network = Network(16, len(data.classes), 32, depth=2, words=_DICTIONARY)
    else:
        pixels = data.inputs[order].reshape(len(order), -1).astype(np.float32) / data.brightest
        samples = torch.from_numpy(pixels)
        network = Network(pixels.shape[1], len(data.classes), 32)
    cut = round(len(order) * (1 - _TEST))
    train, test = (samples[:cut], labels[:cut]), (samples[cut:], labels[cut:])
    return Task(data.name, network, train, test, data.classes)


# ---- Toronto's crimes

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBERS = ("occurrencehour", "occurrenceday", "occurrencedayofyear", "Lat", "Long")


def _crimes(folder: Path) -> Task:
    """Sequences of five crimes, one after the other in time; the last one's class is learned.

    Unlike in the thesis, the class is not among the inputs. Rows without a weekday are left out.
    """
    rows, cut = [], 0
    for name in ("train.csv.gz", "test.csv.gz"):
        if not (folder / name).exists():
            raise UnknownPath(f"there is no {folder / name}")
        try:
            text = io.StringIO(unpacked(folder / name).decode())
            rows += [row for row in csv.DictReader(text) if row.get("occurrencedayofweek")]
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadModelFile(f"{folder / name} is no table: {error}") from None
        cut = cut or len(rows)
    try:
        classes = tuple(sorted({row["MCI"] for row in rows}))
        premises = sorted({row["premises_type"] for row in rows})
        values = np.array([[float(row[name]) for name in _NUMBERS] for row in rows])
        hours = 2 * np.pi * values[:, :1] / 24
        days = np.array([_DAYS.index(row["occurrencedayofweek"].strip()) for row in rows])
        kinds = np.array([premises.index(row["premises_type"]) for row in rows])
        labels = np.array([classes.index(row["MCI"]) for row in rows])
        when = [row["occurrencedate"][:10] + row["occurrencehour"].zfill(2) for row in rows]
    except (KeyError, ValueError) as error:
        raise BadModelFile(f"{folder} holds no crimes of Toronto: {error}") from None
    mean, deviation = values[:cut].mean(axis=0), values[:cut].std(axis=0) + 1e-9
    parts = (
        *(np.clip((values - mean) / deviation, -3, 3), np.sin(hours), np.cos(hours)),
        *(np.eye(7)[days], np.eye(len(premises))[kinds]),
    )
    inputs = np.concatenate(parts, axis=1).astype(np.float32)
    pairs = []
    for first, last in ((0, cut), (cut, len(rows))):
        order = first + np.argsort(np.array(when[first:last]), kind="stable")
        windows = np.lib.stride_tricks.sliding_window_view(order, _SEQUENCE)
        windows = windows[np.random.default_rng(0).permutation(len(windows))]
        samples = torch.from_numpy(inputs[windows])
        pairs.append((samples, torch.from_numpy(labels[windows[:, -1]])))
    network = Network(inputs.shape[1], len(classes), 19, depth=1)
    return Task("toronto", network, pairs[0], pairs[1], classes)
