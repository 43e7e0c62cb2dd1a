"""Finds where runs (sequences) of floats begin in a file of unknown format.

Nearby floats have similar exponents, and most bits of an exponent are in one byte. So each byte is
compared with the byte 8 positions later, which is at the same position in another float. The
positions of similar bytes show the *alignment*: where the floats begin. The file is split where the
alignment changes, so that each part consists of whole floats. Splits depend only on nearby bytes.
So if a later version of the file has the same floats at another position, they form an equal part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mvc.adapters.parsed import Source, read_exactly
from mvc.codecs.floats import Numbers
from mvc.io.handles import ReadFile
from mvc.limits import MIB

_MOST = 400  # maximum number of cuts in a file
# _SAMPLE: number of bytes of a sample that shows the alignment. _BETWEEN: a run begins at most this
# many bytes before the first sample that shows the run.
_SAMPLE, _BETWEEN = 512, 4096
_UNIT, _UNITS = 8192, 1 << 12  # minimum bytes between samples; maximum number of samples
_RUN = 3  # minimum number of samples in a run
_PERIOD = 8  # bytes of the widest float
_NEAR = 11  # maximum difference of similar bytes, without the sign bit; for float16, a factor of 8
# The number of similar pairs of bytes among 64 pairs: by chance, the spread of this number, and the
# minimum for exponents.
_CHANCE, _SPREAD, _LEAST = 11.5, 6.5, 26
# A similar pair of exponents adds ``_GAIN`` to a score. Any other pair subtracts ``_LOSS``.
_GAIN, _LOSS = 3, 5


class RunFinder:
    """Finds the runs of floats in a file. ``name`` is used in messages."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._name = name

    def cuts(self) -> list[int]:
        """Positions where runs begin, in ascending order, without 0. Raises SourceChanged."""
        size = self._source.size()
        unit = max(_UNIT, 1 << (size // _UNITS).bit_length())
        places = range(0, size - _SAMPLE - _PERIOD + 1, unit)
        cuts, current, label, first, count = list[int](), 0, 0, 0, 0
        for at, seen in zip(places, self._labels(places), strict=True):
            if seen and seen != label:
                label, first, count = seen, at, 0
            count += seen > 0
            if count == _RUN and label != current and len(cuts) < _MOST:
                cuts.append(self._start(first, label, unit))
                current = label
        return [cut for cut in cuts if cut > 0]

    def _similar(self, places: Sequence[int], length: int = _SAMPLE) -> Numbers:
        """Compares ``length`` bytes after each position in ``places`` with the bytes 8 positions
        later. An element of the result is 1 if the two bytes are similar, otherwise 0.
        """
        data = np.empty((len(places), length + _PERIOD), np.uint8)
        for at, row in zip(places, data, strict=True):
            if isinstance(self._source, ReadFile) and self._source.is_hole(at, MIB):
                row[:] = 0
            else:
                read_exactly(self._source, self._name, at, row.data)
        return ((data[:, :-_PERIOD] - data[:, _PERIOD:] + _NEAR) & 0x7F <= 2 * _NEAR).view(np.uint8)

    def _labels(self, places: Sequence[int]) -> list[int]:
        """For each sample, a number that shows the alignment of the floats in the sample.

        Bit i is set if most bytes at position i of a group of 8 bytes are similar. The number is 0
        if the sample does not look like floats.
        """
        # Eight bytes are added as one number. This is possible, because no sum exceeds a byte.
        alike = self._similar(places).view(np.uint64).sum(1, keepdims=True).view(np.uint8)
        most = alike.max(1, keepdims=True)
        bits = np.packbits(alike > (most + _CHANCE) / 2, axis=1, bitorder="little")
        # In a text, the bytes at all positions are similar. A float has a byte that looks random.
        none = (most < _LEAST) | (alike.min(1, keepdims=True) > _CHANCE + _SPREAD)
        return [int(label) for label in np.where(none, 0, bits % 255)[:, 0]]

    def _start(self, at: int, label: int, unit: int) -> int:
        """The start of the run whose first sample is at position ``at``."""
        low, high = max(at - unit, 0), at
        while high - low > _SAMPLE:
            middle = (low + high) // 2 // _PERIOD * _PERIOD
            low, high = (low, middle) if self._labels([middle]) == [label] else (middle, high)
        low = max(low - _BETWEEN, 0)
        exponents = [label >> i & 1 for i in range(_PERIOD)]
        alike = self._similar([low], high - low + _SAMPLE).reshape(-1, _PERIOD)
        gains = np.where(alike, _GAIN, -_LOSS) * exponents
        start = low + int(np.argmax(np.cumsum(gains.ravel()[::-1])[::-1]))
        first = [i for i in range(_PERIOD) if exponents[i] < exponents[i - 1]]
        return start - (start - first[0]) % (_PERIOD // len(first))
