"""Publishing: one journal entry under one short lock makes an operation happen.

The lock covers taking in what others appended, choosing parents and writing the
entry; the flush comes after it, so that waiting processes share it. An entry that
stands behind an unflushed one is durable only together with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from mvc.errors import HistoryMissing, MvcError
from mvc.io.files import WriteFile
from mvc.store.entries import Entry
from mvc.store.journal import Recorded, encode_entry
from mvc.store.view import JOURNAL, View

__all__ = ["LOCK_SECONDS", "publish"]

LOCK_SECONDS = 60.0


def publish(
    view: View,
    make: Callable[[], Entry],
    *,
    sync: bool = True,
    release: Callable[[], None] | None = None,
) -> Recorded:
    """Appends the entry that ``make`` returns; durable when this returns.

    ``make`` runs under the journal's lock with the view refreshed; what it raises
    leaves the journal as it was. Packs that the entry names must be durable before.
    ``release`` is called once the entry is written, before the flush (a pack's lock).
    """
    path = view.folder / JOURNAL
    with view.fs.open_write(path) as file:
        with view.fs.lock(path, timeout=LOCK_SECONDS):
            view.refresh()
            _heal(view, file)
            entry = make()
            data, _ = encode_entry(entry, view.position)
            offset = view.position.offset
            _append(file, offset, data)
        if release is not None:
            release()
        if sync:
            file.sync()
    view.refresh()
    return view.entry(offset)


def _heal(view: View, file: WriteFile) -> None:
    """Removes an interrupted write, completes an entry whose second copy was cut off."""
    end = view.position.offset
    size = file.size()
    if size > end:
        file.truncate(end)
    elif size < end:
        begin = view.newest_offset
        if view.entry(begin).after.offset != end:
            raise HistoryMissing("the journal became shorter", hint="restore it from a copy")
        half = (end - begin) // 2
        file.write_at(begin + half, file.read(begin, half))


def _append(file: WriteFile, offset: int, data: bytes) -> None:
    try:
        file.write_at(offset, data)
    except (MvcError, MemoryError):
        # What was written of the entry is an interrupted write; take it back if we can.
        with contextlib.suppress(MvcError):
            file.truncate(offset)
        raise
