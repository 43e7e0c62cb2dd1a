"""Detects a file's format from its content; a file that does not parse is opaque."""

from __future__ import annotations

from collections.abc import Callable

from mvc.adapters.files.numpy_files import MAGIC, parse_npy, parse_npz
from mvc.adapters.files.safetensors import parse_safetensors
from mvc.adapters.files.torch_zip import archive_name, parse_torch_zip
from mvc.adapters.files.zip_layout import read_members
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedFile, Source, SourceFile
from mvc.errors import BadModelFile, DamagedData, InvalidName, UnsupportedTensor
from mvc.model.tensor import TensorSpec

__all__ = ["opaque", "parse_file"]


def opaque(source: Source, name: str = "the file") -> SourceFile:
    """The whole of ``source`` as one content of dtype ``raw`` and shape (size,)."""
    size = source.size()
    content = ParsedContent(0, TensorSpec("raw", (size,)))
    return SourceFile(source, name, size, FileParts("opaque", (content,)))


_HEAD = 9
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


def _parser(head: bytes) -> Callable[[Source, str], FileParts] | None:
    if head.startswith(b"PK\x03\x04"):
        return _parse_zip
    if head.startswith(MAGIC):
        return parse_npy
    return parse_safetensors if head[8:] == b"{" else None


def _parse_zip(source: Source, name: str) -> FileParts:

    members = read_members(source, name)
    parse = parse_npz if archive_name(members) is None else parse_torch_zip
    parts = parse(source, name, members)
    if not parts.tensors and parts.format == "npz":
        raise BadModelFile(f"{name}: a zip file without arrays")
    return parts
