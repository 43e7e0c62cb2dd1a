"""Finds the tensors in numpy's .npy and .npz files.

An .npy file is a short text header, then the numbers. An .npz file is a zip file of .npy files. The
header must have exactly the form that numpy writes (numpy/lib/format.py, versions 1.0, 2.0, 3.0).
Little-endian row-major arrays of numbers become tensors. Other arrays in an .npz stay raw bytes.
"""

from __future__ import annotations

import re

from mvc.adapters.files.zip_layout import ZipMember, find_checks
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, Source
from mvc.errors import BadModelFile
from mvc.limits import MAX_DIMENSIONS
from mvc.model.tensor import TensorSpec

DESCRIPTIONS = {
    "|b1": "bool", "|i1": "int8", "<i2": "int16", "<i4": "int32", "<i8": "int64",
    "|u1": "uint8", "<u2": "uint16", "<u4": "uint32", "<u8": "uint64",
    "<f2": "float16", "<f4": "float32", "<f8": "float64", "<c8": "complex64", "<c16": "complex128",
}  # fmt: skip
"""Maps numpy's names of little-endian dtypes (``dtype.str``) to names in ``mvc.model.tensor``."""

MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 16
_HEADER = re.compile(
    rb"\{'descr': '([<|][a-z][0-9]{1,2})', 'fortran_order': False, "
    rb"'shape': \(((?:[0-9]{1,19}, )*(?:[0-9]{1,19},?)?)\), \} *\n"
)


def parse_npy(source: Source, name: str) -> FileParts:
    """Finds the array of an .npy file; its key is ``array``. Raises BadModelFile."""
    start, spec = _array(source, 0, source.size(), name)
    return FileParts("npy", (ParsedContent(start, spec),), (ParsedTensor("array", spec, 0),))


def parse_npz(source: Source, name: str, members: tuple[ZipMember, ...]) -> FileParts:
    """Finds the arrays of an .npz file. Raises BadModelFile if an array is compressed.

    The keys are the names of the zip file's members without ``.npy``.
    """
    contents: list[ParsedContent] = []
    tensors: list[ParsedTensor] = []
    for member in members:
        if not member.stored:
            raise BadModelFile(f"{name}: its arrays are compressed")
        try:
            start, spec = _array(source, member.start, member.size, member.name)
        except BadModelFile:
            contents.append(ParsedContent(member.start, TensorSpec("raw", (member.size,))))
            continue
        tensors.append(ParsedTensor(member.name.removesuffix(".npy"), spec, len(contents)))
        contents.append(ParsedContent(start, spec))
    return FileParts("npz", tuple(contents), tuple(tensors), find_checks(source, name, members))


def _array(source: Source, start: int, size: int, name: str) -> tuple[int, TensorSpec]:
    """Reads the header at ``start``. Returns the position, dtype and shape of the numbers.

    ``size``: the number of bytes of header and numbers. Raises BadModelFile.
    """
    head = source.read(start, min(size, 12))
    version = head[6:8]
    width = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}.get(version, 0)
    length = int.from_bytes(head[8 : 8 + width], "little")
    data = 8 + width + length
    if head[:6] != MAGIC or not width or data > size or length > _MAX_HEADER:
        raise BadModelFile(f"{name} is not a numpy array")
    match = _HEADER.fullmatch(source.read(start + 8 + width, length))
    dtype = DESCRIPTIONS.get(match[1].decode()) if match else None
    if match is None or dtype is None:
        raise BadModelFile(f"{name} is not a little-endian array of numbers in C order")
    shape = tuple(int(n) for n in re.findall(rb"[0-9]+", match[2]))
    if len(shape) > MAX_DIMENSIONS:
        raise BadModelFile(f"{name} has too many dimensions")
    spec = TensorSpec(dtype, shape)
    if data + spec.nbytes != size:
        raise BadModelFile(f"{name} has another size than its header states")
    return start + data, spec
