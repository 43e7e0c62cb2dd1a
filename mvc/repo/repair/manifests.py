"""Repair: a lost manifest made again from a neighbour's in the history.

Versions next to each other differ mostly in the ids of their contents. Two candidates are
made of each neighbour: with the ids that the deltas stored beside the version give, and
with the files of the working folder. A candidate counts only if its hash is the one that
the commit names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mvc.ids import BlobId, ManifestId
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.maintenance.survey import Survey
from mvc.store.packs.records import BLOB

__all__ = ["Rebuilder"]


class Rebuilder:
    """``on_disk`` gives the entry that committing a working file would make, or None."""

    def __init__(self, survey: Survey, on_disk: Callable[[str], FileEntry | None]) -> None:
        self._survey = survey
        self._on_disk = on_disk
        self._files: dict[str, FileEntry | None] = {}

    def rebuild(
        self,
        wanted: ManifestId,
        home: int,
        before: Sequence[Manifest],
        after: Mapping[int, Manifest],
    ) -> Manifest | None:
        """The manifest with this id, of a version that entry ``home`` published; None if lost.

        ``before``: manifests of its parents; ``after``: of its children, by their entries.
        """
        for template in before:
            made = _replaced(template, self._ids(template, home, dict(self._deltas(home))))
            if made.id == wanted:
                return made
        for child, template in after.items():
            back = {id_: base for base, id_ in self._deltas(child)}
            made = _replaced(template, self._ids(template, home, back))
            if made.id == wanted:
                return made
        for template in (*before, *after.values()):
            made = self._of_files(template)
            if made.id == wanted:
                return made
        return None

    def _of_files(self, template: Manifest) -> Manifest:
        """The template with what the working folder holds now under the same paths."""
        for entry in template.entries:
            if entry.path not in self._files:
                self._files[entry.path] = self._on_disk(entry.path)
        return Manifest(self._files[entry.path] or entry for entry in template.entries)

    def _deltas(self, home: int) -> Iterator[tuple[bytes, bytes]]:
        """(base, object) of every delta of an entry."""
        for record in self._survey.found.records[home]:
            for member in record.header.members:
                base = self._survey.found.meaning(member.base) if member.base else None
                if base is not None:
                    yield base, member.id

    def _ids(self, template: Manifest, home: int, known: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """The version's ids by the template's.

        ``known`` comes from deltas. An object that entry ``home`` stored in full takes the
        place of the template's of the same size, if there are as many of either.
        """
        sizes = _sizes(template)
        here = sizes.keys() | known.values()
        full = {
            member.id: member.nbytes
            for record in self._survey.found.records[home]
            for member in record.header.members
            if member.kind == BLOB and not member.base and member.id not in here
        }
        made = dict(known)
        for size in set(full.values()):
            new = [id_ for id_, nbytes in full.items() if nbytes == size]
            old = [id_ for id_, nbytes in sizes.items() if nbytes == size and id_ not in known]
            if len(new) == len(old):
                made.update(zip(old, new, strict=True))
        return made


def _sizes(template: Manifest) -> dict[bytes, int]:
    """Bytes of each content, in the order of the files."""
    found: dict[bytes, int] = {}
    for entry in template.entries:
        found.update((content.id, content.spec.nbytes) for content in entry.contents)
        if entry.skeleton is not None:
            found[entry.skeleton] = entry.skeleton_size
    return found


def _replaced(template: Manifest, ids: Mapping[bytes, bytes]) -> Manifest:
    return Manifest(_entry(entry, ids) for entry in template.entries)


def _entry(entry: FileEntry, ids: Mapping[bytes, bytes]) -> FileEntry:
    contents = tuple(
        replace(content, id=BlobId(ids.get(content.id, content.id))) for content in entry.contents
    )
    skeleton = entry.skeleton
    if skeleton is not None:
        skeleton = BlobId(ids.get(skeleton, skeleton))
    tensors = tuple(
        each if each.view is not None else replace(each, id=contents[each.content].id)
        for each in entry.tensors
    )
    return replace(entry, contents=contents, skeleton=skeleton, tensors=tensors)
