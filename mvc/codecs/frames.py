"""Strict zstd frames: exactly one, of the declared size, to the last byte.

python-zstandard believes the size that a frame declares, whatever limit the
caller gives, and by default ignores what follows the frame. So the declared
size is compared with the recorded one before anything is allocated. Frames
carry no checksum: what is stored here lies under a stronger one, which is
checked first.

``huff`` are parameters under which zstd finds hardly any matches and spends
its time on Huffman coding: for byte planes of weights that is both smaller and
faster than level 1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from mvc.errors import DamagedData, InvalidPipeline
from mvc.limits import ZSTD_MAX_WINDOW

__all__ = ["check_frame", "check_method", "compress", "decompress_into", "run_decompress"]

_BLOCK_HEADER = 3
_RLE, _RESERVED = 1, 3

MAX_LEVEL = 22  # the window is never larger than the data, which is a few MiB at most
FIRST_LEVELS = 19  # what the first version of the format had
HUFFMAN = "huff"


def check_method(method: str) -> None:
    """Raise InvalidPipeline unless ``method`` is ``huff`` or a level from 1 to 22."""
    if method != HUFFMAN and not (
        method.isascii() and method.isdigit() and 1 <= int(method) <= MAX_LEVEL
    ):
        raise InvalidPipeline(
            f"zstd:{method} does not exist", hint=f"use zstd:huff or zstd:1 to zstd:{MAX_LEVEL}"
        )


def _compressor(method: str) -> zstandard.ZstdCompressor:
    if method != HUFFMAN:
        return zstandard.ZstdCompressor(level=int(method), write_checksum=False)
    parameters = zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST,
        window_log=18,
        hash_log=6,
        chain_log=6,
        search_log=1,
        min_match=7,
        write_content_size=True,
        write_checksum=False,
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


class _Contexts(threading.local):
    """A zstd context may serve one thread at a time."""

    def __init__(self) -> None:
        self.compress: dict[str, Callable[[Any], bytes]] = {}
        self.open = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW).stream_reader


_contexts = _Contexts()


def compress(data: Any, method: str) -> bytes:
    """One frame for ``data`` (any contiguous buffer, not empty)."""
    run = _contexts.compress.get(method)
    if run is None:
        run = _contexts.compress[method] = _compressor(method).compress
    return run(data)


def check_frame(frame: memoryview, size: int) -> None:
    """Raise DamagedData unless ``frame`` declares ``size`` bytes and a window within limits."""
    try:
        declared = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise DamagedData("a compressed part has no valid header") from error
    if declared.content_size != size or declared.dict_id or declared.has_checksum:
        raise DamagedData(f"a compressed part does not declare the recorded {size} bytes alone")
    if declared.window_size > ZSTD_MAX_WINDOW:
        raise DamagedData("a compressed part asks for too large a window")


def _check_extent(frame: memoryview) -> None:
    """Walk the block headers (RFC 8878, 3.1.1.2): the frame ends where ``frame`` ends.

    A reader that decodes into a given buffer does not say what it left unread.
    """
    end = zstandard.frame_header_size(frame)
    last = False
    while not last:
        header = frame[end : end + _BLOCK_HEADER]
        if len(header) < _BLOCK_HEADER:
            raise DamagedData("a compressed part is cut short")
        word = int.from_bytes(header, "little")
        last, kind = bool(word & 1), word >> 1 & 3
        if kind == _RESERVED:
            raise DamagedData("a compressed part has a block of no known kind")
        end += _BLOCK_HEADER + (1 if kind == _RLE else word >> 3)
    if end != len(frame):
        raise DamagedData("a compressed part does not end with its frame")


def decompress_into(frame: memoryview, out: NDArray[np.uint8]) -> None:
    """Fill ``out`` with what ``frame`` holds; DamagedData unless it is exactly that much."""
    check_frame(frame, len(out))
    _check_extent(frame)
    try:
        count = _contexts.open(frame, closefd=False).readinto(out)
    except zstandard.ZstdError as error:
        raise DamagedData("a compressed part does not decode") from error
    if count != len(out):
        raise DamagedData(f"a compressed part holds {count} bytes, not {len(out)}")


def run_decompress(run: Callable[..., bytes], frame: memoryview, size: int) -> bytes:
    """Call ``run`` on a frame that :func:`check_frame` has accepted."""
    try:
        data = run(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedData("a compressed part does not decode") from error
    if len(data) != size:
        raise DamagedData(f"a compressed part holds {len(data)} bytes, not {size}")
    return data
