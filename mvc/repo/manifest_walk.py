"""Loading the manifests of many versions, one after the other.

A manifest is a patch of its parent's. Who reads all of them in order has the parent's at
hand, and decodes one patch a version instead of a chain of them.
"""

from __future__ import annotations

from collections import OrderedDict

from mvc.codecs.patch import decode_patch
from mvc.errors import DamagedData
from mvc.ids import ManifestId
from mvc.limits import MAX_MANIFEST
from mvc.model.manifest import Manifest
from mvc.repo import manifests
from mvc.repo.context import Context
from mvc.repo.inventory import Coding, Inventory
from mvc.store.records import patch_extra

__all__ = ["ManifestWalk"]

_KEPT = 32


class ManifestWalk:
    """Remembers the last manifests as they are encoded."""

    def __init__(self, context: Context, found: Inventory) -> None:
        self._context = context
        self._found = found
        self._data: OrderedDict[bytes, bytes] = OrderedDict()

    def load(self, id_: ManifestId) -> Manifest:
        """A manifest, verified; DamagedData if it cannot be recovered."""
        data = self._data.get(id_) or self._from_its_base(id_)
        if data is None:
            data = self._context.store.recovery.manifest(id_)
        self._data[id_] = data
        self._data.move_to_end(id_)
        if len(self._data) > _KEPT:
            self._data.popitem(last=False)
        made = Manifest.decode(data)
        manifests.remember(id_, made)
        return made

    def _from_its_base(self, id_: ManifestId) -> bytes | None:
        for coding in self._found.codings.get(id_, ()):
            base = b"" if coding.base is None else self._data.get(coding.base)
            if base is None or coding.member.coding.text != "patch":
                continue
            try:
                data = self._patched(coding, base)
            except DamagedData:
                continue  # or moved meanwhile: the long way knows what to do
            if Manifest.id_of(data) == id_:
                return data
        return None

    def _patched(self, coding: Coding, base: bytes) -> bytes:
        record, member = coding.record, coding.member
        if member.nbytes > MAX_MANIFEST:
            raise DamagedData("a manifest claims to be larger than any")
        packs = self._context.store.view.packs
        payload = packs.payload(record.pack, record.offset, record.header, member)
        extra = patch_extra(record.header.members, member.kind)
        return decode_patch(memoryview(payload), memoryview(base), extra, member.nbytes)
