"""A file that is being stored, and what its contents are later states of."""

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
    """A content's name, and the stored content that it is probably a later state of."""

    name: str
    base: Content | None


class Storing(Struct):
    """A file that is being stored: ``origins`` of its contents, ``ids`` of those that are stored.

    ``last`` has the file's previous version in memory. The memory of the caller's must not change:
    ``borrowed`` are names and ids of the contents that lie in it; ``uncopied`` those of them that
    no cache holds a copy of; ``masters`` what copies were encoded against.
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
        """Records that a content lies in memory of the caller's; ``is_copied``: a cache has it."""
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
            spec = self.file.contents[i].spec
            if data is None or blob_id(spec, data, parallel=True) != id_:
                raise tensor_changed(name)
