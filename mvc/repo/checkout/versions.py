"""Iterates over the states of versions, oldest first. Decodes each state from the previous one.

While the caller uses a state, a thread decodes the next state. At most two states are in memory, in
addition to states that the caller retains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any, TypeAlias

import numpy as np

from mvc.adapters.files.safetensors import safetensors_header
from mvc.adapters.python.state import NUMPY, to_state, values
from mvc.errors import DamagedData, MvcError, StateForgotten, UnknownPath, WrongUsage
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry
from mvc.repo.content.contents import skeleton_of
from mvc.repo.history.log import in_range
from mvc.repo.lookup import availability, commits
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.revisions import Rev
from mvc.repo.statements.live import Deployed, check_target, on_target
from mvc.store.recovery.recover import Request
from mvc.store.store import Store

Version: TypeAlias = Commit | Deployed

ON_ERROR = ("raise", "skip", "yield")


def iter_versions(
    store: Store,
    *,
    since: int | None = None,
    until: int | None = None,
    target: str | None = None,
    rev: Rev = "HEAD",
    path: str | None = None,
    keys: Collection[str] | None = None,
    on_error: str = "raise",
    absent: Callable[[StateForgotten], None] | None = None,
) -> Iterator[tuple[Version, Any]]:
    """``Repository.iter_versions``, but ``since`` and ``until`` are in ns since 1970.

    ``absent``: a function that fetches an absent state, or raises the error. ``iter_versions``
    raises UnknownRevision, UnknownTarget and WrongUsage. The iteration raises all other errors.
    """
    if on_error not in ON_ERROR:
        raise WrongUsage(f"on_error is {on_error!r}", hint="use one of " + ", ".join(ON_ERROR))
    if since is not None and until is not None and since > until:
        raise WrongUsage("since is later than until")
    if keys is not None:
        keys = [keys] if isinstance(keys, str) else list(keys)
    chosen: list[Version] = []
    if target is None:
        chosen += [*in_range(store, rev, since, until)][::-1]
    else:
        every = on_target(store.fresh(), check_target(store.snapshot, target), until=until)
        late = takewhile(lambda deployed: since is None or deployed.time_ns >= since, every)
        chosen += [deployed for deployed in late if not deployed.retracted][::-1]
    decoder = _Decoder(store, path, keys)

    def load(version: Version) -> Any:
        try:
            return decoder.load(version)
        except StateForgotten as error:
            if absent is None or error.absent is None:
                raise
            absent(error)
            return decoder.load(version)

    return _ahead(chosen, load, on_error)


def _ahead(
    versions: list[Version], load: Callable[[Version], Any], on_error: str
) -> Iterator[tuple[Version, Any]]:
    """Loads each version while the caller uses the previous one."""
    if not versions:
        return
    with ThreadPoolExecutor(1, thread_name_prefix="mvc-versions") as worker:
        coming = worker.submit(load, versions[0])
        for i, version in enumerate(versions):
            error = coming.exception()
            state = None if error is not None else coming.result()
            if i + 1 < len(versions):
                coming = worker.submit(load, versions[i + 1])
            if error is None:
                yield version, state
            elif not isinstance(error, MvcError) or on_error == "raise":
                raise error
            elif on_error == "yield":
                yield version, error
            del state


class _Decoder:
    """Decodes a version from the contents (tensor data) of the previous version.

    The caller has the arrays of the previous version, too, and may have changed them. Then the
    decoded contents have wrong hashes, and mvc decodes the version without the previous version.
    """

    def __init__(self, store: Store, path: str | None, keys: Collection[str] | None) -> None:
        self._store = store
        self._path = path
        self._keys = keys
        self._manifests = ManifestStream(store)
        self._previous: dict[bytes, memoryview] = {}
        self._skeleton: tuple[bytes | None, bytes] = (None, b"")

    def load(self, version: Version) -> Any:
        """A version's state. Raises DamagedData, StateForgotten and UnknownPath."""
        id_ = version.id if isinstance(version, Commit) else version.commit
        try:
            commit = commits.get(self._store.snapshot, id_)
            availability.check_stored(self._store, id_)
            entry = self._manifests.load(commit.manifest).file(self._path)
            availability.check_available(self._store, id_, [entry])
            return self._state(entry)
        except StateForgotten:
            raise
        except (DamagedData, UnknownPath) as error:
            raise type(error)(f"version {id_.short}: {error.message}", hint=error.hint) from error

    def _state(self, entry: FileEntry) -> Any:
        wanted: Collection[int] = range(len(entry.contents))
        if self._keys is not None:
            wanted = sorted({t.content for t in entry.tensors if t.key in self._keys})
        out = {i: np.empty(entry.contents[i].spec.nbytes, np.uint8).data for i in wanted}
        contents = {i: entry.contents[i] for i in out}
        requests = [Request(c.id, c.spec, out[i]) for i, c in contents.items()]
        recovery = self._store.recovery
        if not recovery.fill_from(self._previous, requests):  # if the caller has changed arrays
            recovery.fill(requests)
        self._previous = {c.id: out[i] for i, c in contents.items()}
        # The skeleton is all bytes of the file outside of tensors. It rarely changes, so keep it.
        if entry.skeleton != self._skeleton[0]:
            self._skeleton = entry.skeleton, skeleton_of(self._store.recovery, entry)
        skeleton = self._skeleton[1]
        if self._keys is None:
            return to_state(entry, skeleton, out.__getitem__)
        return values(entry, out.__getitem__, self._keys, _library(entry, skeleton))


def _library(entry: FileEntry, skeleton: bytes) -> str:
    if entry.format == "state":
        facts = safetensors_header(skeleton, entry.path).get("__metadata__", {})
        return "torch" if facts.get("format") == "pt" else "numpy"
    return "numpy" if entry.format in NUMPY else "torch"
