"""The data sets of the experiments as arrays: images, texts, and digits that ship.

A data set is a folder of IDX files (MNIST), a file of JSON lines, or by default scikit-learn's
1,797 digits.

IDX is Yann LeCun's format: two zero bytes, a type (8: unsigned byte), the number of dimensions,
each length as a big-endian 32-bit number, then the bytes. Texts become rows of word numbers as
the thesis's tokenizer makes them: lower case, cut at punctuation and spaces, words numbered by
how often they occur in all texts, the most frequent first; rarer ones are left out. A row is
the last ``LENGTH`` words, with zeros before them.
"""

from __future__ import annotations

import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mvc.errors import BadModelFile, NotInstalled, UnknownPath, WrongUsage, how_to_install

from .workspace import write

__all__ = ["Dataset", "load_data", "read_arrays", "write_arrays"]

VOCABULARY = 10_000
"""Numbers of words, the zero of the padding included."""

LENGTH = 100
"""Words of a row."""

MAX_FILE = 1 << 30
"""Bytes of one file of data, packed or not."""

_CLASSES = 10
_FORMS = frozenset(
    (
        *("cli-mono", "debug", "devel", "doc", "introspection", "libdevel", "libs"),
        *("localization", "metapackages", "misc", "oldlibs", "tasks", "utils"),
    )
)  # Debian sections that say what kind of package it is rather than what it is about
_SEPARATORS = re.compile(r"[\s!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~]+")
_BYTES = 8
_AGAIN = "the files are incomplete or of different sets: download them again"


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
    if not source.exists():
        raise UnknownPath(
            f"there is no {source}", hint="name a folder of IDX files or a file of JSON lines"
        )
    if source.is_dir():
        images, numbers = read_folder(source)
        kinds, labels = np.unique(numbers, return_inverse=True)
        labels = labels.astype(np.int64)
        return Dataset(source.name, "images", images, labels, tuple(map(str, kinds)))
    names, texts = read_lines(source, label_field, text_fields)
    chosen = pick_classes(names, classes)
    kept = [(chosen.index(n), text) for n, text in zip(names, texts, strict=True) if n in chosen]
    labels = np.array([label for label, _ in kept], np.int64)
    rows = rows_of([text for _, text in kept])
    return Dataset(source.name.partition(".")[0], "texts", rows, labels, chosen)


def write_arrays(data: Dataset, folder: Path) -> None:
    """Writes samples and labels as files of numpy, equal bytes for equal data."""
    for name, values in (("inputs", data.inputs), ("labels", data.labels)):
        np.save(file := io.BytesIO(), values)
        write(folder / f"{name}.npy", file.getvalue())


def read_arrays(folder: Path, name: str, classes: Sequence[str], brightest: int) -> Dataset:
    """The images that ``write_arrays`` wrote."""
    inputs, labels = (
        np.load(folder / f"{each}.npy", allow_pickle=False) for each in ("inputs", "labels")
    )
    return Dataset(name, "images", inputs, labels, tuple(classes), brightest)


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise NotInstalled(
            "the digits that are the default come with scikit-learn, which is not installed",
            hint=f"{how_to_install('examples')}, or name your own data with --data",
        ) from None
    raw = load_digits()
    images, names = raw.images.astype(np.uint8), tuple(map(str, range(10)))
    return Dataset("digits", "images", images, raw.target.astype(np.int64), names, 16)


def read_folder(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8 ``(n, height, width)`` and labels int64 ``(n,)`` of a folder of IDX files.

    The files are those of MNIST and its kin: ``*images*idx3*`` and ``*labels*idx1*``, packed
    with gzip or not. Where there are files whose names begin with ``train``, only these count.
    """
    names = sorted(path.name for path in folder.iterdir())
    images, labels = _pick(names, "images", "idx3"), _pick(names, "labels", "idx1")
    if not images or len(images) != len(labels):
        raise UnknownPath(
            f"{folder} holds {len(images)} IDX files of images and {len(labels)} of labels",
            hint="name them as MNIST does: train-images-idx3-ubyte, train-labels-idx1-ubyte",
        )
    pictures = [_read(folder / name, 3) for name in images]
    numbers = [_read(folder / name, 1) for name in labels]
    for name, one, other in zip(images, pictures, numbers, strict=True):
        if len(one) != len(other):
            raise BadModelFile(
                f"{name} has {len(one)} images, its labels are {len(other)}", hint=_AGAIN
            )
    if len({one.shape[1:] for one in pictures}) > 1:
        raise WrongUsage(f"the images of {folder} are not all of one size")
    return np.concatenate(pictures), np.concatenate(numbers).astype(np.int64)


def unpacked(path: Path) -> bytes:
    """What a file holds, taken out of gzip if it is packed; at most ``MAX_FILE`` bytes."""
    if path.stat().st_size > MAX_FILE:
        raise BadModelFile(f"{path} has more than {MAX_FILE} bytes")
    data = path.read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(data, MAX_FILE)
    except zlib.error as error:
        raise BadModelFile(f"{path} is no sound gzip file: {error}") from None
    if unpacker.unconsumed_tail:
        raise BadModelFile(f"{path} unpacks to more than {MAX_FILE} bytes")
    if not unpacker.eof:
        raise BadModelFile(f"{path} is cut off", hint=_AGAIN)
    return content


def _pick(names: list[str], *words: str) -> list[str]:
    fitting = [name for name in names if all(word in name for word in words)]
    return [name for name in fitting if name.startswith("train")] or fitting


def _read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    data = unpacked(path)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes((0, 0, _BYTES, dimensions)):
        raise BadModelFile(f"{path} is no IDX file of bytes with {dimensions} dimensions")
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    if len(data) - start != math.prod(shape):
        raise BadModelFile(
            f"{path} says {math.prod(shape)} bytes, but has {len(data) - start}", hint=_AGAIN
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_lines(
    path: Path, label_field: str, text_fields: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Labels and texts of a file of JSON objects, one a line, packed with gzip or not.

    Several text fields are joined by a space, as the thesis joins title and description.
    """
    try:
        content = unpacked(path).decode()
    except UnicodeDecodeError:
        raise BadModelFile(f"{path} is not UTF-8") from None
    labels, texts = [], []
    for number, line in enumerate(filter(str.strip, content.splitlines()), start=1):
        try:
            entry = json.loads(line)
            labels.append(str(entry[label_field]))
            texts.append(" ".join(str(entry[field]) for field in text_fields))
        except (ValueError, KeyError, TypeError, RecursionError):
            wanted = ", ".join((label_field, *text_fields))
            raise BadModelFile(
                f"{path}, line {number}: no JSON object with {wanted}",
                hint="name the fields with --label-field and --text-field",
            ) from None
    if not labels:
        raise BadModelFile(f"{path} is empty", hint="it must be JSON objects, one a line")
    return labels, texts


def pick_classes(labels: Sequence[str], wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The classes to tell apart: those that are named, else the ten largest by topic.

    Sections of packages that name a form (libs, doc, devel, ...) are no topic.
    Equally large classes go by name.
    """
    counts = Counter(labels)
    if missing := [name for name in wanted if name not in counts]:
        raise WrongUsage(f"no text has the label {missing[0]}")
    if not wanted:
        topical = [(-count, name) for name, count in counts.items() if name not in _FORMS]
        wanted = [name for _, name in sorted(topical)[:_CLASSES]]
    if len(set(wanted)) < 2:
        raise WrongUsage("a drift needs at least two labels")
    return tuple(dict.fromkeys(wanted))


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return [word for word in _SEPARATORS.split(text.lower()) if word]


def rows_of(texts: Sequence[str]) -> NDArray[np.int32]:
    """Word numbers int32 ``(texts, LENGTH)``; 0 is padding. Equally frequent words: first come."""
    split = [words_of(text) for text in texts]
    counts = Counter(word for words in split for word in words)
    kept = counts.most_common(VOCABULARY - 1)
    numbers = {word: number for number, (word, _) in enumerate(kept, start=1)}
    rows = np.zeros((len(split), LENGTH), np.int32)
    for row, words in zip(rows, split, strict=True):
        known = [numbers[word] for word in words if word in numbers][-LENGTH:]
        if known:
            row[-len(known) :] = known
    return rows
