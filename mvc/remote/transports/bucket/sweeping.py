"""Deleting objects of a bucket that nothing names any more.

Whoever saw an earlier head may still read what that named, and a push that has written its packs
has not swapped yet. So an object is deleted only after it was named by no head for ``UNNAMED_FOR``,
by the store's clock, and after a swap: a push that saw the head before it has to look again.
A rewriting notes which packs it drops before its swap; the newest such note says since when a pack
is unnamed, and its own time does where there is none.
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
"""How long an object stays that no head names, in ns."""


def sweep(mirror: Mirror, publisher: Publisher) -> bool:
    """Deletes what was unnamed for long enough; whether unnamed packs are left."""
    unnamed = list(_unnamed(mirror))
    if not unnamed:
        return False
    before = mirror.objects.now_ns() - UNNAMED_FOR
    due = [each for each in unnamed if each.time_ns <= before]
    if due and publisher.bump():
        named = _named(mirror)
        mirror.objects.delete([each.name for each in due if each.name not in named])
        unnamed = [each for each in unnamed if each not in due]
    return any(each.name.startswith(PACK_OBJECTS) for each in unnamed)


def _named(mirror: Mirror) -> set[str]:
    """The names of the objects that the head names."""
    parts = () if mirror.seen is None else mirror.seen.head.parts
    return {pack.name for pack in mirror.fs.known.values()} | {part.name for part in parts}


def _unnamed(mirror: Mirror) -> Iterator[StoredObject]:
    """Objects that the head does not name, each with the time since when that is so."""
    objects, named = mirror.objects, _named(mirror)
    since: dict[str, int] = {}
    for note in _own(objects, DROPPED):
        data = objects.read(note.name, MAX_DROPPED)
        for hash_ in () if data is None else decode_dropped(data, objects.url):
            name = PACK_OBJECTS + hash_.hex()
            since[name] = max(since.get(name, 0), note.time_ns)
        yield note
    for prefix in (PACK_OBJECTS, JOURNAL_PARTS):
        for each in _own(objects, prefix):
            if each.name not in named:
                time_ns = max(each.time_ns, since.get(each.name, 0))
                yield StoredObject(each.name, each.size, time_ns)


def _own(objects: Objects, prefix: str) -> Iterator[StoredObject]:
    """The objects with such names as are given here, and what killed writers left."""
    return (each for each in objects.list(prefix) if _OWN.fullmatch(each.name, len(prefix)))
