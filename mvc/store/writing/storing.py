"""A file during a commit, with the previous version of each of its contents.

A content is the bytes of one tensor.
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
    """The name of a content, and the stored content that probably is its previous version."""

    name: str
    base: Content | None


class Storing(Struct):
    """A file during a commit. ``ids``: by number, the ids of the contents that are stored already.

    ``origins``: one for each content. ``last``: cache of the file's previous version in memory.
    ``borrowed``: name and id of each content in the caller's memory, which must not change.
    ``uncopied``: borrowed contents that ``last`` does not copy. ``masters``: borrowed tensors that
    are bases of copies in lower precision (``PrecisionCopies``).
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
        """Records that a content is in the caller's memory.

        ``is_copied``: a cache has a copy, too.
        """
        self.borrowed[i] = self.origins[i].name, id_
        if not is_copied:
            self.uncopied.append(i)

    def prove(self, contents: Iterable[int]) -> None:
        """Hashes the masters and ``contents`` again. Raises SourceChanged if a tensor differs."""
        for master in self.masters:
            if master.changed():
                raise tensor_changed(self.path)
        for i in contents:
            name, id_ = self.borrowed[i]
            data = self.file.borrow(i)
            if data is None or blob_id(self.file.contents[i].spec, data, parallel=True) != id_:
                raise tensor_changed(name)
