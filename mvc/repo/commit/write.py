"""Stores the files of a commit: opens the files, chooses delta bases, and encodes the tensors.

A delta base is a stored tensor. mvc stores only the difference of the new tensor from the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mvc.adapters.hashing import entry_from
from mvc.adapters.optimizers.states import FileState
from mvc.adapters.state_file import Specs, StateFile, array_of
from mvc.errors import DamagedData, StateForgotten, UnknownPath
from mvc.lossy.reducer import Array
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.commit.inputs import Inputs
from mvc.repo.commit.request import Change
from mvc.repo.commit.units import units_of
from mvc.repo.content.predecessors import BaseFinder
from mvc.repo.handle import Recent
from mvc.repo.lookup import availability
from mvc.store.recovery.recover import Request
from mvc.store.store import Store
from mvc.store.writing.base_cache import BaseCache
from mvc.store.writing.content_writer import ContentWriter
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.storing import Storing

_MOST_OPEN = 16  # the largest number of files that are open at the same time


class Written(Struct, frozen=True):
    """``entries``: the stored files of ``inputs``, by path. ``attached``: the stored attachments.

    ``raw_bytes``: number of bytes that were read. ``state``: the state of ``inputs``, with the
    tensors that a lossy pipeline changed. ``objects``: the writer that stored the files.
    """

    inputs: Inputs
    objects: ObjectWriter
    entries: Mapping[str, FileEntry]
    attached: Mapping[str, FileEntry]
    raw_bytes: int
    state: Any


def write(
    store: Store, recent: Recent, inputs: Inputs, parent: Manifest, objects: ObjectWriter
) -> Written:
    """Stores the changed files and the attachments.

    At most 16 files are opened together. If the commit has more files, each file is opened alone.
    If files are open together, a tensor in one file can be a delta from a tensor in another file,
    for example a float16 copy. Weights can then be stored together with their optimizer's states.
    """
    writer = ContentWriter(objects, inputs.request.options.progress)
    changes = [change for change in inputs.changes if change.open is not None]
    together = len(inputs.changes) <= _MOST_OPEN
    entries, finder, state = dict[str, FileEntry](), BaseFinder(parent), inputs.state
    for group in [changes] if together else [[change] for change in changes]:
        stored, new = _store_together(store, recent, group, inputs, finder=finder, writer=writer)
        entries |= stored
        state = state if new is None else {**(state or {}), **new}
    for change in inputs.changes:
        if change.stored is not None:
            if not availability.is_stored(store, change.stored):
                raise StateForgotten(f"the content of {change.path} is not stored here")
            entries[change.path] = replace(change.stored, path=change.path)
    _refuse_unknown(inputs, entries)
    raw_bytes, attached = writer.raw_bytes, dict[str, FileEntry]()
    for path, file in inputs.attached.items():
        attached[path] = store_file(writer, finder, finder.storing(path, file.parsed))
        writer.forget(file.parsed)
    return Written(
        inputs,
        objects,
        entries,
        attached,
        raw_bytes=raw_bytes,
        state=state,
    )


def _refuse_unknown(inputs: Inputs, entries: Mapping[str, FileEntry]) -> None:
    """Raises UnknownPath if ``exact`` names a tensor that is in no file of the lossy pipeline.

    The option ``exact`` names the tensors that the lossy pipeline must not change.
    """
    reduced = [entries[change.path] for change in inputs.changes if change.reducer is not None]
    unknown = set(inputs.request.options.exact) - {t.key for e in reduced for t in e.tensors}
    if reduced and unknown:
        raise UnknownPath(
            f"there is no tensor {min(unknown)} to store exactly", hint="'mvc ls' lists the names"
        )


def _store_together(
    store: Store,
    recent: Recent,
    changes: Sequence[Change],
    inputs: Inputs,
    finder: BaseFinder,
    *,
    writer: ContentWriter,
) -> tuple[dict[str, FileEntry], Any]:
    """Stores files. Returns entries by path, and the state that a lossy pipeline computed."""
    with ExitStack() as open_files:
        files = choose_bases(store, recent, changes, inputs, finder=finder, until=open_files)
        states: Mapping[str, FileState] = {}
        if len(inputs.changes) <= _MOST_OPEN:
            parsed = {path: file.file for path, file in files.items()}
            optimizer = units_of(store, recent, parsed, finder.parent)
            states = optimizer.states
            if optimizer.units:
                writer.put_units(optimizer.units, files, finder.parent)
        entries, state = dict[str, FileEntry](), None
        for change in changes:
            file = files[change.path]
            entries[change.path] = store_file(writer, finder, file)
            if change.reducer is not None and change.cached:
                state = {**(state or {}), **StateFile(file.file).nested()}
        for path, file_state in states.items():
            recent.trainings.states[path, entries[path].content_id] = file_state
        for file in files.values():
            writer.forget(file.file)
        return entries, state


def choose_bases(
    store: Store,
    recent: Recent,
    changes: Sequence[Change],
    inputs: Inputs,
    finder: BaseFinder,
    *,
    until: ExitStack,
) -> dict[str, Storing]:
    """Opens files, applies a requested lossy pipeline, and chooses a delta base for each tensor.

    Returns the files by path. The files are closed when ``until`` is closed.
    """
    files: dict[str, Storing] = {}
    for change in changes:
        assert change.open is not None
        file, last = until.enter_context(change.open()), recent.caches.in_use.get(change.path)
        if change.reducer is not None:
            old = finder.parent.by_path.get(change.path)
            loss = inputs.request.metrics.get("loss")
            file = _reduced(store, change, file, old, last=last, loss=loss)
        files[change.path] = finder.storing(change.path, file.parsed, last)
    return files


def _reduced(
    store: Store,
    change: Change,
    file: StateFile,
    entry: FileEntry | None,
    *,
    last: BaseCache | None,
    loss: float | None,
) -> StateFile:
    """Applies the lossy pipeline of ``change`` to ``file``.

    The pipeline also needs the tensors of ``entry``, the file in the previous version. These
    tensors are in the cache ``last``, or are decoded. If they cannot be decoded, the pipeline
    ``lc`` leaves the file unchanged, and other pipelines raise DamagedData.
    """
    reducer = change.reducer
    assert reducer is not None
    forward_only, tensors = reducer.pipeline.forward_only, () if entry is None else entry.tensors

    def before(specs: Specs) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        missing: list[Request] = []
        for tensor in tensors:
            if tensor.view is not None or specs.get(tensor.key) != tensor.spec:
                continue
            data = None if last is None else last.content(tensor.key, tensor.id, tensor.spec)
            if data is None:
                data = np.empty(tensor.spec.nbytes, np.uint8).data
                missing.append(Request(tensor.id, tensor.spec, data))
            arrays[tensor.key] = array_of(tensor.spec, data)
        try:
            store.recovery.fill(missing)
        except DamagedData:
            if not forward_only:
                raise
            return {}
        return arrays

    ids = {tensor.key: tensor.id for tensor in tensors}
    return file.reduced(reducer, before, ids, loss=loss)


def store_file(writer: ContentWriter, finder: BaseFinder, file: Storing) -> FileEntry:
    """Stores the contents (tensor data) and the skeleton (all other bytes) of a file."""
    ids, skeleton = writer.put(file), file.file.skeleton()
    entry = entry_from(file.file, file.path, ids, skeleton)
    if entry.skeleton is not None:
        writer.put_skeleton(entry.skeleton, skeleton, finder.parent.by_path.get(file.path))
    return entry
