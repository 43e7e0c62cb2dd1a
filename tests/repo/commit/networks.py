"""Names and shapes of the state dictionaries of published networks, in their order.

``share``: channels of the body are divided by this, so that a test need not move 240 MB; the
head keeps its number of classes. Names and numbers of entries stay those of the real networks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Entries = Iterator[tuple[str, tuple[int, ...]]]

BUFFERS = ("running_mean", "running_var")
MOBILENET = [
    (1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1),
]  # fmt: skip
"""Expansion, channels and number of the blocks of MobileNetV2."""


def _norm(name: str, width: int) -> Entries:
    for key in ("weight", "bias", *BUFFERS):
        yield f"{name}.{key}", (width,)
    yield f"{name}.num_batches_tracked", ()


def resnet152(share: int = 1) -> Entries:
    """932 entries, 60,192,808 of their elements parameters at ``share`` 1."""
    width = 64 // share
    yield "conv1.weight", (width, 3, 7, 7)
    yield from _norm("bn1", width)
    inputs = width
    for stage, blocks in enumerate((3, 8, 36, 3)):
        inner = width << stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            for i, shape in enumerate(
                ((inner, inputs, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)), 1
            ):
                yield f"{name}.conv{i}.weight", shape
                yield from _norm(f"{name}.bn{i}", shape[0])
            if not block:
                yield f"{name}.downsample.0.weight", (4 * inner, inputs, 1, 1)
                yield from _norm(f"{name}.downsample.1", 4 * inner)
            inputs = 4 * inner
    yield "fc.weight", (1000, inputs)
    yield "fc.bias", (1000,)


def mobilenet_v2(share: int = 1) -> Entries:
    """314 entries, 3,504,872 of their elements parameters at ``share`` 1."""
    inputs, place = 32 // share, 1
    yield "features.0.0.weight", (inputs, 3, 3, 3)
    yield from _norm("features.0.1", inputs)
    for expansion, channels, blocks in MOBILENET:
        for _ in range(blocks):
            inner, outputs, conv = inputs * expansion, channels // share, 0
            name = f"features.{place}.conv"
            if expansion > 1:
                yield f"{name}.0.0.weight", (inner, inputs, 1, 1)
                yield from _norm(f"{name}.0.1", inner)
                conv = 1
            yield f"{name}.{conv}.0.weight", (inner, 1, 3, 3)
            yield from _norm(f"{name}.{conv}.1", inner)
            yield f"{name}.{conv + 1}.weight", (outputs, inner, 1, 1)
            yield from _norm(f"{name}.{conv + 2}", outputs)
            inputs, place = outputs, place + 1
    last = 1280 // share
    yield f"features.{place}.0.weight", (last, inputs, 1, 1)
    yield from _norm(f"features.{place}.1", last)
    yield "classifier.1.weight", (1000, last)
    yield "classifier.1.bias", (1000,)


def parameters(entries: Entries) -> int:
    """Elements that are trained: all but the statistics of normalisation."""
    counted = (*BUFFERS, "num_batches_tracked")
    return sum(int(np.prod(s)) for name, s in entries if not name.endswith(counted))


def state(entries: Entries, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights: they shrink by no more than noise does."""
    rng = np.random.default_rng(seed)
    return {
        name: np.int64(0).reshape(())
        if name.endswith("tracked")
        else rng.standard_normal(shape, np.float32) / np.float32(16)
        for name, shape in entries
    }
