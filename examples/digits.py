"""Handwritten digits as a stream in which one class drifts in.

The images are scikit-learn's 1,797 digits (8 x 8, part of the package: nothing is downloaded),
enlarged to 20 x 20 in the middle of 28 x 28, as MNIST sets its own. Invariant: everything is a
function of its arguments, seed included; the generators used are local, so that torch's global
one is neither read nor moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

Batch = tuple[Tensor, Tensor]
"""Images float32 ``(n, 1, 28, 28)`` in [0, 1] and labels int64 ``(n,)``."""


@dataclass(frozen=True)
class DriftStream:
    """What a deployed model sees: labelled data without one class, then batches that bring it in.

    ``drifting`` says how many samples of each online batch have the new class; they come first
    in their batch.
    """

    label: int
    offline: Batch
    online: list[Batch]
    drifting: list[int]


def load_images() -> Batch:
    """Load all 1,797 digits, scaled to [0, 1] and set into 28 x 28 pixels as MNIST sets its own:
    enlarged bilinearly from 8 x 8 to 20 x 20 with an empty margin of 4.
    """
    small, labels = load_small()
    large = functional.interpolate(small, size=(20, 20), mode="bilinear", align_corners=False)
    return functional.pad(large, (4, 4, 4, 4)), labels


def load_small() -> Batch:
    """Load all 1,797 digits in their own size: float32 ``(1797, 1, 8, 8)`` in [0, 1]."""
    raw = load_digits()
    images = torch.from_numpy(raw.images).to(torch.float32).unsqueeze(1) / 16.0
    return images, torch.from_numpy(raw.target).to(torch.int64)


def number_images(count: int, size: int, *, seed: int) -> Batch:
    """Draw two digits side by side: the hundred classes 00 to 99 for a larger network.

    Returns float32 ``(count, 3, size, size)`` in [0, 1], the grey image in all three channels,
    and int64 labels ``10 * left + right``.
    """
    images, labels = load_small()
    chosen = torch.randint(len(images), (2, count), generator=torch.Generator().manual_seed(seed))
    pairs = torch.cat([images[chosen[0]], images[chosen[1]]], dim=3)
    large = functional.interpolate(pairs, size=(size, size), mode="bilinear", align_corners=False)
    return large.repeat(1, 3, 1, 1), 10 * labels[chosen[0]] + labels[chosen[1]]


def drift_total(batches: int, batch_size: int, share: float) -> int:
    """Count the samples of the new class over a stream whose last batch holds ``share`` of it."""
    return math.ceil(batches * Fraction(str(share)) / 2 * batch_size)


def drift_counts(total: int, batches: int) -> list[int]:
    """Spread ``total`` samples of the new class over ``batches``, their share growing linearly.

    The running sum after batch n is ``floor(total * (n + 1)^2 / batches^2)``: the rule of the
    VSOL experiments, in integers so that no rounding differs between machines.
    """
    sums = [total * (n + 1) ** 2 // batches**2 for n in range(batches)]
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def drift_stream(
    label: int = 0,
    *,
    batches: int = 30,
    batch_size: int = 80,
    share: float = 0.5,
    seed: int = 2,
) -> DriftStream:
    """Make the stream in which class ``label`` appears only after the offline training.

    Half of the digits of the other classes are for the offline training, the other half and all
    of ``label`` come online, so that accuracy on the stream is accuracy on digits the offline
    training has not seen. A long stream shows them again, each time in a new order. The counts
    follow the drift split of the VSOL experiments with no offline sample of the new class.

    Raises:
        ValueError: ``label`` is no digit, a size is not positive, or ``share`` is not in (0, 1].
    """
    if not 0 <= label <= 9 or min(batches, batch_size) < 1 or not 0 < share <= 1:
        raise ValueError(
            f"no stream for label={label}, batches={batches}, batch_size={batch_size}, "
            f"share={share}: label is 0 to 9, sizes are at least 1, share is above 0 and at most 1"
        )
    images, labels = load_images()
    generator = torch.Generator().manual_seed(seed)
    old = _shuffled((labels != label).nonzero().flatten(), generator)
    half = len(old) // 2
    counts = drift_counts(drift_total(batches, batch_size, share), batches)
    news = _endless((labels == label).nonzero().flatten(), sum(counts), generator)
    olds = _endless(old[half:], batches * batch_size - sum(counts), generator)
    return DriftStream(
        label=label,
        offline=(images[old[:half]], labels[old[:half]]),
        online=[
            (images[part], labels[part]) for part in _interleave(news, olds, counts, batch_size)
        ],
        drifting=counts,
    )


def _shuffled(values: Tensor, generator: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=generator)]


def _endless(values: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Take ``count`` of ``values``, over and over, each round in a new order."""
    rounds = [_shuffled(values, generator) for _ in range(-(-count // len(values)))]
    return torch.cat(rounds)[:count] if rounds else values[:0]


def _interleave(news: Tensor, olds: Tensor, counts: list[int], batch_size: int) -> list[Tensor]:
    online = []
    new = old = 0
    for count in counts:
        rest = batch_size - count
        online.append(torch.cat([news[new : new + count], olds[old : old + rest]]))
        new, old = new + count, old + rest
    return online
