"""Prints a tensor of a version, or saves it for numpy.

Types that numpy lacks (bfloat16, float8) are converted to float32 without a loss.
"""

from __future__ import annotations

import io
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api import FileEntry, LogicalTensor, Manifest
from mvc.cli.payload import fields
from mvc.cli.session import Session
from mvc.errors import UnknownPath
from mvc.ids import CommitId
from mvc.state import as_numpy
from mvc.text import number, printable, shape, size

Array = np.ndarray[Any, Any]

_MOST_IN_JSON = 10_000


def show_tensor(session: Session, rev: CommitId, name: str, output: str | None) -> None:
    """Prints the tensor ``name`` (``KEY`` or ``PATH:KEY``), or saves it to ``output``."""
    entry, tensor = _named(session, session.repo.manifest(rev), name)
    if output is not None:
        session.check_output(output, force=None)
    values = as_numpy(tensor.spec, session.repo.open_file(rev, entry.path).tensor_bytes(tensor))
    if output is not None:
        file = io.BytesIO()
        np.save(file, values)
        session.fs.replace_file(
            Path(output), lambda to: to.write([file.getbuffer()]), mode=None, durable=False
        )
        as_ = f" as {values.dtype}" if values.dtype.name != tensor.spec.dtype else ""
        session.note(f"saved {tensor.key}{as_} in {output}")
    if session.as_json:
        whole = values.size <= _MOST_IN_JSON and values.dtype.kind != "c"
        session.json(
            "mvc.show.tensor/1",
            {
                "commit": rev,
                "path": entry.path,
                **fields(tensor),
                "summary": _summary(values),
                "values": values.tolist() if whole else None,
            },
        )
    elif output is None:
        _print(session, tensor, values)


def _named(session: Session, manifest: Manifest, name: str) -> tuple[FileEntry, LogicalTensor]:
    path, _, key = name.rpartition(":")
    tensors = [(entry, tensor) for entry in manifest.entries for tensor in entry.tensors]
    having = [pair for pair in tensors if pair[1].key == name]
    if not having and path:
        (tracked,) = session.names([path])
        having = [pair for pair in tensors if (pair[0].path, pair[1].key) == (tracked, key)]
    if len(having) == 1:
        return having[0]
    if having:
        paths = ", ".join(printable(entry.path) for entry, _ in having[:10])
        raise UnknownPath(
            f"several files have a tensor {printable(name)}: {paths}", hint="name it PATH:TENSOR"
        )
    keys = sorted({tensor.key for _, tensor in tensors})
    close = get_close_matches(name, keys, n=3)
    close = close or [key for key in keys if name.lower() in key.lower()][:3]
    hint = f"did you mean {' or '.join(map(printable, close))}?" if close else ""
    raise UnknownPath(
        f"the version has no tensor {printable(name)}", hint=hint or "'mvc ls' lists its tensors"
    )


def _print(session: Session, tensor: LogicalTensor, values: Array) -> None:
    spec = tensor.spec
    id_ = session.paint(session.id_text(tensor.id), "id")
    session.line(
        f"{printable(tensor.key)}  {spec.dtype} {shape(spec.shape)}, {size(spec.nbytes)}, {id_}"
    )
    if figures := _summary(values):
        session.line("  ".join(f"{name} {number(value)}" for name, value in figures.items()))
    threshold = (
        max(values.size, 1) if session.verbose else 1000
    )  # numpy prints only the corners of larger arrays
    session.line(
        np.array2string(
            values, max_line_width=session.width or 100, threshold=threshold, separator=" "
        )
    )


def _summary(values: Array) -> dict[str, float]:
    """Statistics of the finite elements, and the counts of zeros and of non-finite elements."""
    if not values.size or values.dtype.kind not in "fiub":
        return {}
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    summary: dict[str, float] = {}
    if finite.size:
        summary = {
            "min": float(finite.min()),
            "max": float(finite.max()),
            "mean": float(finite.mean(dtype=np.float64)),
            "std": float(finite.std(dtype=np.float64)),
        }
    summary["zeros"] = int(values.size - np.count_nonzero(values))
    if finite.size != values.size:
        summary["not finite"] = int(values.size - finite.size)
    return summary
