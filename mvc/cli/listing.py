"""How the files and tensors of a version are listed, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mvc.cli.output import Output
from mvc.cli.tables import Column, show
from mvc.cli.text import count, shape, size
from mvc.errors import UnknownPath
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.model.manifest import FileEntry, LogicalTensor, Manifest

__all__ = ["chosen", "entry_json", "file_line", "tensor_table"]


def chosen(manifest: Manifest, names: Sequence[str]) -> list[FileEntry]:
    """The entries that names of files or folders mean; all for none. UnknownPath otherwise."""
    if not names:
        return list(manifest.entries)
    found: dict[str, FileEntry] = {}
    for name in names:
        below = [
            e for e in manifest.entries if name in {e.path, "."} or e.path.startswith(name + "/")
        ]
        if not below:
            raise UnknownPath(
                f"the version has no path {printable(name)}", hint="'mvc ls' lists its paths"
            )
        found |= {e.path: e for e in below}
    return list(found.values())


def file_line(out: Output, entry: FileEntry) -> str:
    """``model.safetensors  safetensors, 14 tensors, 3.55 MB``."""
    parts = [entry.format, size(entry.size)]
    if entry.tensors:
        parts.insert(1, count(len(entry.tensors), "tensor"))
    return f"{out.paint(printable(entry.path), 'heading')}  {', '.join(parts)}"


def tensor_table(
    out: Output,
    tensors: Sequence[LogicalTensor],
    marks: Mapping[str, str] | None = None,
    *,
    full: bool = False,
) -> None:
    """Name, dtype, shape, size and id of tensors. ``marks``: what happened to each, by key."""
    words = marks or {}
    columns = [
        Column("tensor", give="middle"),
        Column("dtype"),
        Column("shape", right=True),
        Column("size", right=True),
        Column("id", style="id"),
        Column("change", style="changed"),
    ]
    rows = [
        (
            printable(t.key),
            t.spec.dtype,
            shape(t.spec.shape),
            size(t.spec.nbytes),
            str(t.id) if full else t.id.short,
            words.get(t.key, ""),
        )
        for t in tensors
    ]
    show(out, columns, rows, indent="  ")


def entry_json(entry: FileEntry) -> dict[str, Any]:
    """One path of a version with its tensors in the order of the file."""
    return {
        "path": entry.path,
        "format": entry.format,
        "bytes": entry.size,
        "content": entry.content_id.hex(),
        "root": str(entry.state.root) if entry.tensors else None,
        "tensors": [
            {
                "key": t.key,
                "dtype": t.spec.dtype,
                "shape": list(t.spec.shape),
                "bytes": t.spec.nbytes,
                "id": str(t.id),
            }
            for t in entry.tensors
        ],
    }
