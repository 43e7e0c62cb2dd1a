"""A file whose tensors are computed from stored versions, piece by piece.

``commit({entry.path: StateFile(DerivedFile(...))}, options=CommitOptions(parents=...))`` stores the
file. ``export(..., derived=Manifest([file.entry]), parts=file.parts)`` writes the file to disk.
Only the pieces that are being computed are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from mvc.adapters.parsed import ParsedContent, ParsedFile, ParsedTensor
from mvc.ids import BlobId
from mvc.model.hashing import pieces
from mvc.model.manifest import FileEntry
from mvc.repo.content.contents import skeleton_of
from mvc.store.store import Store

Compute: TypeAlias = Callable[[int, int, memoryview], None]
"""``compute(content, start, out)`` fills ``out`` with the piece of a content at ``start``.

``compute`` is called for whole pieces (``mvc.model.hashing.pieces``). ``compute`` must be
deterministic, because it may be called several times for a piece.
"""


class DerivedFile(ParsedFile):
    """The file ``entry``, in which ``compute`` replaces the contents at the positions ``computed``.

    Names, layout, skeleton (the bytes outside of tensors) and checksums are those of ``entry``.
    Every other content is the stored content with the id in ``entry``. A commit does not read such
    contents. Call ``check_available`` first, because these contents may be forgotten or dropped.
    ``parts`` maps the ids of computed contents (in the attribute ``entry``) to functions that read
    these contents. ``skeleton``: replaces the skeleton of ``entry``.
    """

    def __init__(
        self,
        store: Store,
        entry: FileEntry,
        computed: Collection[int],
        compute: Compute,
        skeleton: bytes | None = None,
    ) -> None:
        contents = (
            replace(c, id=BlobId(os.urandom(32))) if i in computed else c
            for i, c in enumerate(entry.contents)
        )
        self.entry = replace(entry, contents=tuple(contents))
        self.parts = {self.entry.contents[i].id: partial(self.read, i) for i in computed}
        self.format = entry.format
        self.size = entry.size
        self.checks = entry.checks
        self.contents = tuple(ParsedContent(c.offset, c.spec) for c in entry.contents)
        self.tensors = tuple(ParsedTensor(t.key, t.spec, t.content, t.view) for t in entry.tensors)
        self.stored = {i: c.id for i, c in enumerate(entry.contents) if i not in computed}
        self._store = store
        self._compute = compute
        self._skeleton = skeleton

    def read(self, content: int, start: int, out: memoryview) -> None:
        """Fills ``out`` with bytes of a content from ``start`` on. Computes whole pieces."""
        make = partial(self._compute, content)
        if content in self.stored:
            make = partial(self._store.recovery.piece, self.stored[content])
        for begin, length in pieces(self.contents[content].spec):
            first, end = max(start, begin), min(start + len(out), begin + length)
            part = out[first - start : max(first, end) - start]
            if len(part) == length:
                make(begin, part)
            elif len(part):
                whole = np.empty(length, np.uint8).data
                make(begin, whole)
                part[:] = whole[first - begin : end - begin]

    def skeleton(self) -> bytes:
        """The skeleton that was passed, or the skeleton of ``entry``."""
        return self._skeleton or skeleton_of(self._store.recovery, self.entry)
