"""How the vectors of a distributed training are encoded as bytes, exactly or with loss.

A worker sends its *drift*: the difference between its model and the newest global model. The
coordinator sends the change of the global model. A codec encodes and decodes these vectors.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.distributed.safe import Vector
from mvc.errors import BadMessage, DamagedData, InvalidPipeline, WrongUsage
from mvc.lossy import Addition, decode_steps, encode_steps, quantise
from mvc.pipelines import Pipeline


class DriftCodec(ABC):
    """Encodes float64 vectors. The caller adds the error of an encoding to the next vector."""

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    """True if decoding returns the same values, rounded to the model's element type."""

    @abstractmethod
    def encode(self, values: Vector, dtype: np.dtype[Any]) -> bytes:
        """Encodes a vector. ``dtype``: the element type of the model."""

    @abstractmethod
    def decode(self, data: bytes, length: int, dtype: np.dtype[Any]) -> Vector:
        """Decodes a vector of ``length`` numbers. Raises ValueError if ``data`` is invalid."""

    def rounded(self, values: Vector, dtype: np.dtype[Any]) -> Vector:
        """The vector that the receiver will decode."""
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


class Int8(DriftCodec):
    """Encodes each number as an int8, and the common scale of 256 numbers as a float32."""

    name = "int8"

    def encode(self, values: Vector, dtype: np.dtype[Any]) -> bytes:  # noqa: ARG002
        blocks = -(-len(values) // _BLOCK)
        padded = np.zeros((blocks, _BLOCK))
        padded.reshape(-1)[: len(values)] = values
        scales = (np.abs(padded).max(axis=1) / 127).astype(np.float32)
        steps = np.where(scales > 0, scales, np.inf).astype(np.float64)
        levels = np.clip(np.rint(padded / steps[:, None]), -127, 127).astype(np.int8)
        return b"".join((scales.tobytes(), levels.reshape(-1)[: len(values)].tobytes()))

    def decode(self, data: bytes, length: int, dtype: np.dtype[Any]) -> Vector:  # noqa: ARG002
        blocks = -(-length // _BLOCK)
        if len(data) != 4 * blocks + length:
            raise ValueError(f"{len(data)} bytes are not {length} numbers as int8")
        scales = np.frombuffer(data, np.float32, blocks).astype(np.float64)
        return np.repeat(scales, _BLOCK)[:length] * np.frombuffer(data, np.int8, length, 4 * blocks)


class Exponent(DriftCodec):
    """Encodes only the sign and the exponent of each number.

    A number is decoded as the mean magnitude of all numbers with the same exponent. Numbers whose
    exponent is more than 14 below the largest exponent become zero. The encoding is a table of 15
    magnitudes as float32, then one symbol (a byte) for each number. zlib compresses the symbols.
    """

    name = "exponent"

    def encode(self, values: Vector, dtype: np.dtype[Any]) -> bytes:  # noqa: ARG002
        table, symbols = self._symbols(values)
        coder = zlib.compressobj(9, wbits=-15, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
        return table.tobytes() + coder.compress(symbols.tobytes()) + coder.flush()

    def decode(self, data: bytes, length: int, dtype: np.dtype[Any]) -> Vector:  # noqa: ARG002
        table = np.frombuffer(data, np.float32, _RANKS)
        symbols = np.frombuffer(_inflated(data[table.nbytes :], length), np.uint8)
        if len(symbols) and int(symbols.max()) > 2 * _RANKS:
            raise ValueError("a symbol is out of range")
        return self._values(table, symbols)

    def rounded(self, values: Vector, dtype: np.dtype[Any]) -> Vector:  # noqa: ARG002
        return self._values(*self._symbols(values))

    @staticmethod
    def _symbols(values: Vector) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """The table of magnitudes, and the symbols.

        Symbol 0 means the number zero. Each rank (the difference from the largest exponent) has two
        symbols: one for positive numbers and one for negative numbers.
        """
        magnitudes = np.abs(values)
        _, exponents = np.frexp(magnitudes)
        ranks = int(exponents[magnitudes.argmax()]) - exponents
        ranks[(magnitudes == 0) | (ranks >= _RANKS)] = _RANKS
        sums = np.bincount(ranks, magnitudes, _RANKS + 1)[:_RANKS]
        counts = np.bincount(ranks, minlength=_RANKS + 1)[:_RANKS]
        table = (sums / np.maximum(counts, 1)).astype(np.float32)
        symbols = np.where(ranks < _RANKS, 1 + 2 * ranks + (values < 0), 0).astype(np.uint8)
        return table, symbols

    @staticmethod
    def _values(table: NDArray[np.float32], symbols: NDArray[np.uint8]) -> Vector:
        signed = np.zeros(2 * _RANKS + 1)
        signed[1::2], signed[2::2] = table, -table
        return signed[symbols]


class LargestEntries(DriftCodec):
    """The numbers with the largest magnitudes, as float32; all other numbers become zero.

    ``share``: the fraction of numbers that is encoded. The positions of these numbers are stored as
    one bit for each number of the vector, compressed by zlib.
    """

    name = "topk"

    def __init__(self, share: str = "0.05") -> None:
        """Raises WrongUsage unless ``share`` is a number above 0 and at most 1."""
        try:
            self._share = float(share)
        except ValueError:
            self._share = 0.0
        if not 0 < self._share <= 1:
            raise WrongUsage(f"the share of topk is {share}: use a number such as topk:0.05")

    def encode(self, values: Vector, dtype: np.dtype[Any]) -> bytes:  # noqa: ARG002
        selected = self._selected(values)
        mask = zlib.compress(np.packbits(selected).tobytes(), 9)
        return values[selected].astype(np.float32).tobytes() + mask

    def decode(self, data: bytes, length: int, dtype: np.dtype[Any]) -> Vector:  # noqa: ARG002
        cut = 4 * self._count(length)
        mask = np.frombuffer(_inflated(data[cut:], -(-length // 8), zlib.MAX_WBITS), np.uint8)
        selected = np.unpackbits(mask, count=length).view(np.bool_)
        entries = np.frombuffer(data[:cut], np.float32)
        if int(selected.sum()) != len(entries):
            raise ValueError(f"{len(entries)} numbers have {int(selected.sum())} positions")
        values = np.zeros(length)
        values[selected] = entries
        return values

    def rounded(self, values: Vector, dtype: np.dtype[Any]) -> Vector:  # noqa: ARG002
        return np.where(self._selected(values), values.astype(np.float32), 0).astype(np.float64)

    def _count(self, length: int) -> int:
        return max(1, round(self._share * length))

    def _selected(self, values: Vector) -> NDArray[np.bool_]:
        count = self._count(len(values))
        selected = np.zeros(len(values), np.bool_)
        selected[np.argpartition(-np.abs(values), count - 1)[:count]] = True
        return selected


class Lc(DriftCodec):
    """Encodes a vector by the pipeline stage ``lc`` (docs/pipelines.md), as a delta from zeros.

    ``bound`` is the text after ``lc:`` in a pipeline: ``x=3``, ``budget=0.05``, ``error=0.1,ans``.
    """

    name = "lc"

    def __init__(self, bound: str = "x=3") -> None:
        """Raises WrongUsage for an invalid bound."""
        try:
            self._pipeline = Pipeline.parse(f"lc:{bound}")
        except InvalidPipeline as error:
            raise WrongUsage(str(error), hint=error.hint) from None

    def encode(self, values: Vector, dtype: np.dtype[Any]) -> bytes:
        return b"".join(encode_steps(self._pipeline, [self._step(values, dtype)]))

    def decode(self, data: bytes, length: int, dtype: np.dtype[Any]) -> Vector:
        size = length * dtype.itemsize
        try:
            (step,) = decode_steps(self._pipeline, memoryview(data), [size])
            if step.dtype != dtype.name or step.root:
                raise ValueError(f"the delta is of {step.dtype}, not of {dtype}")
            return self._values(step, dtype)
        except DamagedData as error:
            raise ValueError(str(error)) from None

    def rounded(self, values: Vector, dtype: np.dtype[Any]) -> Vector:
        return self._values(self._step(values, dtype), dtype)

    def _step(self, values: Vector, dtype: np.dtype[Any]) -> Addition:
        """Raises BadMessage if a number is not finite after the conversion to ``dtype``."""
        with np.errstate(over="ignore"):  # quantise detects infinite values
            after = values.astype(dtype).tobytes()
        before = bytes(len(after))
        (step,) = quantise(self._pipeline, [(before, dtype.name)], [(after, dtype.name)])
        if step is None:
            raise BadMessage(
                "the vector has numbers that are not finite, or "
                "torch.set_flush_denormal(True) prevents encoding by lc"
            )
        return step

    @staticmethod
    def _values(step: Addition, dtype: np.dtype[Any]) -> Vector:
        state = bytearray(step.nbytes)
        step.apply(memoryview(state))
        return np.frombuffer(state, dtype).astype(np.float64)


def _inflated(data: bytes, length: int, bits: int = -15) -> bytes:
    """Decompresses a deflate stream. Raises ValueError unless the result has ``length`` bytes."""
    stream = zlib.decompressobj(bits)
    try:
        inflated = stream.decompress(data, length + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(inflated) != length or not stream.eof or stream.unused_data:
        raise ValueError(f"a compressed stream does not have {length} bytes")
    return inflated


_BLOCK = 256
_RANKS = 15

CODECS: dict[str, type[DriftCodec]] = {
    codec.name: codec for codec in (Plain, Int8, Exponent, LargestEntries, Lc)
}


def codec_named(text: str) -> DriftCodec:
    """The codec ``none``, ``int8``, ``exponent``, ``topk[:SHARE]`` or ``lc[:BOUND]``. Raises
    WrongUsage for any other text.
    """
    name, _, parameter = text.partition(":")
    codec = CODECS.get(name)
    if codec is None:
        raise WrongUsage(f"there is no codec {name}: it must be one of {', '.join(CODECS)}")
    if parameter and codec in (LargestEntries, Lc):
        return codec(parameter)
    if parameter:
        raise WrongUsage(f"the codec {name} has no parameter")
    return codec()


class VectorLayout(Struct, frozen=True):
    """A model as a flat vector: first all parameters, then the *statistics* (running means and
    variances of BatchNorm layers).

    ``length``: how many numbers the vector has. ``measured``: how many of these are parameters.
    Codecs, the coordinator's rate and momentum, and distances between models apply only to
    parameters. Statistics are only averaged. ``digest``: 16 bytes that identify the network's
    structure. Integer buffers and optimizer states are not in the vector; each worker has its own.
    """

    length: int
    measured: int
    dtype: np.dtype[Any]
    digest: bytes = bytes(16)

    @staticmethod
    def of(
        model: NDArray[Any], measured: int | None = None, digest: bytes = bytes(16)
    ) -> VectorLayout:
        """Raises WrongUsage unless the model is a flat vector of finite float32 or float64."""
        if model.ndim != 1 or model.dtype not in (np.float32, np.float64) or not len(model):
            shape = "x".join(map(str, model.shape)) or "()"
            raise WrongUsage(
                f"a model is {model.dtype} {shape}: it must be a flat vector of float32 or float64"
            )
        if not np.isfinite(model).all():
            raise WrongUsage("the model has numbers that are not finite")
        return VectorLayout(len(model), measured or len(model), model.dtype, digest)


class Wire(Struct, frozen=True):
    """Encodes the vectors that are sent: the parameters by the codec, the statistics exactly."""

    codec: DriftCodec
    layout: VectorLayout

    def encode(self, values: Vector) -> tuple[bytes, Vector]:
        """Returns the encoded vector, and the vector that the receiver will decode."""
        measured, dtype = self.layout.measured, self.layout.dtype
        data = (
            self.codec.encode(values[:measured], dtype) + values[measured:].astype(dtype).tobytes()
        )
        return data, self.decode(data)

    def decode(self, data: bytes) -> Vector:
        """Decodes a vector. Raises BadMessage if ``data`` is invalid or a number is not finite."""
        layout = self.layout
        cut = len(data) - (layout.length - layout.measured) * layout.dtype.itemsize
        try:
            head = self.codec.decode(data[: max(0, cut)], layout.measured, layout.dtype)
            vector = np.concatenate(
                (head, np.frombuffer(data[cut:], layout.dtype)), dtype=np.float64
            )
        except (ValueError, OverflowError) as error:
            raise BadMessage(f"not a vector of {layout.length} numbers: {error}") from None
        if not np.isfinite(vector).all():
            raise BadMessage("the vector has numbers that are not finite")
        return vector

    def rounded(self, drift: Vector) -> Vector:
        """The parameters of a drift as the receiver will decode them."""
        head = drift[: self.layout.measured]
        return head if self.codec.exact else self.codec.rounded(head, self.layout.dtype)
