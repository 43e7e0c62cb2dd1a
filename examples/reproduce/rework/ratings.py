"""Ratings of items by users: a CSV file such as MovieLens's, or synthetic ones."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mvc.errors import BadModelFile, UnknownPath

from ..data import unpacked

__all__ = ["Ratings", "load_ratings"]

_FIELDS = ("userId", "movieId", "rating")
_USERS, _ITEMS, _SYNTHETIC, _RANK = 300, 600, 20_000, 3


@dataclass(frozen=True)
class Ratings:
    """``users`` and ``items``: int64 positions; ``values``: float32. All have one length."""

    name: str
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    values: NDArray[np.float32]


def load_ratings(source: Path | None = None) -> Ratings:
    """The ratings of a CSV file with the columns userId, movieId and rating, packed or not.

    Without a file, synthetic ones: 20,000 by 300 users of 600 items, some items far more popular
    than others, values of rank 3 with noise. Raises UnknownPath and BadModelFile.
    """
    if source is None:
        return _synthetic()
    if not source.exists():
        raise UnknownPath(f"there is no {source}", hint="name a CSV file of ratings")
    try:
        reader = csv.DictReader(io.StringIO(unpacked(source).decode()))
        rows = [tuple(row[field] for field in _FIELDS) for row in reader]
        values = np.array([float(value) for *_, value in rows], np.float32)
    except (ValueError, KeyError, TypeError, csv.Error):
        values = np.array([math.nan], np.float32)
    if not len(values) or not np.isfinite(values).all():
        raise BadModelFile(
            f"{source} is no file of ratings",
            hint=f"it must be CSV with the columns {', '.join(_FIELDS)}",
        )
    users, items = (
        np.unique([row[column] for row in rows], return_inverse=True)[1].astype(np.int64)
        for column in (0, 1)
    )
    return Ratings(source.name.partition(".")[0], users, items, values)


def _synthetic() -> Ratings:
    random = np.random.default_rng(0)
    popularity = 1 / np.arange(1, _ITEMS + 1)
    users = random.integers(0, _USERS, _SYNTHETIC)
    items = random.choice(_ITEMS, _SYNTHETIC, p=popularity / popularity.sum())
    tastes, traits = (random.normal(0, 0.7, (count, _RANK)) for count in (_USERS, _ITEMS))
    exact = 3.5 + (tastes[users] * traits[items]).sum(1) + random.normal(0, 0.3, _SYNTHETIC)
    values = np.clip(np.round(2 * exact) / 2, 0.5, 5).astype(np.float32)
    return Ratings("synthetic", users, items, values)
