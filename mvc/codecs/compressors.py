"""General compressors behind one pair of functions, each bounded by the recorded size.

A method is the text of a stage: ``zlib:9``, ``brotli:11``; without a colon it is a level of zstd,
or ``huff``: parameters under which zstd hardly does more than Huffman coding, which for byte planes
of weights is both smaller and faster than level 1. docs/format.md says what a frame may be.

python-zstandard believes the size that a frame declares, whatever limit the caller gives. So that
is compared with the recorded size before anything is allocated. LZMA has no header, because a
header could demand gigabytes of dictionary.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard

from mvc.codecs.words import Bytes
from mvc.errors import DamagedData, NotInstalled, how_to_install
from mvc.limits import ZSTD_MAX_WINDOW

HUFFMAN = "huff"
_BLOCK_HEADER = 3
_RLE, _RESERVED = 1, 3
_LEAST_DICTIONARY = 4096  # of LZMA
_STORED = 64 << 10  # bytes that fit into one block of a zstd frame
_STORED_FRAME = struct.Struct("<IBI")  # magic number, a single segment with its size in 4 bytes


class _Contexts(threading.local):
    """A zstd context may serve one thread at a time."""

    def __init__(self) -> None:
        self.compress: dict[str, Callable[[Any], bytes]] = {}
        context = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW)
        self.open, self.chain = context.stream_reader, context.decompress_content_dict_chain


_contexts = _Contexts()


def compress(data: Any, method: str) -> bytes:
    """One frame for ``data`` (any contiguous buffer, not empty)."""
    name, colon, level = method.partition(":")
    if not colon:
        run = _contexts.compress.get(method)
        if run is None:
            run = _contexts.compress[method] = _zstd(method).compress
        return run(data)
    if name == "zlib":
        return zlib.compress(data, int(level))
    if name == "bz2":
        import bz2

        return bz2.compress(data, int(level))
    if name == "lzma":
        import lzma

        size = max(memoryview(data).nbytes, _LEAST_DICTIONARY)
        lzma2 = {"id": lzma.FILTER_LZMA2, "preset": int(level), "dict_size": size}
        return lzma.compress(data, lzma.FORMAT_RAW, filters=[lzma2])
    made: bytes = _brotli().compress(data, quality=int(level))
    return made


def decompress_into(frame: memoryview, out: Bytes, method: str) -> None:
    """Fill ``out`` with what ``frame`` holds; DamagedData unless it is exactly that much."""
    name, colon, _ = method.partition(":")
    if not colon:
        _decompress_zstd(frame, out)
        return
    run = _decompress_brotli if name == "brotli" else _decompress
    data = run(frame, len(out), name) if len(out) else None
    if data is None or len(data) != len(out):
        raise DamagedData(f"a part compressed by {name} does not hold the recorded bytes alone")
    out[:] = np.frombuffer(data, np.uint8)


def decompress_after(frame: memoryview, size: int, before: bytes) -> bytes:
    """The ``size`` bytes of a zstd frame that may refer to the bytes ``before`` it.

    Raises DamagedData unless it holds exactly so many.
    """
    _check_header(frame, size)
    _check_extent(frame)
    try:
        if 0 < len(before) <= _STORED:
            # A context costs ten times more than a small frame, and is bound to one dictionary.
            data: bytes = _contexts.chain([_stored(before), bytes(frame)])
        else:
            words = zstandard.ZstdCompressionDict(before, zstandard.DICT_TYPE_RAWCONTENT)
            data = zstandard.ZstdDecompressor(dict_data=words).decompress(frame)
    except zstandard.ZstdError as error:
        raise DamagedData("a compressed part does not decode") from error
    if len(data) != size:
        raise DamagedData(f"a compressed part holds {len(data)} bytes, not {size}")
    return data


def _stored(data: bytes) -> bytes:
    """A zstd frame of one block that is not compressed (RFC 8878, 3.1.1)."""
    block = (len(data) << 3 | 1).to_bytes(_BLOCK_HEADER, "little")
    return _STORED_FRAME.pack(zstandard.MAGIC_NUMBER, 0xA0, len(data)) + block + data


def _decompress_zstd(frame: memoryview, out: Bytes) -> None:
    _check_header(frame, len(out))
    _check_extent(frame)
    try:
        count = _contexts.open(frame, closefd=False).readinto(out)
    except zstandard.ZstdError as error:
        raise DamagedData("a compressed part does not decode") from error
    if count != len(out):
        raise DamagedData(f"a compressed part holds {count} bytes, not {len(out)}")


def _check_header(frame: memoryview, size: int) -> None:
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


def _zstd(method: str) -> zstandard.ZstdCompressor:
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


def _decompress(frame: memoryview, size: int, name: str) -> bytes | None:
    """At most ``size`` bytes; None unless ``frame`` is one whole frame that holds no more."""
    reader, error = _reader(name, size)
    try:
        data: bytes = reader.decompress(frame, size)
        # The end of the frame shows only when more than its bytes are requested.
        left = getattr(reader, "unconsumed_tail", b"")  # zlib returns it, the others keep it
        rest = b"" if reader.eof else reader.decompress(left, 1)
    except (error, EOFError):
        return None
    return data if reader.eof and not rest and not reader.unused_data else None


def _reader(name: str, size: int) -> tuple[Any, type[Exception]]:
    """A decompressor of the standard library, and what it raises for damaged data."""
    if name == "zlib":
        return zlib.decompressobj(), zlib.error
    if name == "bz2":
        import bz2

        return bz2.BZ2Decompressor(), OSError
    import lzma

    lzma2 = {"id": lzma.FILTER_LZMA2, "dict_size": max(size, _LEAST_DICTIONARY)}
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[lzma2]), lzma.LZMAError


def _decompress_brotli(frame: memoryview, size: int, _: str) -> bytes | None:
    """As ``_decompress``."""
    module = _brotli()
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


def _brotli() -> Any:
    try:
        import brotli
    except ImportError:
        raise NotInstalled("brotli is not installed", hint=how_to_install("brotli")) from None
    return brotli
