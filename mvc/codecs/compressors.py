"""The pipeline stages that compress bytes: zstd, zlib, bzip2, lzma and brotli.

A frame is the compressed form of one buffer. docs/format.md defines the permitted frames.
``zstd:huff`` is zstd with parameters that permit little more than Huffman coding. For byte planes
of weights, ``zstd:huff`` is faster than ``zstd:1``, and its frames are smaller.

Damaged data must not make a decoder allocate much memory. python-zstandard allocates the size that
a frame declares, even if the caller passes a limit. So this size is compared with the expected size
first. LZMA frames are stored without a header, which could demand gigabytes of memory.
"""

from __future__ import annotations

import struct
import threading
import zlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import zstandard

from mvc.codecs.stage import STAGES, WORDS, Costs, Kind, Stage, whole_number
from mvc.codecs.words import Bytes
from mvc.errors import DamagedData, NotInstalled, how_to_install
from mvc.limits import ZSTD_MAX_WINDOW
from mvc.types import FIRST_RELEASE

_HUFFMAN = "huff"
_BLOCK_HEADER = 3
_RLE, _RESERVED = 1, 3
_LEAST_DICTIONARY = 4096  # bytes, in LZMA
_STORED = 64 << 10  # bytes that fit into one block of a zstd frame
_STORED_FRAME = struct.Struct("<IBI")  # magic number, a single segment with its size in 4 bytes


class _Contexts(threading.local):
    """The zstd contexts of a thread. Two threads must not use a context at the same time."""

    def __init__(self) -> None:
        self.compress: dict[str, Callable[[Any], bytes]] = {}
        context = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW)
        self.open, self.chain = context.stream_reader, context.decompress_content_dict_chain


_contexts = _Contexts()


class Compressor(Stage, frozen=True):
    """Compresses each stream of bytes separately."""

    accepts = WORDS | {Kind.STREAMS}
    returns = Kind.BYTES
    needs = "words or streams, not bytes, before it"
    levels: ClassVar[tuple[int, int]] = (1, 9)
    default: ClassVar[str] = ""
    full_costs: ClassVar[Costs]  # as ``costs``, for full records instead of deltas

    @property
    def acts_on(self) -> str:
        return "the bytes"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        low, high = cls.levels
        text = parameter or cls.default
        level = whole_number(
            f"{name}:{parameter}".strip(":"), "its level", text, low=low, high=high
        )
        return cls(f"{name}:{level}")

    def costs_in(self, operator: str) -> Costs:
        return self.full_costs if operator == "none" else self.costs

    @property
    def level(self) -> int:
        return int(self.text.partition(":")[2])

    @abstractmethod
    def compress(self, data: Any) -> bytes:
        """One frame for ``data`` (any contiguous buffer, not empty)."""

    @abstractmethod
    def decompress_into(self, frame: memoryview, out: Bytes) -> None:
        """Fills ``out`` with the content of ``frame``. Raises DamagedData if the lengths differ."""


class Zstd(Compressor, frozen=True):
    """zstd at a level, or tuned to Huffman coding (huff)"""

    usage = "zstd:1..22|huff"
    feature = FIRST_RELEASE
    levels = (1, 22)
    costs: ClassVar[Costs] = {1: (0.23, 2.3), 2: (0.36, 0.21), 4: (0.32, 0.0), 8: (0.61, 0.0)}
    full_costs: ClassVar[Costs] = {1: (0.58, 0.0), 2: (0.2, 0.0), 4: (0.17, 0.0), 8: (0.22, 0.0)}

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if parameter == _HUFFMAN:
            return cls(f"{name}:{parameter}")
        stage = super().read(name, parameter)
        return stage if int(parameter) <= 19 else ZstdUltra(stage.text)

    def compress(self, data: Any) -> bytes:
        run = _contexts.compress.get(self.text)
        if run is None:
            run = _contexts.compress[self.text] = self._context().compress
        return run(data)

    def _context(self) -> zstandard.ZstdCompressor:
        if not self.text.endswith(_HUFFMAN):
            return zstandard.ZstdCompressor(level=self.level, write_checksum=False)
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

    def decompress_into(self, frame: memoryview, out: Bytes) -> None:
        """As ``Compressor.decompress_into``. The frame may have any zstd level."""
        _check_header(frame, len(out))
        _check_extent(frame)
        try:
            count = _contexts.open(frame, closefd=False).readinto(out)
        except zstandard.ZstdError as error:
            raise DamagedData("a compressed part does not decode") from error
        if count != len(out):
            raise DamagedData(f"a compressed part has {count} bytes, not {len(out)}")


class ZstdUltra(Zstd, frozen=True):
    """zstd above level 19. Its window is never larger than the data, a few MiB at most."""

    feature = STAGES


class _General(Compressor, frozen=True):
    """A general compressor: zlib, bz2, lzma or brotli."""

    feature = STAGES

    @abstractmethod
    def decompress(self, frame: memoryview, size: int) -> bytes | None:
        """Returns at most ``size`` bytes, or None if ``frame`` is not exactly one frame."""

    def decompress_into(self, frame: memoryview, out: Bytes) -> None:
        data = self.decompress(frame, len(out)) if len(out) else None
        if data is None or len(data) != len(out):
            raise DamagedData(f"a part compressed by {self.text} has another size than recorded")
        out[:] = np.frombuffer(data, np.uint8)


class Zlib(_General, frozen=True):
    """zlib (deflate) at a level"""

    usage = "zlib:1..9"
    costs: ClassVar[Costs] = {1: (1.9, 0.98), 2: (1.6, 1.7), 4: (1.6, 0.17), 8: (0.96, 0.0)}
    full_costs: ClassVar[Costs] = {1: (3.4, 0.0), 2: (1.7, 0.0), 4: (0.63, 0.0), 8: (0.5, 0.0)}

    def compress(self, data: Any) -> bytes:
        return zlib.compress(data, self.level)

    def decompress(self, frame: memoryview, size: int) -> bytes | None:
        return _decompress(zlib.decompressobj(), zlib.error, frame, size)


class Bz2(_General, frozen=True):
    """bzip2 at a level"""

    usage = "bz2:1..9"
    costs: ClassVar[Costs] = {1: (16.0, 0.0), 2: (6.8, 29.0), 4: (12.0, 0.0), 8: (3.5, 2.1)}
    full_costs: ClassVar[Costs] = {1: (36.0, 0.0), 2: (16.0, 0.0), 4: (6.0, 0.0), 8: (6.6, 0.0)}

    def compress(self, data: Any) -> bytes:
        import bz2

        return bz2.compress(data, self.level)

    def decompress(self, frame: memoryview, size: int) -> bytes | None:
        import bz2

        return _decompress(bz2.BZ2Decompressor(), OSError, frame, size)


class Lzma(_General, frozen=True):
    """lzma at a level (6 by default)"""

    usage = "lzma[:0..9]"
    levels = (0, 9)
    default = "6"
    costs: ClassVar[Costs] = {1: (7.0, 0.0), 2: (0.5, 44.0), 4: (12.0, 0.0), 8: (2.4, 2.3)}
    full_costs: ClassVar[Costs] = {1: (42.0, 0.0), 2: (17.0, 0.0), 4: (3.4, 0.0), 8: (5.7, 0.0)}

    def compress(self, data: Any) -> bytes:
        import lzma

        size = max(memoryview(data).nbytes, _LEAST_DICTIONARY)
        lzma2 = {"id": lzma.FILTER_LZMA2, "preset": self.level, "dict_size": size}
        return lzma.compress(data, lzma.FORMAT_RAW, filters=[lzma2])

    def decompress(self, frame: memoryview, size: int) -> bytes | None:
        import lzma

        lzma2 = {"id": lzma.FILTER_LZMA2, "dict_size": max(size, _LEAST_DICTIONARY)}
        reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[lzma2])
        return _decompress(reader, lzma.LZMAError, frame, size)


class Brotli(_General, frozen=True):
    """brotli at a level (needs the extra brotli)"""

    usage = "brotli:0..11"
    levels = (0, 11)
    costs: ClassVar[Costs] = {1: (1.3, 0.16), 2: (0.9, 3.5), 4: (1.4, 0.0), 8: (0.87, 0.0)}
    full_costs: ClassVar[Costs] = {1: (2.9, 0.0), 2: (1.2, 0.0), 4: (0.57, 0.0), 8: (0.45, 0.0)}

    def compress(self, data: Any) -> bytes:
        frame: bytes = _brotli().compress(data, quality=self.level)
        return frame

    def decompress(self, frame: memoryview, size: int) -> bytes | None:
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


FAST, HUFFMAN = Zstd("zstd:1"), Zstd(f"zstd:{_HUFFMAN}")


def decompress_after(frame: memoryview, size: int, before: bytes) -> bytes:
    """Decompresses a zstd frame that was compressed with the dictionary ``before``.

    Raises DamagedData unless the result has exactly ``size`` bytes.
    """
    _check_header(frame, size)
    _check_extent(frame)
    try:
        if 0 < len(before) <= _STORED:
            # In a chain, the content of a frame is the dictionary of the following frame. For a
            # small frame, this is ten times faster than a new context with a dictionary.
            data: bytes = _contexts.chain([_stored(before), bytes(frame)])
        else:
            words = zstandard.ZstdCompressionDict(before, zstandard.DICT_TYPE_RAWCONTENT)
            data = zstandard.ZstdDecompressor(dict_data=words).decompress(frame)
    except zstandard.ZstdError as error:
        raise DamagedData("a compressed part does not decode") from error
    if len(data) != size:
        raise DamagedData(f"a compressed part has {len(data)} bytes, not {size}")
    return data


def _stored(data: bytes) -> bytes:
    """A zstd frame with one uncompressed block (RFC 8878, 3.1.1)."""
    block = (len(data) << 3 | 1).to_bytes(_BLOCK_HEADER, "little")
    return _STORED_FRAME.pack(zstandard.MAGIC_NUMBER, 0xA0, len(data)) + block + data


def _check_header(frame: memoryview, size: int) -> None:
    """Raises DamagedData unless ``frame`` declares ``size`` bytes and a window within limits."""
    try:
        declared = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise DamagedData("a compressed part has no valid header") from error
    if declared.content_size != size or declared.dict_id or declared.has_checksum:
        raise DamagedData(f"the header of a compressed part does not fit the recorded {size} bytes")
    if declared.window_size > ZSTD_MAX_WINDOW:
        raise DamagedData("a compressed part requires too large a window")


def _check_extent(frame: memoryview) -> None:
    """Raises DamagedData unless the zstd frame ends where ``frame`` ends.

    To find the end, the headers of the blocks are read (RFC 8878, 3.1.1.2), because zstd's stream
    reader does not report bytes after the frame.
    """
    end = zstandard.frame_header_size(frame)
    last = False
    while not last:
        header = frame[end : end + _BLOCK_HEADER]
        if len(header) < _BLOCK_HEADER:
            raise DamagedData("a compressed part is truncated")
        word = int.from_bytes(header, "little")
        last, kind = bool(word & 1), word >> 1 & 3
        if kind == _RESERVED:
            raise DamagedData("a compressed part has a block of an unknown kind")
        end += _BLOCK_HEADER + (1 if kind == _RLE else word >> 3)
    if end != len(frame):
        raise DamagedData("a compressed part does not end with its frame")


def _decompress(reader: Any, error: type[Exception], frame: memoryview, size: int) -> bytes | None:
    """As ``_General.decompress``. ``reader`` is from the standard library, and raises ``error``."""
    try:
        data: bytes = reader.decompress(frame, size)
        # The reader detects the end of the frame only if bytes after its content are requested.
        left = getattr(reader, "unconsumed_tail", b"")  # of zlib; other readers buffer the rest
        rest = b"" if reader.eof else reader.decompress(left, 1)
    except (error, EOFError):
        return None
    return data if reader.eof and not rest and not reader.unused_data else None


def _brotli() -> Any:
    try:
        import brotli
    except ImportError:
        raise NotInstalled("brotli is not installed", hint=how_to_install("brotli")) from None
    return brotli
