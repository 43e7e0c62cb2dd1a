"""Checks whether a model file is truncated. There is one function for each file format.

Most formats state the length of the file, or the lengths of its parts. Each function raises
BadModelFile for a truncated file, ValueError or struct.error if the file does not have the format,
and LookupError if the file is too large to check, or has parts that mvc does not know.
"""

from __future__ import annotations

import math
import re

from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.files.gguf import read_gguf
from mvc.adapters.files.numpy_files import MAGIC
from mvc.adapters.files.safetensors import naturals, parse_header
from mvc.adapters.files.torch_files import read_old
from mvc.adapters.files.zip_layout import read_directory
from mvc.errors import BadModelFile
from mvc.limits import MAX_PICKLE, MAX_SAFETENSORS_HEADER

_HDF5 = b"\x89HDF\r\n\x1a\n"
_FIELD = re.compile(rb"'[<>|=]([a-zA-Z])(\d{1,9})(?:\[\w{1,9}\])?'(?:, \(([\d, ]+)\))?[,)\]]")
_SHAPE = re.compile(rb"'shape': \(([\d, ]*)\)")
# Maps the first byte of a msgpack value to three numbers (width, size, values). A count of
# ``width`` bytes follows the first byte. Then ``size`` bytes and ``values`` nested values follow
# for each counted item. If ``width`` is 0, there is no count, and they follow once.
_MSGPACK = {
    **dict.fromkeys((*range(128), 192, 194, 195, *range(224, 256)), (0, 0, 0)),
    **{0x80 + n: (0, 0, 2 * n) for n in range(16)},
    **{0x90 + n: (0, 0, n) for n in range(16)},
    **{0xA0 + n: (0, n, 0) for n in range(32)},
    **{0xC4 + n: (1 << n, 1, 0) for n in range(3)},
    **{0xC7 + n: (1 << n, 1, 0) for n in range(3)},
    0xCA: (0, 4, 0), 0xCB: (0, 8, 0),
    **{0xCC + n: (0, 1 << n % 4, 0) for n in range(8)},
    **{0xD4 + n: (0, 1 + (1 << n), 0) for n in range(5)},
    **{0xD9 + n: (1 << n, 1, 0) for n in range(3)},
    0xDC: (2, 0, 1), 0xDD: (4, 0, 1), 0xDE: (2, 0, 2), 0xDF: (4, 0, 2),
}  # fmt: skip
_EXTENSIONS = range(0xC7, 0xCA)  # first bytes of values with an additional byte, their type


def check_safetensors(file: FileCursor) -> None:
    """The header states where each tensor ends."""
    length = file.number(8)
    if length > MAX_SAFETENSORS_HEADER:
        raise ValueError
    file.skip(length)
    try:
        header = parse_header(file.source.read(8, length), "it")
        ends = [e["data_offsets"][1] for key, e in header.items() if key != "__metadata__"]
    except (BadModelFile, LookupError, TypeError) as error:
        raise ValueError from error
    if not naturals(ends):
        raise ValueError
    file.skip(max(ends, default=0))


def check_zip(file: FileCursor) -> None:
    """A zip file ends with a directory and the position of this directory.

    If earlier bytes are missing, the directory is not at this position.
    """
    try:
        read_directory(file.source, "it")
    except BadModelFile as error:
        raise BadModelFile("it is truncated: its zip directory is missing or moved") from error


def check_dcp(file: FileCursor) -> None:
    """A file of torch.distributed.checkpoint is a series of zip files, one for each tensor.

    So the file must end with the end of a zip file.
    """
    if file.source.read(max(file.end - 22, 0), 4) != b"PK\x05\x06":
        raise BadModelFile("it is truncated: it ends inside a zip file")


def check_npy(file: FileCursor) -> None:
    """The header of a numpy file is a Python literal with the shape and the dtype.

    Regular expressions find shape and dtype, so that the header is not evaluated. Fields that they
    do not match do not change the expected length.
    """
    file.skip(len(MAGIC))
    version = file.number(2)
    header = file.read(file.number(2 if version == 1 else 4))
    shape, fields = _SHAPE.search(header), _FIELD.findall(header.partition(b"'fortran_order'")[0])
    if b"'|O'" in header:  # a pickle follows
        check_pickle(file)
    elif shape is not None:
        widths = (int(w) * (4 if kind == b"U" else 1) * _product(s) for kind, w, s in fields)
        file.skip(sum(widths) * _product(shape[1]))


def _product(shape: bytes) -> int:
    return math.prod(map(int, re.findall(rb"\d+", shape)))


def check_pickle(file: FileCursor) -> None:
    """A pickle does not state its length, but its last byte is a period."""
    if file.source.read(file.end - 1, 1) != b".":
        raise BadModelFile("it is truncated: its pickle lacks the final '.'")


def check_legacy_torch(file: FileCursor) -> None:
    """An old torch file has five pickles, then the storages of the tensors.

    The fourth pickle states the size of each storage.
    """
    try:
        _, sizes, end = read_old(file.source)
    except BadModelFile:
        if file.end > MAX_PICKLE:
            raise LookupError from None
        raise BadModelFile("it is truncated: it ends inside its pickles") from None
    file.skip(end + sum(8 + size for _, size in sizes.values()))


def check_hdf5(file: FileCursor) -> None:
    """The superblock states the length of the file. A user block may precede the superblock."""
    head = file.source.read(0, 8192)
    at = next(at for at in (0, 512, 1024, 2048, 4096) if head.startswith(_HDF5, at))
    file.skip(at + 48)
    version = head[at + 8]
    width = head[at + (13 if version < 2 else 9)]
    start = at + {0: 24, 1: 28}.get(version, 12) + 2 * width
    end = int.from_bytes(head[start : start + width], "little")
    file.at = 0
    file.skip(end)


def check_gguf(file: FileCursor) -> None:
    """The header states the position of each tensor."""
    tensors = read_gguf(file).tensors
    file.skip(max((tensor.offset + tensor.spec.nbytes for tensor in tensors), default=0))


def check_tar(file: FileCursor) -> None:
    """Before each member of the archive, a header of 512 bytes states the length of the member.

    A header of zeros ends the archive.
    """
    while any(header := file.read(512)):
        # A size over 8 GiB is not encoded as octal digits: ValueError.
        size = int(header[124:136].strip(b" \0") or b"0", 8)
        file.skip(-(-size // 512) * 512)


def check_msgpack(file: FileCursor) -> None:
    """A msgpack file is one value, which may have nested values."""
    file.order, waiting = "big", 1
    while waiting:
        code = file.read(1)[0]
        width, size, values = _MSGPACK[code]
        count = file.number(width) if width else 1
        file.skip(size * count + (code in _EXTENSIONS))
        waiting += values * count - 1
