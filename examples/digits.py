"""Handwritten digits as a stream in which one class drifts in.

The images are scikit-learn's 1,797 digits (8 x 8, part of the package: nothing is downloaded),
enlarged to 28 x 28. Invariant: everything is a function of its arguments, seed included; the
generators used are local, so that torch's global one is neither read nor moved.
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
    """Load all 1,797 digits, enlarged bilinearly from 8 x 8 to 28 x 28 and scaled to [0, 1]."""
    small, labels = load_small()
    large = functional.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    return large, labels


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


def max_batches(smallest_class: int, batch_size: int, share: float) -> int:
    """Say how many online batches a class of ``smallest_class`` samples can feed."""
    return math.floor(Fraction(2 * smallest_class, batch_size) / Fraction(str(share)))


def drift_counts(total: int, batches: int) -> list[int]:
    """Spread ``total`` samples of the new class over ``batches``, their share growing linearly.

    The running sum after batch n is ``floor(total * (n + 1)^2 / batches^2)``: the rule of the
    VSOL experiments, in integers so that no rounding differs between machines.
    """
    sums = [total * (n + 1) ** 2 // batches**2 for n in range(batches)]
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def copies_needed(batches: int, batch_size: int = 80, share: float = 0.5) -> int:
    """Say into how many variants each digit must be multiplied for a stream this long."""
    smallest = int(torch.bincount(load_small()[1]).min())
    return math.ceil(drift_total(batches, batch_size, share) / smallest)


def drift_stream(
    label: int = 0,
    *,
    batches: int = 30,
    batch_size: int = 80,
    share: float = 0.5,
    copies: int = 6,
    seed: int = 2,
) -> DriftStream:
    """Make the stream in which class ``label`` appears only after the offline training.

    Each digit becomes ``copies`` images: itself and slightly turned, scaled and moved ones. The
    variants of one digit are either all offline or all online, so that accuracy on the stream
    is accuracy on unseen digits. The counts follow the drift split of the VSOL experiments
    with no offline sample of the new class.

    Raises:
        ValueError: ``label`` is no digit, a size is not positive, ``share`` is not in (0, 1], or
            there are too few digits for a stream of this length.
    """
    if not 0 <= label <= 9 or min(batches, batch_size, copies) < 1 or not 0 < share <= 1:
        raise ValueError(
            f"no stream for label={label}, batches={batches}, batch_size={batch_size}, "
            f"copies={copies}, share={share}: label is 0 to 9, sizes are at least 1, "
            "share is above 0 and at most 1"
        )
    images, labels = load_images()
    sizes = torch.bincount(labels) * copies
    longest = max_batches(int(sizes.min()), batch_size, share)
    new = drift_total(batches, batch_size, share)
    others = math.ceil((batches * batch_size - new) / copies)
    offline = len(images) - int(sizes.max()) // copies - others
    if batches > longest or offline < 1:
        raise ValueError(
            f"{batches} batches of {batch_size} need more digits than {copies} copies of each "
            f"give: raise copies, or take at most {longest} batches"
        )
    generator = torch.Generator().manual_seed(seed)
    old = _shuffled((labels != label).nonzero().flatten(), generator)
    arriving = _shuffled((labels == label).nonzero().flatten(), generator)
    sources = (images, labels, copies, generator)
    news = _variants(arriving, *sources)
    olds = _variants(old[:others], *sources)
    counts = drift_counts(new, batches)
    return DriftStream(
        label=label,
        offline=_variants(old[others : others + offline], *sources),
        online=_interleave(news, olds, counts, batch_size),
        drifting=counts,
    )


def _shuffled(values: Tensor, generator: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=generator)]


def _variants(
    chosen: Tensor, images: Tensor, labels: Tensor, copies: int, generator: torch.Generator
) -> Batch:
    """Multiply the chosen digits; the first variant is the digit itself. Shuffled."""
    originals = images[chosen]
    parts = [originals, *(_moved(originals, generator) for _ in range(copies - 1))]
    order = torch.randperm(copies * len(chosen), generator=generator)
    return torch.cat(parts)[order], labels[chosen].repeat(copies)[order]


def _moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn by up to 0.2 rad, scale by up to 10 %, move by up to 2 of 28 pixels, each at random."""
    turn, scale, right, down = 2 * torch.rand(4, len(images), generator=generator) - 1
    angle, zoom = 0.2 * turn, 1 + 0.1 * scale
    cos, sin = zoom * torch.cos(angle), zoom * torch.sin(angle)
    rows = [torch.stack([cos, -sin, right / 7], 1), torch.stack([sin, cos, down / 7], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    # Bilinear weights may sum to a hair above one; the range [0, 1] is promised.
    return functional.grid_sample(images, grid, align_corners=False).clamp_(0, 1)


def _interleave(news: Batch, olds: Batch, counts: list[int], batch_size: int) -> list[Batch]:
    online = []
    new = old = 0
    for count in counts:
        rest = batch_size - count
        pictures = torch.cat([news[0][new : new + count], olds[0][old : old + rest]])
        online.append(
            (pictures, torch.cat([news[1][new : new + count], olds[1][old : old + rest]]))
        )
        new, old = new + count, old + rest
    return online
