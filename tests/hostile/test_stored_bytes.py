"""A stored file that a parser reads back and forth: each step decodes a piece."""

from __future__ import annotations

import pytest

from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.manifest import Content, FileEntry
from mvc.model.tensor import TensorSpec
from mvc.repo.content.contents import StoredBytes


class Recovery:
    def __init__(self) -> None:
        self.pieces = 0

    def piece(self, id_: bytes, start: int, out: memoryview) -> None:
        self.pieces += 1
        out[:1] = bytes([start // PIECE])


def test_a_walk_back_and_forth_ends() -> None:
    size = 3 * PIECE
    content = Content(0, TensorSpec("raw", (size,)), BlobId(bytes(32)))
    recovery = Recovery()
    source = StoredBytes(recovery, FileEntry("m.npz", "opaque", size, (content,), None))
    for _ in range(3):  # as parsers do that read the members of an archive
        assert [source.read(at, 1)[0] for at in range(0, size, PIECE)] == [0, 1, 2]
    with pytest.raises(DamagedData, match="too scattered"):
        for _ in range(1000):
            source.read(0, 1)
            source.read(2 * PIECE, 1)
    assert recovery.pieces < 50
