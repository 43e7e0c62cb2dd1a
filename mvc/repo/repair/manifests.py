"""Repair: a version's list of files that is lost, made anew from a neighbour's.

The list says little that its neighbours in history do not: mostly other ids of contents.
These stand in the records that came with the version, as deltas from the neighbour's, or
follow from the files of the working folder. What is put together counts only if its hash
is the one that the commit names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

from mvc.ids import BlobId, ManifestId
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.maintenance.survey import Survey
from mvc.store.packs.records import BLOB

__all__ = ["Rebuilder"]

_MOST = 256  # lists to try for one version

Swap = Mapping[bytes, bytes]
"""By the id of a neighbour's content, the id of the version's own."""


class Rebuilder:
    """``on_disk``: the entry that a file of the working folder would be, None if there is none."""

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
        """The list with this id, of a version that entry ``home`` published.

        ``before``: lists of its parents; ``after``: of its children, by their entries.
        """
        for candidate in self._candidates(home, before, after):
            if candidate.id == wanted:
                return candidate
        return None

    def _candidates(
        self, home: int, before: Sequence[Manifest], after: Mapping[int, Manifest]
    ) -> Iterator[Manifest]:
        links = [(template, self._onward(home)) for template in before]
        links += [(template, self._back(child)) for child, template in after.items()]
        for template, known in links:
            yield template
            yield self._of_files(template)
            for swap in islice(self._ways(template, known, home), _MOST):
                yield _swapped(template, swap)

    def _of_files(self, template: Manifest) -> Manifest:
        """As the working folder is now."""
        for entry in template.entries:
            if entry.path not in self._files:
                self._files[entry.path] = self._on_disk(entry.path)
        return Manifest(self._files[entry.path] or entry for entry in template.entries)

    def _deltas(self, home: int) -> Iterator[tuple[bytes, bytes]]:
        """(base, object) of every delta of an entry."""
        for record in self._survey.found.records[home]:
            for member in record.header.members:
                base = self._survey.found.resolve_prefix(member.base) if member.base else None
                if base is not None:
                    yield base, member.id

    def _onward(self, home: int) -> Swap:
        """From a parent's contents to the version's, by the deltas that came with it."""
        return dict(self._deltas(home))

    def _back(self, child: int) -> Swap:
        """From a child's contents to the version's, by the deltas that came with the child."""
        return {id_: base for base, id_ in self._deltas(child)}

    def _ways(self, template: Manifest, known: Swap, home: int) -> Iterator[Swap]:
        """What came with the version in full goes by its size."""
        full = {
            member.id: member.nbytes
            for record in self._survey.found.records[home]
            for member in record.header.members
            if member.kind == BLOB and not member.base
        }
        sizes = _sizes(template)
        here = sizes.keys() | known.values()
        full = {id_: nbytes for id_, nbytes in full.items() if id_ not in here}
        ways: list[list[Swap]] = []
        for size in dict.fromkeys(full.values()):
            came = [id_ for id_, nbytes in full.items() if nbytes == size]
            old = [id_ for id_, nbytes in sizes.items() if nbytes == size and id_ not in known]
            if len(came) == len(old):
                ways.append([dict(zip(old, came, strict=True))])
            elif len(came) == 1:
                ways.append([{id_: came[0]} for id_ in old])
        for choice in product(*(way for way in ways if way)):
            yield {old: new for part in (known, *choice) for old, new in part.items()}


def _sizes(template: Manifest) -> dict[bytes, int]:
    """Contents and their bytes, in the order of the files."""
    found: dict[bytes, int] = {}
    for entry in template.entries:
        found.update((content.id, content.spec.nbytes) for content in entry.contents)
        if entry.skeleton is not None:
            found[entry.skeleton] = entry.skeleton_size
    return found


def _swapped(template: Manifest, swap: Swap) -> Manifest:
    return Manifest(_entry(entry, swap) for entry in template.entries)


def _entry(entry: FileEntry, swap: Swap) -> FileEntry:
    contents = tuple(
        replace(content, id=BlobId(swap.get(content.id, content.id))) for content in entry.contents
    )
    skeleton = entry.skeleton
    if skeleton is not None:
        skeleton = BlobId(swap.get(skeleton, skeleton))
    tensors = tuple(
        each if each.view is not None else replace(each, id=contents[each.content].id)
        for each in entry.tensors
    )
    return replace(entry, contents=contents, skeleton=skeleton, tensors=tensors)
