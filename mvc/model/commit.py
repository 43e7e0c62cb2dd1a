"""A commit: manifest, root, parents, author, time, message, metrics.

Its id is the hash of its canonical bytes; nothing about how the blobs are
stored is inside, so that repacking never changes an id.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from mvc.dataclasses import dataclass
from mvc.ids import CommitId, ManifestId, Root
from mvc.limits import MAX_COMMIT, MAX_MESSAGE, MAX_METRICS, MAX_NAME_BYTES, MAX_PIPELINE_TEXT
from mvc.model.canonical import Reader, Writer
from mvc.model.hashing import digest

__all__ = ["Commit"]

_TAG = b"mvc.commit.1"
_VERSION = 1
_MAX_PARENTS = 64
_DAY = 24 * 60  # minutes
_FLOAT = struct.Struct("<d")


@dataclass(frozen=True)
class Commit:
    """``time_ns`` is UTC nanoseconds since 1970, ``zone_minutes`` the author's offset from UTC.

    ``metrics`` are float64 by name; ``pipeline`` is the preset or the text of the pipeline
    that was asked for; ``code`` the git commit of the working folder, or empty.
    """

    manifest: ManifestId
    root: Root
    parents: tuple[CommitId, ...]
    author: str
    time_ns: int
    zone_minutes: int
    message: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    pipeline: str = ""
    code: str = ""

    @cached_property
    def encoded(self) -> bytes:
        writer = Writer().uint(_VERSION).raw(self.manifest).raw(self.root)
        writer.uint(len(self.parents))
        for parent in self.parents:
            writer.raw(parent)
        writer.text(self.author).sint(self.time_ns).sint(self.zone_minutes).text(self.message)
        writer.uint(len(self.metrics))
        for name in sorted(self.metrics, key=lambda n: n.encode("utf-8", "surrogateescape")):
            writer.text(name).raw(_FLOAT.pack(self.metrics[name]))
        return writer.text(self.pipeline).text(self.code).done()

    @cached_property
    def id(self) -> CommitId:
        return CommitId(digest(_TAG, self.encoded))

    @classmethod
    def decode(cls, data: bytes) -> Commit:
        """Raises DamagedData unless ``data`` is exactly what ``encoded`` gives."""
        reader = Reader(data, "a commit")
        if len(data) > MAX_COMMIT:
            raise reader.fail(f"it is longer than {MAX_COMMIT} bytes")
        if reader.uint() != _VERSION:
            raise reader.fail("its version is unknown")
        manifest, root = ManifestId(reader.raw(32)), Root(reader.raw(32))
        parents = tuple(CommitId(reader.raw(32)) for _ in range(reader.count(_MAX_PARENTS)))
        author = reader.text(MAX_NAME_BYTES)
        time_ns, zone, message = reader.sint(), reader.sint(), reader.text(MAX_MESSAGE)
        if not -_DAY < zone < _DAY:
            raise reader.fail("its zone is further from UTC than a day")
        metrics: dict[str, float] = {}
        previous = None
        for _ in range(reader.count(MAX_METRICS)):
            name = reader.blob(MAX_NAME_BYTES)
            if previous is not None and name <= previous:
                raise reader.fail("it is not in canonical form")
            metrics[name.decode("utf-8", "surrogateescape")] = _FLOAT.unpack(reader.raw(8))[0]
            previous = name
        pipeline, code = reader.text(MAX_PIPELINE_TEXT), reader.text(MAX_NAME_BYTES)
        reader.end()
        commit = cls(
            manifest, root, parents, author, time_ns, zone, message, metrics, pipeline, code
        )
        # The reader accepts one form of each field, and the order of metrics was checked.
        commit.__dict__["encoded"] = data
        return commit
