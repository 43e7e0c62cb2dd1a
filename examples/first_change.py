"""Since when does the model say something else about this customer's digit?

A net learns scikit-learn's digits online while the digit 6 drifts in; every batch is a version
that goes live. Afterwards one six is asked of all versions, in order: when was it first read
otherwise, and what had been read before?

    python examples/first_change.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import mvc

State = Mapping[str, NDArray[np.float64]]
DRIFTING = 6
BATCHES, SIZE = 40, 32


def weights(net: MLPClassifier) -> dict[str, NDArray[np.float64]]:
    """The net's layers as a state that mvc keeps."""
    layers = enumerate(zip(net.coefs_, net.intercepts_, strict=True))
    return {f"{n}.{k}": array for n, pair in layers for k, array in zip("wb", pair, strict=True)}


def predict(state: State, image: NDArray[np.float64]) -> int:
    """What the net with this state reads: one hidden layer with ReLU, the largest output wins."""
    hidden = np.maximum(image @ state["0.w"] + state["0.b"], 0)
    return int((hidden @ state["1.w"] + state["1.b"]).argmax())


def train(repo: mvc.Repository) -> NDArray[np.float64]:
    """Deploy a version for each batch; return a six that no version has been trained on."""
    digits = load_digits()
    images, labels = digits.data / 16, digits.target
    order = np.random.default_rng(2).permutation(len(labels))
    sixes, others = order[labels[order] == DRIFTING], order[labels[order] != DRIFTING]
    net = MLPClassifier((32,), random_state=2)
    for _ in range(20):
        net.partial_fit(images[others[:800]], labels[others[:800]], classes=range(10))
    online = np.random.default_rng(3)
    for batch in range(BATCHES):
        new = SIZE * batch // (2 * BATCHES)
        rows = [*online.choice(sixes[1:], new), *online.choice(others[800:], SIZE - new)]
        net.partial_fit(images[rows], labels[rows])
        repo.commit(weights(net), message=f"batch {batch}", deploy="prod")
    return images[sixes[0]]


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="mvc-change-")
    with mvc.Repository.init(Path(folder)) as repo:
        six = train(repo)
        change = mvc.first_change(repo, predict, six, target="prod")
        if change is None:
            print("all versions read the same")
            return
        moment = datetime.fromtimestamp(change.time_ns / 1e9).isoformat(timespec="milliseconds")
        print(f"read as {change.before} until version {change.previous.short}")
        print(f"read as {change.after} since version {change.commit.short}, live from {moment}")
        print(f"{change.evaluated} versions were asked")


if __name__ == "__main__":
    main()
