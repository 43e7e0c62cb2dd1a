"""Which format a file has, told from its content; what does not parse is opaque."""

from __future__ import annotations

from mvc.adapters.opaque import opaque
from mvc.adapters.parsed import ParsedFile, Source, SourceFile
from mvc.adapters.safetensors import parse_safetensors
from mvc.errors import BadModelFile, DamagedData, InvalidName, UnsupportedTensor

__all__ = ["opaque", "parse_file"]

# What a parser raises when a file is not what it looked like. Failures of the
# operating system and files that change under the reader are no such reason.
_NOT_UNDERSTOOD = (BadModelFile, DamagedData, InvalidName, UnsupportedTensor)


def parse_file(source: Source, name: str) -> ParsedFile:
    """Takes a file apart by its magic bytes; any bytes at all can be versioned.

    ``name`` is only used in messages. Raises IoFailed and SourceChanged.
    """
    head = source.read(0, 16)
    parser = None
    if head[8:9] == b"{":
        parser = parse_safetensors
    if parser is None:
        return opaque(source, name)
    size = source.size()
    try:
        return SourceFile(source, name, size, parser(source, name))
    except _NOT_UNDERSTOOD:
        return opaque(source, name)
