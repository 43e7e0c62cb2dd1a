"""Patches between byte strings of different lengths.

Patches are used for files without tensors, for skeletons (the bytes of a file outside its tensors)
and for manifests (lists of files). A patch makes the new bytes from the base, but not the base from
the new bytes. The new bytes are divided into blocks, and zstd compresses each block with a part of
the base as its dictionary. This part is at the same relative position as the block. So the memory
is bounded for any lengths.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import zstandard

from mvc.codecs.compressors import decompress_after
from mvc.codecs.varint import Cursor, varint
from mvc.limits import MIB

BLOCK = 4 * MIB  # bytes of the new buffer in one frame
MARGIN = 2 * MIB  # additional bytes of the base in the dictionary, before and after the block
_LEVEL = 3  # of zstd
# zstd's default tables for a level cover only a fraction of a dictionary of several MiB.
_LARGE_SIZE = MIB // 4
_LARGE = {"window_log": 23, "hash_log": 20}


def encode_patch(new: memoryview, base: memoryview, extra: bytes = b"") -> bytes:
    """A patch from ``base`` to ``new``. With an empty base, ``new`` is only compressed.

    ``extra``: at most 1 MiB of additional bytes for every dictionary. The decoder needs them, too.
    """
    parts = []
    for start in range(0, len(new), BLOCK):
        block = new[start : start + BLOCK]
        words = _dictionary(start, len(new), base, extra)
        frame = _compressor(len(block), words).compress(block)
        parts += [varint(len(frame)), frame]
    return b"".join(parts)


class _PlainCompressors(threading.local):
    """The compressors without a dictionary, separate for each thread.

    ``by_size``: maps the number of bits of a block's size to a compressor.
    """

    def __init__(self) -> None:
        self.by_size: dict[int, zstandard.ZstdCompressor] = {}


_plain = _PlainCompressors()


def _compressor(length: int, words: bytes) -> zstandard.ZstdCompressor:
    """A compressor for a block of ``length`` bytes with the dictionary ``words``."""
    size = length + len(words)
    if words or size > _LARGE_SIZE:
        dictionary = zstandard.ZstdCompressionDict(words, zstandard.DICT_TYPE_RAWCONTENT)
        parameters = _parameters(size)
        return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)
    # For small blocks, creating the compressor takes most of the time. zstd rounds the size up to
    # a power of two, so one compressor serves all sizes that are rounded to the same power.
    bits = (size - 1).bit_length()
    compressor = _plain.by_size.get(bits)
    if compressor is None:
        compressor = zstandard.ZstdCompressor(compression_params=_parameters(1 << bits))
        _plain.by_size[bits] = compressor
    return compressor


def _parameters(size: int) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=size,
        write_checksum=False,
        write_dict_id=False,
        **(_LARGE if size > _LARGE_SIZE else {}),
    )


def decode_patch(data: memoryview | bytes, base: memoryview, extra: bytes, nbytes: int) -> bytes:
    """Decodes a patch to ``nbytes`` bytes. Raises DamagedData if the patch is invalid.

    A wrong base of the right length may not be detected. So check the hash of the result.
    """
    return b"".join(_blocks(data, base, extra, nbytes))


def decode_patch_into(
    data: memoryview | bytes, base: memoryview, extra: bytes, out: memoryview
) -> None:
    """As :func:`decode_patch`, into existing memory."""
    for i, block in enumerate(_blocks(data, base, extra, len(out))):
        out[i * BLOCK : i * BLOCK + len(block)] = block


def _blocks(
    data: memoryview | bytes, base: memoryview, extra: bytes, nbytes: int
) -> Iterator[bytes]:
    cursor = Cursor(data)
    for start in range(0, nbytes, BLOCK):
        frame, size = cursor.read(cursor.varint()), min(BLOCK, nbytes - start)
        yield decompress_after(frame, size, _dictionary(start, nbytes, base, extra))
    cursor.end()


def _dictionary(start: int, total: int, base: memoryview, extra: bytes) -> bytes:
    """The dictionary of the block at ``start``. ``total``: the length of the new bytes."""
    place = start * len(base) // total
    return b"".join((extra, base[max(0, place - MARGIN) : place + BLOCK + MARGIN]))
