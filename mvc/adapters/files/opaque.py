"""Any file as one run of bytes without tensors: what is left when nothing else fits."""

from __future__ import annotations

from mvc.adapters.parsed import FileParts, ParsedContent, Source, SourceFile
from mvc.model.tensor import TensorSpec

__all__ = ["opaque"]


def opaque(source: Source, name: str = "the file") -> SourceFile:
    """The whole of ``source`` as one content of dtype ``raw`` and shape (size,)."""
    size = source.size()
    content = ParsedContent(0, TensorSpec("raw", (size,)))
    return SourceFile(source, name, size, FileParts("opaque", (content,)))
