"""Reduces the weights of files and Python states, as a ``Reducer`` says.

The input is a parsed file or state; the result has the same tensors with other contents. It is
then stored so that the stored version equals the deployed one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from mvc.adapters.parsed import ParsedFile, StepFrom
from mvc.adapters.python.arrays import array_bytes, has_dtype, make_array
from mvc.adapters.replaced import ReplacedFile
from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.lossy.reducer import Array, Reducer
from mvc.model.manifest import FileEntry
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.context import Context
from mvc.store.recovery.recover import Request


class FileArrays(Struct, frozen=True):
    """Tensors of a file as arrays, by name.

    A tensor whose dtype numpy lacks is an array of unsigned integers, and ``dtypes`` has its
    dtype. ``contents`` has the position of each tensor's content in the file.
    """

    arrays: dict[str, Array]
    dtypes: dict[str, str]
    contents: dict[str, int]

    @classmethod
    def of(cls, parsed: ParsedFile) -> FileArrays:
        """The tensors with elements that are whole contents, not views into a raw storage.

        The arrays share the file's memory if possible; do not modify them.
        """
        made = cls({}, {}, {})
        seen: set[int] = set()
        for tensor in parsed.tensors:
            spec = parsed.contents[tensor.content].spec
            if tensor.view is not None or tensor.content in seen or not spec.nbytes:
                continue
            seen.add(tensor.content)
            data = parsed.borrow(tensor.content)
            if data is None:
                data = np.empty(spec.nbytes, np.uint8).data
                parsed.read(tensor.content, 0, data)
            made.arrays[tensor.key] = _array(spec, data)
            made.contents[tensor.key] = tensor.content
            if not has_dtype(spec.dtype):
                made.dtypes[tensor.key] = spec.dtype
        return made


def _array(spec: TensorSpec, data: memoryview) -> Array:
    if has_dtype(spec.dtype):
        return make_array(spec, data)
    words = np.dtype(f"<u{DTYPES[spec.dtype].itemsize}")
    return np.frombuffer(data, words).reshape(spec.shape)


def approximating(context: Context) -> str | None:
    """The setting ``commit.pipeline``, if it is a pipeline that approximates checkpoints."""
    text = str(context.config.get("commit.pipeline"))
    return text if Pipeline.parse(text).forward_only else None


def arrays_before(
    context: Context,
    entry: FileEntry | None,
    specs: Mapping[str, TensorSpec],
    held: Mapping[BlobId, memoryview] | None = None,
) -> dict[str, Array]:
    """The tensors of a stored version that have these names and specs; do not modify them.

    ``held`` are contents in memory; all others are recovered and verified.
    """
    found: dict[str, Array] = {}
    missing: list[Request] = []
    for tensor in () if entry is None else entry.tensors:
        if tensor.view is not None or specs.get(tensor.key) != tensor.spec:
            continue
        data = (held or {}).get(tensor.id)
        if data is None:
            data = np.empty(tensor.spec.nbytes, np.uint8).data
            missing.append(Request(tensor.id, tensor.spec, data))
        found[tensor.key] = _array(tensor.spec, data)
    context.store.recovery.fill(missing)
    return found


def reduced(
    context: Context,
    reducer: Reducer,
    parsed: ParsedFile,
    entry: FileEntry | None,
    *,
    held: Mapping[BlobId, memoryview] | None = None,
    loss: float | None = None,
) -> ReplacedFile:
    """A file as ``reducer`` makes it after the stored version ``entry``.

    What is approximated has steps from that version; all is stored exactly if it cannot be
    recovered. ``held`` has contents of ``entry`` in memory.
    """
    given = FileArrays.of(parsed)
    specs = {name: parsed.contents[i].spec for name, i in given.contents.items()}
    specs = {name: spec for name, spec in specs.items() if reducer.may_change(name, spec.dtype)}
    try:
        before = arrays_before(context, entry, specs, held)
    except DamagedData:
        if not reducer.pipeline.forward_only:
            raise
        before = {}
    training = {name: given.arrays[name] for name in specs}
    made = reducer.reduce(before or None, training, loss=loss, dtypes=given.dtypes)
    ids = {tensor.key: tensor.id for tensor in entry.tensors} if entry else {}
    coding = reducer.pipeline.text
    return ReplacedFile(
        parsed,
        {
            given.contents[name]: array_bytes(array)
            for name, array in made.arrays.items()
            if array is not training[name]
        },
        {
            given.contents[name]: StepFrom(ids[name], step, coding)
            for name, step in made.steps.items()
        },
    )
