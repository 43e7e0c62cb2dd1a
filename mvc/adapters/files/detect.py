"""What a file is: its format by its content, and whether a file of no known format is damaged.

A file that does not parse is opaque, because any bytes can be versioned. Yet a checkpoint whose
writing was interrupted must not go live by accident, so ``suspicion`` compares what an opaque
file's first bytes or its name promise with what is there.
"""

from __future__ import annotations

from collections.abc import Callable

from mvc.adapters.files.numpy_files import MAGIC, parse_npy, parse_npz
from mvc.adapters.files.safetensors import parse_header, parse_safetensors
from mvc.adapters.files.zip_layout import read_members
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedFile, Source, SourceFile
from mvc.errors import BadModelFile, DamagedData, InvalidName, UnsupportedTensor
from mvc.limits import MAX_SAFETENSORS_HEADER
from mvc.model.tensor import TensorSpec

_HEAD = 9
_ZIP, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
_PICKLE = b"\x80"
_SAVING = {
    **dict.fromkeys((".pt", ".pth", ".ckpt"), "save it with torch.save, without "
                    "_use_new_zipfile_serialization=False, or as .safetensors"),
    ".npz": "save it with numpy.savez, which does not compress",
    ".npy": "save a plain array of numbers in C order",
    ".safetensors": "save it with safetensors",
}  # fmt: skip
_ZIP_TAIL = (1 << 16) + 22  # how far from the end the zip directory's end may begin
# Errors by which a parser rejects a file. Failures of the operating system and files that change
# while they are read are not among them.
_NOT_UNDERSTOOD = (BadModelFile, DamagedData, InvalidName, UnsupportedTensor)


def parse_file(source: Source, name: str) -> ParsedFile:
    """Parses a file by its magic bytes; a file of no known format is opaque.

    ``name`` is only used in messages. Raises IoFailed and SourceChanged.
    """
    parser = _parser(source.read(0, _HEAD))
    if parser is None:
        return opaque(source, name)
    try:
        return SourceFile(source, name, source.size(), parser(source, name))
    except _NOT_UNDERSTOOD:
        return opaque(source, name)


def why_opaque(source: Source, name: str) -> tuple[str, str]:
    """Why the tensors of an opaque file are not known, and how to save it so that they are."""
    head = source.read(0, _HEAD)
    parser, why = _parser(head), "it is of no format that mvc reads"
    if parser is not None:
        try:
            parser(source, name)
        except _NOT_UNDERSTOOD as error:
            why = error.message.removeprefix(f"{name}: ").removeprefix(f"{name} ")
    elif head.startswith(_PICKLE):
        why = "it is a pickle, as torch saved before version 1.6"
    suffix = name[name.rfind(".") :].lower()
    return why, _SAVING.get(suffix, _SAVING[".safetensors"])


def opaque(source: Source, name: str = "the file") -> SourceFile:
    """The whole of ``source`` as one content of dtype ``raw`` and shape (size,)."""
    size = source.size()
    content = ParsedContent(0, TensorSpec("raw", (size,)))
    return SourceFile(source, name, size, FileParts("opaque", (content,)))


def _parser(head: bytes) -> Callable[[Source, str], FileParts] | None:
    if head.startswith(_ZIP):
        return _parse_zip
    if head.startswith(MAGIC):
        return parse_npy
    return parse_safetensors if head[8:] == b"{" else None


def _parse_zip(source: Source, name: str) -> FileParts:
    from mvc.adapters.files.torch_zip import archive_name, parse_torch_zip  # by torch's users only

    members = read_members(source, name)
    parse = parse_npz if archive_name(members) is None else parse_torch_zip
    parts = parse(source, name, members)
    if not parts.tensors and parts.format == "npz":
        raise BadModelFile(f"{name}: a zip file without arrays")
    return parts


def suspicion(source: Source, name: str) -> str | None:
    """Why an opaque file is not what it claims to be; None if it claims nothing.

    To be asked only about files that no parser understood.
    """
    size = source.size()
    head = source.read(0, 12)
    stem, dot, end = name.rpartition("/")[2].lower().rpartition(".")
    suffix = dot + end if stem else ""
    if suffix == ".safetensors" or head[8:_HEAD] == b"{":
        return _cut_safetensors(source, name, size, named=suffix == ".safetensors")
    if head.startswith(_ZIP):
        tail = source.read(max(0, size - _ZIP_TAIL), _ZIP_TAIL)
        return None if _ZIP_END in tail else "it is cut off: a zip file ends in a directory"
    if head.startswith(MAGIC):  # arrays of other kinds are opaque by right: only the length counts
        start = 10 if head[6:7] == b"\x01" else 12
        needed = start + int.from_bytes(head[8:start], "little")
        return "it is cut off within its header" if size < needed else None
    if suffix in {".npz", ".npy"}:
        return f"it does not begin as a {suffix} file does"
    if suffix in {".pt", ".pth", ".ckpt"} and head[:1] != _PICKLE:
        return "it is neither a torch zip file nor a pickle" if size else "it is empty"
    return None


def _cut_safetensors(source: Source, name: str, size: int, *, named: bool) -> str | None:
    """Only a file ``named`` so must have the header of one."""
    start = 8 + int.from_bytes(source.read(0, 8), "little")
    if size < 8 or start > 8 + MAX_SAFETENSORS_HEADER:
        return "it does not begin as a safetensors file does" if named else None
    if start > size:
        return f"it is cut off within its header: {size:,} of {start:,} bytes" if named else None
    try:
        header = parse_header(source.read(8, start - 8), name)
        ends = [int(e["data_offsets"][1]) for k, e in header.items() if k != "__metadata__"]
    except (BadModelFile, KeyError, IndexError, TypeError, ValueError):
        return "its header is not that of a safetensors file" if named else None
    needed = start + max(ends, default=0)
    return f"it is cut off: {size:,} of {needed:,} bytes" if needed > size else None
