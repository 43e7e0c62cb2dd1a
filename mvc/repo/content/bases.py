"""Chooses the base of a new blob's delta.

Searched in this order: the tensor of the same name in the parent's file of the same path; one
whose name differs only in a wrapper's prefix; one of the same dtype, shape and position; the
same in the parent's other files. Masters of copies in lower precision:
``mvc.repo.commit.precision_copies``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mvc.codecs import cast
from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.manifest import Content, FileEntry, Manifest
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.store.graph.search import Graph, Link, Path
from mvc.store.packs.arena import Arena

__all__ = ["BaseFinder", "Recovers", "StoredBase", "bare_name", "content_names"]

_WRAPPERS = ("module.", "_orig_mod.", "model.", "state_dict.", "_fsdp_wrapped_module.")


def bare_name(key: str) -> str:
    """A tensor's name without the prefixes that wrappers add (DataParallel, compile, FSDP)."""
    while True:
        for prefix in _WRAPPERS:
            if key.startswith(prefix) and len(key) > len(prefix):
                key = key[len(prefix) :]
                break
        else:
            return key


class Recovers(Protocol):
    """Recovers a blob's pieces, as ``mvc.store.recovery.recover.Recovery`` does."""

    def piece(self, id_: bytes, start: int, out: memoryview) -> Path: ...


class _Placed(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def content(self) -> int: ...


def content_names(contents: Sequence[object], tensors: Sequence[_Placed]) -> list[str]:
    """A name for each content: its first tensor's key, or its position among the raw contents."""
    names: dict[int, str] = {}
    for tensor in tensors:
        names.setdefault(tensor.content, tensor.key)
    raw = 0
    result = []
    for i, _ in enumerate(contents):
        if i not in names:
            names[i] = f"\0raw{raw}"
            raw += 1
        result.append(names[i])
    return result


@dataclass(frozen=True)
class StoredBase:
    """A stored blob as a base; its pieces are recovered when needed.

    Without ``graph`` it is taken as it is, whatever leads to it.
    """

    id: BlobId
    spec: TensorSpec
    recovery: Recovers
    arena: Arena
    graph: Graph | None = None

    def chain(self, start: int) -> tuple[Link, ...]:
        """Raises DamagedData if it is not stored in pieces of today's size (mvc 0.1)."""
        if self.graph is None:
            return ()
        found = self.graph.chain(self.id, start)
        if found[-1].nbytes != min(PIECE, self.spec.nbytes - start):
            raise DamagedData(f"object {self.id.short} is stored whole")
        return found

    def piece(self, start: int) -> memoryview:
        """The base's whole piece at ``start``, whatever the new piece's length.

        The decoder has the whole piece, so the encoder must use the whole piece, too.
        """
        out = self.arena.take(min(PIECE, self.spec.nbytes - start))
        self.recovery.piece(self.id, start, out)
        return out


@dataclass
class _Candidates:
    """The contents of one file of the parent, indexed by name, bare name and shape."""

    by_name: dict[str, Content] = field(default_factory=dict)
    by_bare: dict[str, Content] = field(default_factory=dict)
    by_shape: dict[TensorSpec, list[Content]] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: FileEntry) -> _Candidates:
        made = cls()
        for name, content in zip(
            content_names(entry.contents, entry.tensors), entry.contents, strict=True
        ):
            made.by_name.setdefault(name, content)
            made.by_bare.setdefault(bare_name(name), content)
            made.by_shape.setdefault(content.spec, []).append(content)
        return made

    def find(self, name: str, spec: TensorSpec, position: int) -> Iterator[Content]:
        """Candidates, best first. ``position`` counts the new file's contents of this spec."""
        for found in (self.by_name.get(name), self.by_bare.get(bare_name(name))):
            if found is not None:
                yield found
        same = self.by_shape.get(spec, [])
        if position < len(same):
            yield same[position]


class BaseFinder:
    """Finds bases of one commit's blobs among the parent's blobs."""

    def __init__(
        self, parent: Manifest, recovery: Recovers, arena: Arena, graph: Graph | None = None
    ) -> None:
        self._recovery = recovery
        self._arena = arena
        self._graph = graph
        self._entries = parent.by_path
        self._files: dict[str, _Candidates] = {}  # filled on first use
        self._seen: dict[tuple[str, TensorSpec], int] = {}

    def find(self, path: str, name: str, spec: TensorSpec) -> StoredBase | None:
        """A blob of the parent that is likely to be similar to the new one, or None."""
        position = self._seen.get((path, spec), 0)
        self._seen[(path, spec)] = position + 1
        for candidates in self._nearest_first(path):
            for content in candidates.find(name, spec, position):
                if _related(content.spec, spec):
                    return StoredBase(
                        content.id, content.spec, self._recovery, self._arena, self._graph
                    )
        return None

    def _nearest_first(self, path: str) -> Iterator[_Candidates]:
        """The parent's file of the same path, then its other files."""
        if path in self._entries:
            yield self._candidates(path)
        yield from (self._candidates(other) for other in self._entries if other != path)

    def _candidates(self, path: str) -> _Candidates:
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = _Candidates.of(self._entries[path])
        return found


def _related(old: TensorSpec, new: TensorSpec) -> bool:
    """Whether a delta between the two is possible."""
    if old.dtype == new.dtype:
        inner = old.shape[1:] == new.shape[1:] or old.elements == new.elements
        return new.dtype == "raw" or inner
    same = old.elements == new.elements and DTYPES[old.dtype].floating
    return same and cast.supported(old.dtype, new.dtype)
