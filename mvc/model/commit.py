"""A commit: the record of a version, with its parents, author, message, metrics and params.

A commit contains the hash of the list of its files. A commit's id is the hash of its bytes. These
bytes do not say how tensors are stored (in full or as deltas), so repacking never changes an id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise

from msgspec import Struct, field

from mvc.canonical import Reader, Writer, decode_text
from mvc.ids import CommitId, ManifestId, Root
from mvc.limits import (
    MAX_ATTACHED,
    MAX_COMMIT,
    MAX_MESSAGE,
    MAX_METRICS,
    MAX_NAME_BYTES,
    MAX_NEEDS,
    MAX_PARAMS,
    MAX_PARENTS,
    MAX_PIPELINE_TEXT,
)
from mvc.model.hashing import digest
from mvc.names import encode_text

_TAG = b"mvc.commit.1"
_DAY = 24 * 60  # minutes
_FLOAT = struct.Struct("<d")
_OTHER_FORM = "it is not in canonical form"


class Commit(Struct, frozen=True, dict=True):
    """A commit. ``manifest``: the id of the list of files. ``root``: a hash over all tensors.

    ``time_ns``: ns since 1970, UTC. ``zone_minutes``: the author's offset from UTC. ``pipeline``:
    the requested preset or pipeline text. ``code``: the git commit of the working folder, or empty.
    ``dirty``: whether the folder differed from this git commit, or git did not answer in time.
    ``needs``: versions that are needed to train this version again, such as data sets.
    ``attached``: top-level names of attachments (such as code). ``run``: the name of the training.
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
    params: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[CommitId, ...] = ()
    attached: tuple[str, ...] = ()
    run: str = ""
    dirty: bool = False

    @cached_property
    def encoded(self) -> bytes:
        writer = Writer().uint(1)
        writer.raw(self.manifest).raw(self.root)
        writer.uint(len(self.parents))
        for parent in self.parents:
            writer.raw(parent)
        writer.text(self.author).sint(self.time_ns).sint(self.zone_minutes).text(self.message)
        write_metrics(writer, self.metrics)
        writer.text(self.pipeline).text(self.code)
        write_params(writer, self.params)
        writer.uint(len(self.needs))
        for id_ in sorted(self.needs):
            writer.raw(id_)
        writer.uint(len(self.attached))
        for name in sorted(self.attached, key=encode_text):
            writer.text(name)
        return writer.text(self.run).uint(1 if self.dirty else 0).done()

    @cached_property
    def id(self) -> CommitId:
        return CommitId(digest(_TAG, self.encoded))

    @classmethod
    def decode(cls, data: bytes) -> Commit:
        """Raises DamagedData unless ``data`` equals ``encoded`` of the result."""
        reader = Reader(data, "a commit")
        if len(data) > MAX_COMMIT:
            raise reader.fail(f"it is longer than {MAX_COMMIT} bytes")
        reader.version()
        manifest, root = ManifestId(reader.raw(32)), Root(reader.raw(32))
        parents = tuple(CommitId(reader.raw(32)) for _ in range(reader.count(MAX_PARENTS)))
        author = reader.text(MAX_NAME_BYTES)
        time_ns, zone = reader.sint(), reader.sint()
        message = reader.text(MAX_MESSAGE)
        if not -_DAY < zone < _DAY:
            raise reader.fail("its zone is further from UTC than a day")
        metrics = read_metrics(reader)
        pipeline, code = reader.text(MAX_PIPELINE_TEXT), reader.text(MAX_NAME_BYTES)
        params = read_params(reader)
        needs = tuple(CommitId(reader.raw(32)) for _ in range(reader.count(MAX_NEEDS)))
        attached = tuple(_names(reader, MAX_ATTACHED))
        run, dirty = reader.text(MAX_NAME_BYTES), bool(reader.uint(1))
        reader.end()
        commit = cls(
            manifest, root, parents, author, time_ns=time_ns, zone_minutes=zone, message=message,
            metrics=metrics, pipeline=pipeline, code=code, params=params, needs=needs,
            attached=attached, run=run, dirty=dirty,
        )  # fmt: skip
        if any(a >= b for a, b in pairwise(needs)):
            raise reader.fail(_OTHER_FORM)
        # ``data`` is canonical: each field has a single valid form, and all orders were checked.
        commit.__dict__["encoded"] = data
        return commit


def write_metrics(writer: Writer, metrics: Mapping[str, float]) -> None:
    """Writes a table of names and float64 values, sorted by name."""
    writer.uint(len(metrics))
    for name in sorted(metrics, key=encode_text):
        writer.text(name).raw(_FLOAT.pack(metrics[name]))


def read_metrics(reader: Reader) -> dict[str, float]:
    """Inverse of ``write_metrics``. Refuses more than ``MAX_METRICS`` entries."""
    names = _names(reader, MAX_METRICS)
    return {name: _FLOAT.unpack(reader.raw(8))[0] for name in names}


def write_params(writer: Writer, params: Mapping[str, str]) -> None:
    """Writes a table of names and texts, sorted by name."""
    writer.uint(len(params))
    for name in sorted(params, key=encode_text):
        writer.text(name).text(params[name])


def read_params(reader: Reader) -> dict[str, str]:
    """Inverse of ``write_params``. Refuses more than ``MAX_PARAMS`` entries."""
    names = _names(reader, MAX_PARAMS)
    return {name: reader.text(MAX_NAME_BYTES) for name in names}


def _names(reader: Reader, most: int) -> Iterator[str]:
    """Yields the names of a table. After each name, the caller must read the value of this name.

    Raises DamagedData if the names are not in strictly ascending order.
    """
    previous = None
    for _ in range(reader.count(most)):
        name = reader.blob(MAX_NAME_BYTES)
        if previous is not None and name <= previous:
            raise reader.fail(_OTHER_FORM)
        yield decode_text(name)
        previous = name
