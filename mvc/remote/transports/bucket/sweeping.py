"""Deletes objects of a bucket that its head does not name.

The head is the object that names all other objects in use. A push writes packs (files of records)
before it replaces the head, and a client may still read objects that an earlier head names. So an
object is deleted only if no head has named it for ``UNNAMED_FOR``, by the clock of the object
store. Before a deletion, the head is replaced, so that concurrent pushes must read it again.

A rewrite of the repository (by ``mvc gc``, for example) writes a list of the packs that it drops,
and then replaces the head. A pack counts as unnamed since the time of the newest list that contains
it. A pack that is in no list, and a part of the journal, count as unnamed since they were written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mvc.ids import DIGEST_SIZE
from mvc.io.files import TEMPORARY
from mvc.limits import BUCKET_DAYS
from mvc.remote.transports.bucket.layout import (
    DROPPED,
    JOURNAL_PARTS,
    MAX_DROPPED,
    PACK_OBJECTS,
    decode_dropped,
)
from mvc.remote.transports.bucket.mirror import Mirror
from mvc.remote.transports.bucket.objects import Objects, StoredObject
from mvc.remote.transports.bucket.publishing import Publisher

_OWN = re.compile(rf"[0-9a-f]{{{2 * DIGEST_SIZE}}}|{re.escape(TEMPORARY)}[0-9a-f]+")
UNNAMED_FOR = BUCKET_DAYS * 24 * 3600 * 10**9
"""For how many nanoseconds an unnamed object is retained."""


def sweep(mirror: Mirror, publisher: Publisher) -> bool:
    """Deletes objects that were unnamed for long enough. Returns whether unnamed packs remain."""
    unnamed = list(_unnamed(mirror))
    if not unnamed:
        return False
    before = mirror.objects.now_ns() - UNNAMED_FOR
    due = [stored for stored in unnamed if stored.time_ns <= before]
    if due and publisher.bump():
        named = _named(mirror)
        mirror.objects.delete([stored.name for stored in due if stored.name not in named])
        unnamed = [stored for stored in unnamed if stored not in due]
    return any(stored.name.startswith(PACK_OBJECTS) for stored in unnamed)


def _named(mirror: Mirror) -> set[str]:
    """The names of the objects that the head names."""
    parts = () if mirror.seen is None else mirror.seen.head.parts
    return {pack.name for pack in mirror.fs.known.values()} | {part.name for part in parts}


def _unnamed(mirror: Mirror) -> Iterator[StoredObject]:
    """Yields objects that the head does not name.

    Their ``time_ns`` is the time since when they count as unnamed.
    """
    objects, named = mirror.objects, _named(mirror)
    since: dict[str, int] = {}
    for note in _own(objects, DROPPED):
        data = objects.read(note.name, MAX_DROPPED)
        for hash_ in () if data is None else decode_dropped(data, objects.url):
            name = PACK_OBJECTS + hash_.hex()
            since[name] = max(since.get(name, 0), note.time_ns)
        yield note
    for prefix in (PACK_OBJECTS, JOURNAL_PARTS):
        for stored in _own(objects, prefix):
            if stored.name not in named:
                time_ns = max(stored.time_ns, since.get(stored.name, 0))
                yield StoredObject(stored.name, stored.size, time_ns)


def _own(objects: Objects, prefix: str) -> Iterator[StoredObject]:
    """The objects with names that mvc creates, including temporary objects of killed writers."""
    return (row for row in objects.list(prefix) if _OWN.fullmatch(row.name, len(prefix)))
