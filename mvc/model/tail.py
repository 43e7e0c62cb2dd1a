"""A tail: optional fields behind the others of an entry, a commit or a manifest.

A field is a tag and bytes. Bits 0 and 1 of the tag say what a program does that does not know it:
``IGNORE`` the field, only ``READ`` the repository, or ``REFUSE`` it. Unknown fields are kept as
they are, so that no hash changes when a journal is written anew.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from mvc.errors import UnsupportedFormat
from mvc.limits import MAX_COMMIT, MAX_TAIL
from mvc.model.canonical import Reader, Writer

IGNORE, READ, REFUSE = range(3)
UPGRADE = "upgrade mvc"
_MAX_TAG = (1 << 32) - 1

Unknown = tuple[tuple[int, bytes], ...]
"""Fields with tags that this version of mvc does not know, by ascending tag."""

MANIFEST_TAGS: dict[int, int] = {}
"""The tags of a manifest's tail: none yet. Here, because who opens a repository reads none."""


def demand(tag: int) -> int:
    """What a program does that does not know the tag."""
    return min(tag & 3, REFUSE)


def flags(kind: str, tags: Iterable[int]) -> frozenset[str]:
    """The names in ``format`` of the tags that may not be ignored; ``kind``: of what they are."""
    return frozenset(f"{kind}-tag-{tag}" for tag in tags if demand(tag) != IGNORE)


def write_tail(writer: Writer, fields: Mapping[int, bytes]) -> None:
    """Writes all fields, by ascending tag."""
    writer.uint(len(fields))
    for tag in sorted(fields):
        writer.uint(tag).blob(fields[tag])


def read_tail(
    reader: Reader, known: Mapping[int, int], free: Container[int] = ()
) -> dict[int, bytes]:
    """All fields. ``known``: the most bytes that a field may have, by tag; ``free``: those of which
    any value is as good, if it is as long.

    Raises UnsupportedFormat for a tag that is not known and asks to be refused then.
    """
    fields: dict[int, bytes] = {}
    last = -1
    for _ in range(reader.count(MAX_TAIL)):
        tag = reader.uint(_MAX_TAG)
        if tag <= last:
            raise reader.fail("the tags of its tail do not ascend")
        if tag not in known and demand(tag) == REFUSE:
            raise UnsupportedFormat(
                f"this repository needs a newer mvc: it uses the field {tag}", hint=UPGRADE
            )
        read = reader.free_blob if tag in free else reader.blob
        fields[tag] = read(known.get(tag, MAX_COMMIT))
        last = tag
    return fields


def unknown_of(fields: Mapping[int, bytes], known: Mapping[int, int]) -> Unknown:
    """The fields whose tags are not ``known``."""
    return tuple((tag, data) for tag, data in fields.items() if tag not in known)
