"""Where runs of numbers begin in a file of no known format, found without a parser.

One byte of a float is most of its exponent, and much as that of the floats around it. So which of
eight bytes are like those eight bytes further on says where words begin. A file is cut where that
changes, so that each content is coded in words at their own place. A cut follows from the bytes
around it alone: it moves with its run, and stays where it is from one state of a training to the
next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mvc.adapters.parsed import Source, read_exactly
from mvc.codecs.floats import Numbers
from mvc.io.handles import ReadFile
from mvc.limits import MIB

_MOST = 400  # cuts of a file
_SAMPLE, _BETWEEN = 512, 4096  # bytes that show how words lie; bytes before, with a run's beginning
_UNIT, _UNITS = 8192, 1 << 12  # bytes from one sample to the next, at least; samples, at most
_RUN = 3  # samples of a run, at least
_PERIOD = 8  # bytes of the widest word
_NEAR = 11  # between two bytes that are alike, signs aside: not three binades of a float16
_CHANCE, _SPREAD, _LEAST = (
    11.5,
    6.5,
    26,
)  # of 64 pairs alike: by chance, by which that varies, by rule
_GAIN, _LOSS = 3, 5  # what two exponents say for a run if they are alike, and against it if not


class RunFinder:
    """Finds the runs of a file. ``name``: for messages, if it becomes shorter meanwhile."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._name = name

    def cuts(self) -> list[int]:
        """Places in rising order, none of them 0. Raises SourceChanged."""
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

    def _alike(self, places: Sequence[int], length: int = _SAMPLE) -> Numbers:
        """Of each byte after these places whether it is like that one period on: 1, else 0."""
        data = np.empty((len(places), length + _PERIOD), np.uint8)
        for at, row in zip(places, data, strict=True):
            if isinstance(self._source, ReadFile) and self._source.is_hole(at, MIB):
                row[:] = 0
            else:
                read_exactly(self._source, self._name, at, row.data)
        return ((data[:, :-_PERIOD] - data[:, _PERIOD:] + _NEAR) & 0x7F <= 2 * _NEAR).view(np.uint8)

    def _labels(self, places: Sequence[int]) -> list[int]:
        """One bit for each byte of a period: whether it is much alike. 0: all are, or none."""
        # No sum of bytes reaches the next byte, so eight are added as one number.
        alike = self._alike(places).view(np.uint64).sum(1, keepdims=True).view(np.uint8)
        most = alike.max(1, keepdims=True)
        bits = np.packbits(alike > (most + _CHANCE) / 2, axis=1, bitorder="little")
        # In a text, no byte is random.
        none = (most < _LEAST) | (alike.min(1, keepdims=True) > _CHANCE + _SPREAD)
        return [int(label) for label in np.where(none, 0, bits % 255)[:, 0]]

    def _start(self, at: int, label: int, unit: int) -> int:
        """Where the run begins of which the sample at ``at`` is the first."""
        low, high = max(at - unit, 0), at
        while high - low > _SAMPLE:
            middle = (low + high) // 2 // _PERIOD * _PERIOD
            low, high = (low, middle) if self._labels([middle]) == [label] else (middle, high)
        low = max(low - _BETWEEN, 0)
        exponents = [label >> i & 1 for i in range(_PERIOD)]
        alike = self._alike([low], high - low + _SAMPLE).reshape(-1, _PERIOD)
        gains = np.where(alike, _GAIN, -_LOSS) * exponents
        found = low + int(np.argmax(np.cumsum(gains.ravel()[::-1])[::-1]))
        first = [i for i in range(_PERIOD) if exponents[i] < exponents[i - 1]]
        return found - (found - first[0]) % (_PERIOD // len(first))
