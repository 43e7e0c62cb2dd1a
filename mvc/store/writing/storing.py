"""A file during a commit, with the stored contents that its contents are later states of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from mvc.ids import BlobId
from mvc.model.hashing import blob_id
from mvc.model.manifest import Content
from mvc.store.writing.base_cache import BaseCache, tensor_changed
from mvc.store.writing.precision_copies import Master

if TYPE_CHECKING:
    from mvc.adapters.parsed import ParsedFile


class Origin(NamedTuple):
    """A content's name, and the stored content that is probably its earlier state."""

    name: str
    base: Content | None


class Storing(Struct):
    """A file during a commit: ``origins`` of its contents, ``ids`` of those already stored.

    ``last`` has the file's previous version in memory. The caller must not change its own memory:
    ``borrowed`` are names and ids of contents in it, ``uncopied`` those without a copy in a cache,
    ``masters`` the bases of precision copies.
    """

    file: ParsedFile
    path: str
    origins: Sequence[Origin]
    last: BaseCache | None = None
    ids: dict[int, BlobId] = field(default_factory=dict)
    borrowed: dict[int, tuple[str, BlobId]] = field(default_factory=dict)
    uncopied: list[int] = field(default_factory=list)
    masters: list[Master] = field(default_factory=list)
    nbytes: int = 0  # of all contents

    def __post_init__(self) -> None:
        self.nbytes = sum(content.spec.nbytes for content in self.file.contents)

    def borrow(self, i: int, id_: BlobId, *, is_copied: bool) -> None:
        """Records that a content is in the caller's memory; ``is_copied``: a cache has a copy."""
        self.borrowed[i] = self.origins[i].name, id_
        if not is_copied:
            self.uncopied.append(i)

    def prove(self, contents: Iterable[int]) -> None:
        """Hashes masters and these contents again; SourceChanged if one was modified."""
        for master in self.masters:
            if master.changed():
                raise tensor_changed(self.path)
        for i in contents:
            name, id_ = self.borrowed[i]
            data = self.file.borrow(i)
            if data is None or blob_id(self.file.contents[i].spec, data, parallel=True) != id_:
                raise tensor_changed(name)
