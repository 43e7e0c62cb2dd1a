"""A file whose tensors are computed from stored versions, such as the average of versions.

``commit({entry.path: StateFile(DerivedFile(...))}, options=CommitOptions(parents=...))`` stores the
file. ``export(..., derived=Manifest([file.entry]), parts=file.parts)`` writes the file to disk.
The file is computed in pieces, so it is never in memory as a whole.
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
"""``compute(content, start, out)`` fills ``out`` with the piece at ``start`` of a tensor's bytes.

``content``: the position of the tensor's bytes in ``entry.contents``. ``mvc.model.hashing.pieces``
defines the pieces. ``compute`` may be called several times for a piece, with equal results.
"""


class DerivedFile(ParsedFile):
    """The stored file ``entry``, with new contents (tensor bytes) at the positions ``computed``.

    ``compute`` computes the new contents. All other contents must be stored: call
    ``check_available`` first. ``skeleton``: new bytes outside of tensors. The attribute ``entry``
    describes the new file. The attribute ``parts`` maps the id of each new content to a function
    that reads the content.
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
        """Fills ``out`` with bytes of a content from ``start`` on."""
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
        """The new skeleton, or else the skeleton of the stored file."""
        return self._skeleton or skeleton_of(self._store.recovery, self.entry)
