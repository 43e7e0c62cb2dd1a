"""General compressors behind one pair of functions, each bounded by the recorded size.

A method is the text of a stage: ``zlib:9``, ``bz2:1``, ``lzma:6``, ``brotli:11``; without a
colon it is a method of zstd (``frames``). Input must be exactly one frame that holds exactly the
recorded number of bytes; decompression stops at that number.

LZMA is stored as a raw LZMA2 chain without a header, because a header could demand gigabytes of
dictionary. The dictionary is as long as the stream, at least 4 KiB.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mvc.codecs import frames
from mvc.errors import DamagedData, NotInstalled, how_to_install

__all__ = ["compress", "decompress_into"]

_LEAST_DICTIONARY = 4096


class _Reader(Protocol):
    """The interface of the decompressors of bz2 and lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Any, max_length: int = -1) -> bytes: ...


def compress(data: Any, method: str) -> bytes:
    """One frame for ``data`` (any contiguous buffer, not empty)."""
    name, colon, level = method.partition(":")
    if not colon:
        return frames.compress(data, method)
    return _COMPRESS[name](data, int(level))


def decompress_into(frame: memoryview, out: NDArray[np.uint8], method: str) -> None:
    """Fill ``out`` with what ``frame`` holds; DamagedData unless it is exactly that much."""
    name, colon, _ = method.partition(":")
    if not colon:
        frames.decompress_into(frame, out)
        return
    data = _DECOMPRESS[name](frame, len(out)) if len(out) else None
    if data is None or len(data) != len(out):
        raise DamagedData(f"a part compressed by {name} does not hold the recorded bytes alone")
    out[:] = np.frombuffer(data, np.uint8)


def _zlib(frame: memoryview, size: int) -> bytes | None:
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(frame, size)
        rest = reader.decompress(reader.unconsumed_tail, 1)
    except zlib.error:
        return None
    return data if reader.eof and not rest and not reader.unused_data else None


def _bz2(frame: memoryview, size: int) -> bytes | None:
    import bz2

    return _bounded(bz2.BZ2Decompressor(), frame, size, OSError)


def _lzma(frame: memoryview, size: int) -> bytes | None:
    import lzma

    reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[_filter(size)])
    return _bounded(reader, frame, size, lzma.LZMAError)


def _bounded(reader: _Reader, frame: memoryview, size: int, error: type[Exception]) -> bytes | None:
    try:
        data = reader.decompress(frame, size)
        # The end of the frame shows only when more than its bytes are requested.
        rest = b"" if reader.eof else reader.decompress(b"", 1)
    except (error, EOFError):
        return None
    return data if reader.eof and not rest and not reader.unused_data else None


def _brotli(frame: memoryview, size: int) -> bytes | None:
    module = _brotli_module()
    reader = module.Decompressor()
    try:
        parts = [reader.process(bytes(frame), output_buffer_limit=size)]
        left = size - len(parts[0])
        while not reader.is_finished() and not reader.can_accept_more_data() and left >= 0:
            parts.append(reader.process(b"", output_buffer_limit=max(left, 1)))
            left -= len(parts[-1])
    except module.error:
        return None
    return b"".join(parts) if reader.is_finished() else None


def _brotli_module() -> Any:
    try:
        import brotli
    except ImportError:
        raise NotInstalled("brotli is not installed", hint=how_to_install("brotli")) from None
    return brotli


def _filter(size: int, level: int = 0) -> dict[str, int]:
    """LZMA2's parameters; only the dictionary's size matters to a reader."""
    import lzma

    dictionary = max(size, _LEAST_DICTIONARY)
    return {"id": lzma.FILTER_LZMA2, "preset": level, "dict_size": dictionary}


def _to_bz2(data: Any, level: int) -> bytes:
    import bz2

    return bz2.compress(data, level)


def _to_lzma(data: Any, level: int) -> bytes:
    import lzma

    size = memoryview(data).nbytes
    return lzma.compress(data, lzma.FORMAT_RAW, filters=[_filter(size, level)])


def _to_brotli(data: Any, level: int) -> bytes:
    made: bytes = _brotli_module().compress(data, quality=level)
    return made


_COMPRESS: dict[str, Callable[[Any, int], bytes]] = {
    "zlib": zlib.compress,
    "bz2": _to_bz2,
    "lzma": _to_lzma,
    "brotli": _to_brotli,
}
_DECOMPRESS: dict[str, Callable[[memoryview, int], bytes | None]] = {
    "zlib": _zlib,
    "bz2": _bz2,
    "lzma": _lzma,
    "brotli": _brotli,
}
