"""One tensor of a version, printed or saved for numpy.

Numbers that numpy has no type for (bfloat16, float8) are shown and saved as float32,
which holds each of them exactly.
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
    """Prints the tensor ``name`` (``KEY`` or ``PATH:KEY``), or saves it in ``output``."""
    entry, found = _named(session, session.repo.manifest(rev), name)
    if output is not None:
        session.check_output(output, force=None)
    values = as_numpy(found.spec, session.repo.open_file(rev, entry.path).tensor_bytes(found))
    if output is not None:
        file = io.BytesIO()
        np.save(file, values)
        session.fs.replace_file(
            Path(output), lambda to: to.write([file.getbuffer()]), mode=None, durable=False
        )
        as_ = f" as {values.dtype}" if values.dtype.name != found.spec.dtype else ""
        session.note(f"saved {found.key}{as_} in {output}")
    if session.as_json:
        whole = values.size <= _MOST_IN_JSON and values.dtype.kind != "c"
        session.json(
            "mvc.show.tensor/1",
            {
                "commit": rev,
                "path": entry.path,
                **fields(found),
                "summary": _summary(values),
                "values": values.tolist() if whole else None,
            },
        )
    elif output is None:
        _print(session, found, values)


def _named(session: Session, manifest: Manifest, name: str) -> tuple[FileEntry, LogicalTensor]:
    path, _, key = name.rpartition(":")
    tensors = [(entry, tensor) for entry in manifest.entries for tensor in entry.tensors]
    having = [each for each in tensors if each[1].key == name]
    if not having and path:
        (tracked,) = session.names([path])
        having = [each for each in tensors if (each[0].path, each[1].key) == (tracked, key)]
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


def _print(session: Session, found: LogicalTensor, values: Array) -> None:
    spec = found.spec
    id_ = session.paint(session.id_text(found.id), "id")
    what = f"{spec.dtype} {shape(spec.shape)}, {size(spec.nbytes)}"
    session.line(f"{printable(found.key)}  {what}, {id_}")
    if figures := _summary(values):
        session.line("  ".join(f"{name} {number(value)}" for name, value in figures.items()))
    threshold = (
        max(values.size, 1) if session.verbose else 1000
    )  # of more, numpy prints the corners
    width = session.width or 100
    session.line(np.array2string(values, max_line_width=width, threshold=threshold, separator=" "))


def _summary(values: Array) -> dict[str, float]:
    """Least, greatest, mean, standard deviation of the finite elements; zeros; not finite."""
    if not values.size or values.dtype.kind not in "fiub":
        return {}
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    found: dict[str, float] = {}
    if finite.size:
        found = {
            "min": float(finite.min()),
            "max": float(finite.max()),
            "mean": float(finite.mean(dtype=np.float64)),
            "std": float(finite.std(dtype=np.float64)),
        }
    found["zeros"] = int(values.size - np.count_nonzero(values))
    if finite.size != values.size:
        found["not finite"] = int(values.size - finite.size)
    return found
