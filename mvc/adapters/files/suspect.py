"""Files that claim to be a model but are cut off or something else.

Any bytes can be versioned, yet a checkpoint whose writing was interrupted must not go
live as a version by accident: what a file's first bytes or its name promise is compared
with what is there.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from mvc.adapters.files.safetensors import parse_header
from mvc.adapters.parsed import Source
from mvc.errors import BadModelFile
from mvc.limits import MAX_SAFETENSORS_HEADER

__all__ = ["suspicion"]

_ZIP, _ZIP_END, _NPY = b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY"
_ZIP_TAIL = (1 << 16) + 22  # how far from the end the zip directory's end may begin


def suspicion(source: Source, name: str) -> str | None:
    """Why an opaque file is not what it claims to be; None if it claims nothing.

    To be asked only about files that no parser understood.
    """
    size = source.size()
    head = source.read(0, 9)
    suffix = PurePosixPath(name.lower()).suffix
    if suffix == ".safetensors" or head[8:] == b"{":
        return _safetensors(source, name, size, named=suffix == ".safetensors")
    if head.startswith(_ZIP):
        tail = source.read(max(0, size - _ZIP_TAIL), _ZIP_TAIL)
        return None if _ZIP_END in tail else "it is cut off: a zip file ends in a directory"
    if head.startswith(_NPY):
        return _npy(source, size)
    if suffix in {".npz", ".npy"}:
        return f"it does not begin as a {suffix} file does"
    if suffix in {".pt", ".pth", ".ckpt"} and head[:1] != b"\x80":
        return "it is neither a torch zip file nor a pickle" if size else "it is empty"
    return None


def _safetensors(source: Source, name: str, size: int, *, named: bool) -> str | None:
    length = int.from_bytes(source.read(0, 8), "little")
    if size < 8 or length > MAX_SAFETENSORS_HEADER:
        return "it does not begin as a safetensors file does" if named else None
    if 8 + length > size:
        return (
            f"it is cut off within its header: {size:,} of {8 + length:,} bytes" if named else None
        )
    try:
        header = parse_header(source.read(8, length), name)
        needed = (
            8
            + length
            + max(
                (int(e["data_offsets"][1]) for k, e in header.items() if k != "__metadata__"),
                default=0,
            )
        )
    except (BadModelFile, KeyError, IndexError, TypeError, ValueError):
        return "its header is not that of a safetensors file" if named else None
    return f"it is cut off: {size:,} of {needed:,} bytes" if needed > size else None


def _npy(source: Source, size: int) -> str | None:
    """Only the header's own length is looked at; arrays of other kinds are opaque by right."""
    head = source.read(0, 12)
    wide = head[6:7] != b"\x01"
    length = int.from_bytes(head[8:12] if wide else head[8:10], "little")
    start = (12 if wide else 10) + length
    return "it is cut off within its header" if size < start else None
