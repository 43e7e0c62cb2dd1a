"""Reduces the weights of files and Python states against a stored version.

The result is then stored so that the stored version equals the deployed one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mvc.adapters.state_file import Specs, StateFile, array_of
from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.lossy.reducer import Array, Reducer
from mvc.model.manifest import FileEntry
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.config import Config
from mvc.store.recovery.recover import Request
from mvc.store.store import Store


def approximating(config: Config) -> str | None:
    """The setting ``commit.pipeline``, if it is a pipeline that approximates checkpoints."""
    text = str(config.get("commit.pipeline"))
    return text if Pipeline.parse(text).forward_only else None


def reduced(
    store: Store,
    reducer: Reducer,
    file: StateFile,
    entry: FileEntry | None,
    *,
    held: Mapping[BlobId, memoryview],
    loss: float | None = None,
) -> StateFile:
    """A file as ``reducer`` makes it after the stored version ``entry``.

    What is approximated has steps from that version; all is stored exactly if it cannot be
    recovered. ``held`` has contents of ``entry`` in memory; all others are recovered and verified.
    """

    def before(specs: Specs) -> dict[str, Array]:
        found: dict[str, Array] = {}
        missing: list[Request] = []
        for tensor in () if entry is None else entry.tensors:
            if tensor.view is not None or specs.get(tensor.key) != tensor.spec:
                continue
            data = held.get(tensor.id)
            if data is None:
                data = np.empty(tensor.spec.nbytes, np.uint8).data
                missing.append(Request(tensor.id, tensor.spec, data))
            found[tensor.key] = array_of(tensor.spec, data)
        try:
            store.recovery.fill(missing)
        except DamagedData:
            if not reducer.pipeline.forward_only:
                raise
            return {}
        return found

    ids = {tensor.key: tensor.id for tensor in entry.tensors} if entry else {}
    return file.reduced(reducer, before, ids, loss=loss)
