"""How drifts and changes of the model travel: vectors to bytes and back (numpy only)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mvc.dataclasses import dataclass
from mvc.errors import BadMessage, WrongUsage

__all__ = ["CODECS", "DriftCodec", "Plain", "Wire", "codec_named"]

Vector = NDArray[np.float64]


class DriftCodec(ABC):
    """Encodes float64 vectors. What is lost is the caller's to feed back."""

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    """True if what is decoded is what was encoded, up to the rounding of the element type."""

    @abstractmethod
    def encode(self, values: Vector, dtype: np.dtype[Any]) -> bytes:
        """The bytes of a vector whose model has elements of this type."""

    @abstractmethod
    def decode(self, data: bytes, length: int, dtype: np.dtype[Any]) -> Vector:
        """The vector of these bytes. Raises ValueError if they do not make one of that length."""

    def rounded(self, values: Vector, dtype: np.dtype[Any]) -> Vector:
        """What the other side will decode."""
        return self.decode(self.encode(values, dtype), len(values), dtype)


class Plain(DriftCodec):
    """The numbers themselves, in the model's element type."""

    name = "none"
    exact = True

    def encode(self, values: Vector, dtype: np.dtype[Any]) -> bytes:
        return values.astype(dtype).tobytes()

    def decode(self, data: bytes, length: int, dtype: np.dtype[Any]) -> Vector:
        if len(data) != length * dtype.itemsize:
            raise ValueError(f"{len(data)} bytes are not {length} numbers of {dtype}")
        return np.frombuffer(data, dtype).astype(np.float64)


CODECS: dict[str, type[DriftCodec]] = {each.name: each for each in (Plain,)}


def codec_named(text: str) -> DriftCodec:
    """``none``, or another name, with a colon and its parameter. Raises WrongUsage."""
    name, _, parameter = text.partition(":")
    made = CODECS.get(name)
    if made is None:
        raise WrongUsage(f"there is no codec {name}: it must be one of {', '.join(CODECS)}")
    return made(*(parameter,) if parameter else ())


@dataclass(frozen=True)
class Wire:
    """How one direction travels. The first ``measured`` of ``length`` numbers are parameters and
    go through the codec; the rest are statistics (of BatchNorm, say) and go as they are.
    """

    codec: DriftCodec
    measured: int
    length: int
    dtype: np.dtype[Any]

    def encode(self, values: Vector) -> tuple[bytes, Vector]:
        """The bytes of a vector, and what the other side will decode."""
        data = self.codec.encode(values[: self.measured], self.dtype)
        data += values[self.measured :].astype(self.dtype).tobytes()
        return data, self.decode(data)

    def decode(self, data: bytes) -> Vector:
        """The vector. Raises BadMessage for other lengths and for numbers that are not finite."""
        tail = (self.length - self.measured) * self.dtype.itemsize
        if len(data) < tail:
            raise BadMessage(f"{len(data)} bytes are no vector of {self.length} numbers")
        cut = len(data) - tail
        try:
            head = self.codec.decode(data[:cut], self.measured, self.dtype)
        except (ValueError, OverflowError) as error:
            raise BadMessage(f"no vector of {self.length} numbers: {error}") from None
        vector = np.concatenate((head, np.frombuffer(data[cut:], self.dtype)), dtype=np.float64)
        if not np.isfinite(vector).all():
            raise BadMessage("the vector holds numbers that are not finite")
        return vector

    def rounded(self, drift: Vector) -> Vector:
        """The parameters of a drift as the other side will decode them."""
        head = drift[: self.measured]
        return head if self.codec.exact else self.codec.rounded(head, self.dtype)
