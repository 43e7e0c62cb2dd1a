"""Reads many manifests in the order in which they were published.

Most manifests are stored as a patch against the previous one. The last few are cached, so that
each manifest takes one patch to decode instead of a whole chain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from mvc.codecs.patch import decode_patch
from mvc.errors import DamagedData
from mvc.ids import ManifestId
from mvc.limits import MAX_MANIFEST, MIB
from mvc.model.manifest import Manifest
from mvc.store.graph.search import PathStep
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import BASE_BYTES, patch_extra
from mvc.store.store import Store

if TYPE_CHECKING:
    from mvc.store.recovery.recover import Recovery


class ManifestStream:
    """Loads and verifies manifests one after another."""

    def __init__(
        self,
        store: Store,
        *,
        kept: int = 256,
        kept_bytes: int = 16 * MIB,
        recovery: Recovery | None = None,
    ) -> None:
        """``kept``, ``kept_bytes``: how many manifests are cached, and their bytes, at most.

        ``recovery``: what reads them, by default that of the store.
        """
        self._store = store
        self._given = recovery
        self._most, self._most_bytes = kept, kept_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()  # by the prefix that names a base
        self._size = 0

    def load(self, id_: ManifestId, codings: Iterable[PathStep] | None = None) -> Manifest:
        """One manifest. ``codings``: where it is stored; by default the index is searched.

        Raises DamagedData as ``Recovery.manifest`` does.
        """
        return Manifest.decode(self.read(id_, codings))

    def read(self, id_: ManifestId, codings: Iterable[PathStep] | None = None) -> bytes:
        """As ``load``, but the bytes of the manifest."""
        recovery = self._given or self._store.recovery
        given = recovery.graph.codings(id_) if codings is None else codings
        found = self.near(id_, given, recovery.packs)
        return self._keep(id_, recovery.manifest(id_)) if found is None else found

    def near(
        self, id_: ManifestId, codings: Iterable[PathStep], packs: PackReader | None = None
    ) -> bytes | None:
        """Its bytes, if it is stored in full or as a patch against a cached one; else None.

        ``packs`` reads them, by default as any other look-up does.
        """
        for step in codings:
            data = self._decoded(step, packs or self._store.snapshot.packs)
            if data is not None and Manifest.id_of(data) == id_:
                return self._keep(id_, data)
        return None

    def _decoded(self, step: PathStep, packs: PackReader) -> bytes | None:
        """The decoded bytes of a coding, or None. The caller's hash check detects a wrong base."""
        member = step.member
        if member.coding.transform != "patch" or member.nbytes > MAX_MANIFEST:
            return None
        base = self._kept.get(member.base) if member.base else b""
        if base is None:
            return None
        with suppress(DamagedData):
            payload = packs.payload(step.pack, step.offset, step.header, member)
            extra = patch_extra(step.header.members, member.kind)
            return decode_patch(payload, memoryview(base), extra, member.nbytes)
        return None

    def _keep(self, id_: ManifestId, data: bytes) -> bytes:
        """Caches a manifest as a base of further ones."""
        name = id_[:BASE_BYTES]
        self._size += len(data) - len(self._kept.pop(name, b""))
        self._kept[name] = data
        while self._kept and (self._size > self._most_bytes or len(self._kept) > self._most):
            self._size -= len(self._kept.popitem(last=False)[1])
        return data
