"""Reads many manifests in order of publication.

A manifest lists the files of a version. Most manifests are stored as a patch of the previous
manifest. The manifests that were read last are cached, so that reading a manifest takes one patch
instead of a chain of patches.
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
        cached: int = 256,
        cached_bytes: int = 16 * MIB,
        recovery: Recovery | None = None,
    ) -> None:
        """``cached``: maximum number of cached manifests. ``cached_bytes``: maximum total size.

        ``recovery``: the object that decodes the manifests (default: ``store.recovery``).
        """
        self._store = store
        self._recovery = recovery
        self._most, self._most_bytes = cached, cached_bytes
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()  # keys: prefixes of ids
        self._size = 0

    def load(self, id_: ManifestId, codings: Iterable[PathStep] | None = None) -> Manifest:
        """One manifest. Raises DamagedData.

        A coding says where and how the manifest is stored: in full or as a patch. ``codings``: the
        codings to try (default: all codings in the index).
        """
        return Manifest.decode(self.read(id_, codings))

    def read(self, id_: ManifestId, codings: Iterable[PathStep] | None = None) -> bytes:
        """As ``load``, but returns the encoded manifest."""
        recovery = self._recovery or self._store.recovery
        forms = recovery.graph.codings(id_) if codings is None else codings
        data = self.near(id_, forms, recovery.packs)
        return self._remember(id_, recovery.manifest(id_)) if data is None else data

    def near(
        self, id_: ManifestId, codings: Iterable[PathStep], packs: PackReader | None = None
    ) -> bytes | None:
        """The encoded manifest, if it is stored in full or as a patch of a cached manifest.

        Otherwise None. ``packs``: the reader of the packs, the files with stored data (default: the
        reader of ``store.snapshot``).
        """
        for step in codings:
            data = self._decoded(step, packs or self._store.snapshot.packs)
            if data is not None and Manifest.id_of(data) == id_:
                return self._remember(id_, data)
        return None

    def _decoded(self, step: PathStep, packs: PackReader) -> bytes | None:
        """Decodes one coding of a manifest. Returns None if its base is not cached, or on damage.

        The caller must check the hash of the manifest.
        """
        member = step.member
        if member.coding.transform != "patch" or member.nbytes > MAX_MANIFEST:
            return None
        base = self._cache.get(member.base) if member.base else b""
        if base is None:
            return None
        with suppress(DamagedData):
            payload = packs.payload(step.pack, step.offset, step.header, member)
            extra = patch_extra(step.header.members, member.kind)
            return decode_patch(payload, memoryview(base), extra, member.nbytes)
        return None

    def _remember(self, id_: ManifestId, data: bytes) -> bytes:
        """Caches a manifest, which may be the base of later manifests."""
        name = id_[:BASE_BYTES]
        self._size += len(data) - len(self._cache.pop(name, b""))
        self._cache[name] = data
        while self._cache and (self._size > self._most_bytes or len(self._cache) > self._most):
            self._size -= len(self._cache.popitem(last=False)[1])
        return data
