"""Encoding stored objects again, as full records or as deltas from other bases.

Each object is recovered and compared with its hash, piece by piece, so that maintenance
never copies damage and memory does not grow with the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from mvc.codecs.pipeline import Pipeline
from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.tensor import TensorSpec
from mvc.repo.content.bases import Recovers, StoredBase
from mvc.repo.content.hashing import verify_pieces
from mvc.repo.context import Context
from mvc.store.packs.arena import Arena
from mvc.store.packs.records import MANIFEST
from mvc.store.writing.choose import Policy
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.pack_writer import PackWriter

__all__ = ["EncodeRequest", "Encoder", "ObjectSource"]

_ARENA = 2 * PIECE


class ObjectSource(Recovers, Protocol):
    """Gives the bytes of objects; normally the recovery of the repository itself."""

    def manifest(self, id_: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """A coding to make: a delta from ``base``, or a full record if ``base`` is None.

    A delta that saves less than a tenth of the full record becomes a full record.
    """

    id: bytes
    base: bytes | None


class Encoder:
    """Writes new codings through one pack writer.

    ``specs``: the specs of all blobs to encode or to take as a base. ``source`` gives the
    bytes, by default the repository itself.
    """

    def __init__(
        self,
        context: Context,
        packs: PackWriter,
        specs: Mapping[bytes, TensorSpec],
        source: ObjectSource | None = None,
    ) -> None:
        store = context.store
        pipeline = Pipeline.parse(context.config.get("commit.pipeline")).coding()
        policy = Policy(pipeline)
        self._recovery: ObjectSource = source or store.recovery
        self._specs = specs
        self._new, self._old = Arena(_ARENA), Arena(_ARENA)
        self._taken = 0
        store.require(pipeline.features)
        self.writer = ObjectWriter(store.graph, packs, store.pool, policy, store.arenas)

    def blob(self, request: EncodeRequest) -> None:
        """Adds a coding of a blob. Raises DamagedData if the blob cannot be recovered."""
        spec = self._specs[request.id]
        base = None
        base_spec = None if request.base is None else self._specs.get(request.base)
        if request.base is not None and base_spec is not None:
            base = StoredBase(BlobId(request.base), base_spec, self._recovery, self._old)
        self.writer.begin(request.id)

        def read(start: int, length: int) -> memoryview:
            if self._taken + length > PIECE:
                self._drain()
            self._taken += length
            part = self._new.take(length)
            self._recovery.piece(request.id, start, part)
            return part

        wrong = DamagedData(
            f"object {request.id.hex()[:10]} does not match its hash",
            hint="run 'mvc fsck --full --repair' first",
        )
        for start, part in verify_pieces(request.id, spec, read, wrong):
            self.writer.put(request.id, spec, start, part, base)

    def manifest(self, request: EncodeRequest) -> None:
        """Adds a coding of a manifest, in a record of its own."""
        data = self._recovery.manifest(request.id)
        base = None
        if request.base is not None:
            with suppress(DamagedData):  # a lost base is replaced by a full record
                base = (request.base, self._recovery.manifest(request.base))
        self.writer.put_bytes(MANIFEST, request.id, data, base)
        self.flush()

    def _drain(self) -> None:
        self.writer.drain()
        self._new.reset()
        self._old.reset()
        self._taken = 0

    def flush(self) -> None:
        """Appends everything encoded so far to the pack."""
        self._drain()
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
