"""Repair: what stays, what is stored again and from which source, what is lost.

Afterwards every record in the packs can be decoded. An object that cannot be recovered is
not kept in part, so that committing the same content again stores it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mvc.ids import BlobId, CommitId, ManifestId
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.content.hashing import pieces
from mvc.repo.lookup.manifests import objects
from mvc.repo.maintenance.encode import EncodeRequest
from mvc.repo.maintenance.quarantine import DamagedRange
from mvc.repo.maintenance.report import Healed
from mvc.repo.maintenance.rewrite_plan import RewritePlan
from mvc.repo.maintenance.storage_graph import Piece, Reachability
from mvc.repo.repair.damage import DamageSurvey
from mvc.repo.repair.paths import SoundGraph
from mvc.repo.repair.sources import Sources
from mvc.store.packs.records import BASE_BYTES, BLOB

__all__ = ["Needs", "Rebuilder", "RepairPlan", "make_plan", "needs_of"]


@dataclass
class Needs:
    """The objects of versions. ``specs``: by id, in the order of versions; None for a manifest.
    ``first``: the entry of the first version with the object. ``paths``: file names.
    """

    specs: dict[bytes, TensorSpec | None] = field(default_factory=dict)
    first: dict[bytes, int] = field(default_factory=dict)
    paths: dict[str, None] = field(default_factory=dict)

    def take(self, id_: bytes, spec: TensorSpec | None, entry_index: int) -> None:
        self.specs.setdefault(id_, spec)
        self.first.setdefault(id_, entry_index)


@dataclass
class RepairPlan:
    """``lost``: objects that versions need and no source has. ``ranges`` go to quarantine.

    The plan is ``needed`` also if only ranges are damaged: the new journal omits them.
    """

    rewrite: RewritePlan
    healed: list[Healed] = field(default_factory=list)
    ranges: list[DamagedRange] = field(default_factory=list)
    lost: set[bytes] = field(default_factory=set)

    @property
    def needed(self) -> bool:
        return bool(self.rewrite or self.ranges)


def needs_of(survey: DamageSurvey, graph: SoundGraph, sources: Sources) -> Needs:
    """All objects of all states that are not forgotten and whose manifests can be recovered.

    Every object is named in ``graph``.
    """
    needs = Needs()
    entries = survey.found.entries
    forgotten = {each.commit for recorded in entries for each in recorded.entry.forgotten}
    holders: dict[ManifestId, int] = {}
    commits: dict[CommitId, tuple[Commit, int]] = {}
    for entry_index, recorded in enumerate(entries):
        for commit in recorded.entry.commits:
            if commit.id not in forgotten:
                graph.name(commit.manifest)
                holders.setdefault(commit.manifest, entry_index)
                commits[commit.id] = commit, entry_index
    lost = [
        id_
        for id_, entry_index in holders.items()
        if not _take(needs, graph, sources, id_, entry_index)
    ]
    if lost:
        _rebuild(survey, sources, commits, lost)
        for id_ in lost:
            _take(needs, graph, sources, id_, holders[id_])
    return needs


def _take(
    needs: Needs, graph: SoundGraph, sources: Sources, id_: ManifestId, entry_index: int
) -> bool:
    """Adds a manifest and its objects to ``needs``; False if the manifest is lost."""
    manifest = sources.load(id_)
    if manifest is not None:
        for blob, spec in objects(manifest).items():
            graph.name(blob)
            needs.take(blob, spec, entry_index)
        needs.paths.update((entry.path, None) for entry in manifest.entries)
    needs.take(id_, None, entry_index)
    return manifest is not None


def _rebuild(
    survey: DamageSurvey,
    sources: Sources,
    commits: dict[CommitId, tuple[Commit, int]],
    lost: list[ManifestId],
) -> None:
    """Makes lost manifests from those of parents and children, while that finds any."""
    rebuilder = Rebuilder(survey, sources.entry)
    children: dict[CommitId, list[CommitId]] = {}
    for id_, (commit, _) in commits.items():
        for parent in commit.parents:
            children.setdefault(parent, []).append(id_)
    waiting = [each for each in commits.values() if each[0].manifest in lost]
    before = -1
    while before != len(waiting):
        before = len(waiting)
        for commit, entry_index in list(waiting):
            parents = [commits[id_] for id_ in commit.parents if id_ in commits]
            following = [commits[id_] for id_ in children.get(commit.id, ())]
            olders = [m for each, _ in parents if (m := sources.load(each.manifest))]
            newers = {at: m for each, at in following if (m := sources.load(each.manifest))}
            made = rebuilder.rebuild(commit.manifest, entry_index, olders, newers)
            if made is not None:
                sources.adopt(made)
            if made is not None or sources.load(commit.manifest) is not None:
                waiting.remove((commit, entry_index))


def make_plan(
    survey: DamageSurvey, graph: SoundGraph, needs: Needs, sources: Sources
) -> RepairPlan:
    """Decides for every object what to do; ``sources`` remembers where each comes from."""
    work = _Planning(survey, graph, needs, sources)
    work.settle()
    return work.plan()


class _Planning:
    def __init__(
        self, survey: DamageSurvey, graph: SoundGraph, needs: Needs, sources: Sources
    ) -> None:
        self._survey = survey
        self._graph = graph
        self._needs = needs
        self._sources = sources
        self._pieces: dict[bytes, set[int]] = {}
        self._grouped: set[bytes] = set()
        for records in survey.found.records:
            for record in records:
                if record.header.group:
                    self._grouped.update(member.id for member in record.header.members)
                for i, member in enumerate(record.header.members):
                    if (record.pack, record.offset, i) not in survey.damaged:
                        self._pieces.setdefault(member.id, set()).add(member.start)
        for id_, spec in needs.specs.items():
            starts = [0] if spec is None else [start for start, _ in pieces(spec)]
            self._pieces.setdefault(id_, set()).update(starts)
        self._added: dict[bytes, str] = {}
        self._lost: set[bytes] = set()

    def settle(self) -> None:
        """Repeats until every object is reached, added or lost.

        A group may have to be taken apart, so its objects must be readable in this round: an
        added object that leads to one is not enough. Such an object may count as lost until
        the next round, which finds its record in the quarantine.
        """
        order = sorted(self._pieces, key=self._entry_for)
        while True:
            sound, reached = (_recoverable(self._survey, self._graph, self._lost) for _ in range(2))
            reached.reach(self._all_pieces(self._added))
            before = len(self._lost)
            for id_ in order:
                leads = sound if id_ in self._grouped else reached
                if id_ in self._lost or id_ in self._added:
                    continue
                if leads.has_all(self._all_pieces([id_])):
                    continue
                source = None
                if id_ in self._needs.specs:
                    source = self._sources.find(id_, self._needs.specs[id_])
                if source is None:
                    self._lost.add(id_)
                else:
                    self._added[id_] = source
                    reached.reach(self._all_pieces([id_]))
            if len(self._lost) == before:
                return

    def _all_pieces(self, ids: Iterable[bytes]) -> list[Piece]:
        return [(id_, at) for id_ in ids for at in self._pieces[id_]]

    def _entry_for(self, id_: bytes) -> int:
        """The entry for a new record of an object: no earlier entry has a delta from it."""
        last = len(self._survey.found.entries) - 1
        first = self._survey.first.get(id_[:BASE_BYTES], last)
        return min(first, self._needs.first.get(id_, last))

    def plan(self) -> RepairPlan:
        survey, found = self._survey, self._survey.found
        leave = set(survey.damaged)
        ranges = list(survey.ranges)
        again = set()
        for records in found.records:
            for record in records:
                for i, member in enumerate(record.header.members):
                    place = (record.pack, record.offset, i)
                    if place in survey.damaged:
                        again.add(member.id)
                    elif member.id in self._lost or not self._leads(member.base):
                        leave.add(place)
                        end = record.offset + record.header.size
                        why = f"object {member.id.hex()[:10]} cannot be recovered"
                        ranges.append(DamagedRange(record.pack, record.offset, end, why))
        for id_ in self._added:
            found.entry_of[id_] = self._entry_for(id_)
        add = [EncodeRequest(id_, self._base(id_)) for id_ in self._added]
        healed = [self._healed(id_, source) for id_, source in self._added.items()]
        for id_ in sorted(again - self._added.keys() - self._lost):
            healed.append(self._healed(id_, "another record of it"))
        for pack in sorted({pack for pack, _ in survey.shared}):
            healed.append(Healed("region", f"pack {pack}", "the records that lie there"))
        specs = {id_: spec for id_, spec in self._needs.specs.items() if spec is not None}
        rewrite = RewritePlan(
            leave=leave,
            add=add,
            specs=specs,
            source=self._sources,
            records={(pack, at) for pack, at, _ in leave} | survey.shared,
        )
        lost = {id_ for id_ in self._lost if id_ in self._needs.specs}
        return RepairPlan(rewrite, healed, ranges, lost)

    def _leads(self, base: bytes) -> bool:
        """Whether a delta from this base can still be decoded."""
        meant = self._graph.resolve_prefix(base) if base else None
        return not base or (meant is not None and meant not in self._lost)

    def _base(self, id_: bytes) -> bytes | None:
        """The base of a known delta of the object, if the base is not lost and earlier."""
        for step in self._graph.steps(id_):
            base = self._graph.resolve_prefix(step.member.base) if step.member.base else None
            if (
                base is not None
                and base not in self._lost
                and self._entry_for(base) < self._entry_for(id_)
            ):
                return base
        return None

    def _healed(self, id_: bytes, source: str) -> Healed:
        kind = "manifest" if self._needs.specs.get(id_, b"") is None else "object"
        return Healed(kind, id_.hex(), source)


def _recoverable(survey: DamageSurvey, graph: SoundGraph, lost: set[bytes]) -> Reachability:
    """What sound records lead to without the objects in ``lost``.

    A base can be named only while a record of it is kept, so no delta leads back to others.
    """
    kept = [
        member
        for records in survey.found.records
        for record in records
        for i, member in enumerate(record.header.members)
        if (record.pack, record.offset, i) not in survey.damaged and member.id not in lost
    ]
    named = {member.id for member in kept}
    reached = Reachability()
    for member in kept:
        base = graph.resolve_prefix(member.base) if member.base else None
        if not member.base or (base is not None and base not in lost):
            reversible = base in named and not member.coding.transform
            reached.add(member.id, member.start, base, reversible=reversible)
    return reached


class Rebuilder:
    """Makes a lost manifest from a neighbour's in the history.

    Neighbouring versions differ mostly in the ids of their contents. Of each neighbour one
    candidate is made with the ids that the deltas stored beside the version give, and one with
    the files of the working folder (``on_disk``: the entry that committing a file would make,
    or None). A candidate counts only if its hash is the one that the commit names.
    """

    def __init__(self, survey: DamageSurvey, on_disk: Callable[[str], FileEntry | None]) -> None:
        self._survey = survey
        self._on_disk = on_disk
        self._files: dict[str, FileEntry | None] = {}

    def rebuild(
        self,
        wanted: ManifestId,
        entry_index: int,
        before: Sequence[Manifest],
        after: Mapping[int, Manifest],
    ) -> Manifest | None:
        """The manifest with this id, published by entry ``entry_index``; None if it is lost.

        ``before``: manifests of its parents; ``after``: of its children, by their entries.
        """
        for template in before:
            made = _replaced(
                template, self._ids(template, entry_index, dict(self._deltas(entry_index)))
            )
            if made.id == wanted:
                return made
        for child, template in after.items():
            back = {id_: base for base, id_ in self._deltas(child)}
            made = _replaced(template, self._ids(template, entry_index, back))
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

    def _deltas(self, entry_index: int) -> Iterator[tuple[bytes, bytes]]:
        """(base, object) of every delta of an entry."""
        for record in self._survey.found.records[entry_index]:
            for member in record.header.members:
                base = self._survey.found.resolve_prefix(member.base) if member.base else None
                if base is not None:
                    yield base, member.id

    def _ids(
        self, template: Manifest, entry_index: int, known: dict[bytes, bytes]
    ) -> dict[bytes, bytes]:
        """The version's ids by the template's.

        ``known`` comes from deltas. An object that entry ``entry_index`` stored in full takes the
        place of the template's of the same size, if there are as many of either.
        """
        sizes = _sizes(template)
        here = sizes.keys() | known.values()
        full = {
            member.id: member.nbytes
            for record in self._survey.found.records[entry_index]
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
