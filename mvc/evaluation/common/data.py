"""The data sets of the experiments as arrays: images, texts, and digits that ship.

Where they come from: a folder of IDX files (MNIST), a file of JSON lines, or by default
scikit-learn's 1,797 digits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mvc.errors import NotInstalled, UnknownPath, how_to_install
from mvc.evaluation.common.idx import read_folder
from mvc.evaluation.common.texts import pick_classes, read_lines, rows_of
from mvc.io.files import FileSystem

__all__ = ["Dataset", "load_data"]


@dataclass(frozen=True)
class Dataset:
    """Samples and their labels.

    ``inputs``: images uint8 ``(n, height, width)`` with ``brightest`` as white, or texts
    int32 ``(n, words)``. ``labels``: int64 ``(n,)``, positions in ``classes``.
    """

    name: str
    kind: Literal["images", "texts"]
    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    brightest: int = 255

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each class."""
        return tuple(int(n) for n in np.bincount(self.labels, minlength=len(self.classes)))


def load_data(
    fs: FileSystem,
    source: Path | None = None,
    *,
    label_field: str = "label",
    text_fields: Sequence[str] = ("text",),
    classes: Sequence[str] = (),
) -> Dataset:
    """The data of a folder of IDX files, of a file of JSON lines, or digits if none is named.

    The fields and ``classes`` are for JSON lines.
    """
    if source is None:
        return _digits()
    found = fs.stat(source)
    if found is None:
        raise UnknownPath(
            f"there is no {source}", hint="name a folder of IDX files or a file of JSON lines"
        )
    if found.is_dir:
        images, numbers = read_folder(fs, source)
        kinds, labels = np.unique(numbers, return_inverse=True)
        return Dataset(
            source.name, "images", images, labels.astype(np.int64), tuple(map(str, kinds))
        )
    names, texts = read_lines(fs, source, label_field, text_fields)
    chosen = pick_classes(names, classes)
    number = {name: position for position, name in enumerate(chosen)}
    kept = [(number[name], text) for name, text in zip(names, texts, strict=True) if name in number]
    labels = np.array([label for label, _ in kept], np.int64)
    return Dataset(
        source.name.partition(".")[0], "texts", rows_of([text for _, text in kept]), labels, chosen
    )


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise NotInstalled(
            "the digits that are the default come with scikit-learn, which is not installed",
            hint=f"{how_to_install('examples')}, or name your own data with --data",
        ) from None
    raw = load_digits()
    names = tuple(str(label) for label in sorted(Counter(raw.target.tolist())))
    return Dataset(
        "digits", "images", raw.images.astype(np.uint8), raw.target.astype(np.int64), names, 16
    )
