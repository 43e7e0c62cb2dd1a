"""The state of one file while a commit stores it. A *content* is the bytes of one tensor.

A content is stored as a delta from its previous version, if there is one. Some contents are not
copied, but read from memory of the program that commits. They are hashed again after storing, to
find out whether the program has changed them meanwhile.
"""

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
    """The name of a content. ``base``: the stored content that is probably its previous version."""

    name: str
    base: Content | None


class Storing(Struct):
    """``ids``: maps the index of each stored content to its id. ``origins``: one for each content.

    ``last``: a cache with the previous version of the file. ``borrowed``: maps the index of each
    content in the caller's memory to its name and id. ``uncopied``: indices of the borrowed
    contents that no cache has copied. ``masters``: tensors in the caller's memory of which the
    commit also has a copy in lower precision.
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
        """Records that content ``i`` is in the caller's memory.

        ``is_copied``: whether a cache has a copy of the content.
        """
        self.borrowed[i] = self.origins[i].name, id_
        if not is_copied:
            self.uncopied.append(i)

    def prove(self, contents: Iterable[int]) -> None:
        """Hashes ``masters`` and the borrowed ``contents`` again. Raises SourceChanged for a tensor
        that the caller has changed.
        """
        for master in self.masters:
            if master.changed():
                raise tensor_changed(self.path)
        for i in contents:
            name, id_ = self.borrowed[i]
            data = self.file.borrow(i)
            if data is None or blob_id(self.file.contents[i].spec, data, parallel=True) != id_:
                raise tensor_changed(name)
