"""The high-water mark of the journal: shows whether the end of the journal is missing.

The journal is the log of the repository's operations. The file ``witness`` next to the journal
records up to which byte the journal is durable, and is written only after this part is durable. So
if the journal ends before this byte, acknowledged entries are lost. The file ``witness`` is never
flushed, so it may be missing, old or incomplete.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from blake3 import blake3

from mvc.errors import MvcError
from mvc.io.files import FileSystem
from mvc.store.journal.frames import Position

HIGH_WATER_MARK = "witness"
_BODY = struct.Struct("<QQ16s16s")
_CHECK = 16


def write_high_water_mark(fs: FileSystem, folder: Path, identity: bytes, reached: Position) -> None:
    """Records that the journal is durable up to ``reached``. Ignores errors."""
    body = _BODY.pack(reached.offset, reached.sequence, reached.chain, identity)
    with (
        contextlib.suppress(MvcError),
        fs.open_write(folder / HIGH_WATER_MARK, create=True) as file,
    ):
        file.write_at(0, body + blake3(body).digest(_CHECK))


def read_high_water_mark(fs: FileSystem, folder: Path, identity: bytes) -> Position | None:
    """The recorded position up to which the journal was durable.

    None if there is no valid file of this repository.
    """
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
