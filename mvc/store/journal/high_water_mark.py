"""A witness of the journal's length: a cut journal is told from a short one.

A small file beside the journal says how far it reached when this repository was last
used. It is never flushed and may be missing, old or torn; but it is written only after
the journal is durable, so a journal that ends before it has lost acknowledged entries.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from blake3 import blake3

from mvc.errors import MvcError
from mvc.io.files import FileSystem
from mvc.store.journal.frames import Position

__all__ = ["HIGH_WATER_MARK", "read_high_water_mark", "write_high_water_mark"]

HIGH_WATER_MARK = "witness"
_BODY = struct.Struct("<QQ16s16s")
_CHECK = 16


def write_high_water_mark(fs: FileSystem, folder: Path, identity: bytes, reached: Position) -> None:
    """Notes that the journal is durable up to ``reached``; failing to does no harm."""
    body = _BODY.pack(reached.offset, reached.sequence, reached.chain, identity)
    with (
        contextlib.suppress(MvcError),
        fs.open_write(folder / HIGH_WATER_MARK, create=True) as file,
    ):
        file.write_at(0, body + blake3(body).digest(_CHECK))


def read_high_water_mark(fs: FileSystem, folder: Path, identity: bytes) -> Position | None:
    """How far the journal of this repository is known to have reached, if anybody knows."""
    path = folder / HIGH_WATER_MARK
    if fs.stat(path) is None:
        return None
    with fs.open_read(path) as file:
        data = file.read(0, _BODY.size + _CHECK)
    body = data[: _BODY.size]
    if len(data) < _BODY.size + _CHECK or blake3(body).digest(_CHECK) != data[_BODY.size :]:
        return None
    offset, sequence, chain, whose = _BODY.unpack(body)
    return Position(offset, sequence, chain) if whose == identity else None
