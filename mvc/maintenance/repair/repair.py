"""Repair: restore what another copy or path gives back, put the rest into quarantine.

What opening needs (the journal's copies, ``format``) is repaired before, by ``journal``.
Objects are repaired by a rewrite that keeps only sound records. It takes effect in one step,
so an interruption leaves the repository as it was. A repair that finds nothing changes nothing.

Afterwards every record in the packs can be decoded. An object that cannot be recovered is
not kept in part, so that committing the same content again stores it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache, partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.ids import BlobId, CommitId, ManifestId
from mvc.maintenance.fsck.fsck import check, fsck, rebuild_index
from mvc.maintenance.quarantine import DamagedRange, keep
from mvc.maintenance.repair.damage import DamageSurvey, SoundGraph, survey_damage
from mvc.maintenance.repair.sources import Sources, WorkingFiles, folder_of, open_other
from mvc.maintenance.report import Healed, Quarantined, Repaired
from mvc.maintenance.rewrite_plan import (
    EncodeRequest,
    RewritePlan,
    check_writable,
    execute,
    retry_on_rewrite,
)
from mvc.maintenance.storage_graph import Piece, Reachability
from mvc.model.commit import Commit
from mvc.model.hashing import pieces
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.repo.lookup.manifests import objects
from mvc.store.journal.entries import Entry, Relink
from mvc.store.packs.reader import PACK_HEADER, pack_path
from mvc.store.packs.records import BASE_BYTES, BLOB, MANIFEST, Member
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.recovery.recover import Recovery
from mvc.store.snapshot import INDEX, PACKS
from mvc.types import Progress

__all__ = ["folder_of", "repair"]

_ROUNDS = 8
_RELINKS = 10_000  # corrections in one entry of the journal


def repair(
    context: Context,
    *,
    full: bool = False,
    other: Path | None = None,
    progress: Progress | None = None,
) -> Repaired:
    """Repairs an open repository and checks it again.

    ``other``: the folder (see ``folder_of``) of a repository that may have what is lost
    here; nothing is written there. ``full``: objects that decode to wrong bytes are repaired
    as well. Raises ReadOnly, Busy, IoFailed; after IoFailed nothing was put into quarantine.
    """
    store = context.store
    check_writable(context, "repaired")
    work = _Repair(context, other, progress)
    context.fresh()
    if store.snapshot.rebuilt:
        work.healed.append(Healed("index", INDEX, "journal and packs"))
    work.pack_heads()
    work.rounds()
    report, journal = check(context, full=full, progress=progress)
    if work.relink(journal.relinks):
        report, _ = check(context, full=full, progress=progress)
    wrong = {bytes.fromhex(p.object) for p in report.problems if p.kind == "content"}
    if wrong:
        work.rounds(wrong)
        report = fsck(context, full=full, progress=progress)
    problems = tuple(p for p in report.problems if p.kind != "index")
    if len(problems) < len(report.problems):
        rebuild_index(context)
        work.healed.append(Healed("index", INDEX, "journal and packs"))
        report = replace(report, problems=problems)
    freed = store.sweep()
    return Repaired(tuple(work.healed), tuple(work.quarantined), freed, report)


class _Repair(Struct):
    """One repair, and what it did so far."""

    context: Context
    other: Path | None
    progress: Progress | None
    healed: list[Healed] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)

    def pack_heads(self) -> None:
        """Rewrites damaged first bytes of packs, which are the same in every pack."""
        store = self.context.store
        named = {
            region.pack
            for recorded in store.snapshot.entries()
            for region in recorded.entry.regions
            if region.length
        }
        for pack in sorted(named):
            path = pack_path(store.folder / PACKS, pack)
            identity = store.fs.stat(path)
            if identity is None or identity.size < len(PACK_HEADER):
                continue
            with store.fs.open_write(path) as file:
                if file.read(0, len(PACK_HEADER)) != PACK_HEADER:
                    file.write_at(0, PACK_HEADER)
                    file.sync()
                    self.healed.append(Healed("pack", path.name, "what every pack begins with"))

    def relink(self, relinks: Sequence[Relink]) -> bool:
        """Records the right predecessors of deployments, proven by the order of the journal."""
        store = self.context.store
        for at in range(0, len(relinks), _RELINKS):
            part = tuple(relinks[at : at + _RELINKS])
            store.publish(partial(self._relinking, part))
            self.healed += [
                Healed("deployment", f"{r.target} (operation {r.sequence})", "the journal's order")
                for r in part
            ]
        return bool(relinks)

    def _relinking(self, relinks: tuple[Relink, ...]) -> Entry:
        now = self.context.store.clock.now_ns()
        return Entry("relink", now, f"{len(relinks)} corrected", relinks=relinks)

    def rounds(self, wrong: Collection[bytes] = ()) -> None:
        """Repeats while objects are lost: one round may restore the base of a lost object, or put
        into quarantine a record that the next one reads.
        """
        for _ in range(_ROUNDS):
            plan, quarantined = retry_on_rewrite(self.context, partial(self._round, wrong))
            self.healed += plan.healed
            self.quarantined += quarantined
            if not plan.lost or not (plan.healed or quarantined):
                return
            wrong = ()

    def _round(self, wrong: Collection[bytes]) -> tuple[_RepairPlan, list[Quarantined]]:
        context, store = self.context, self.context.store
        with ExitStack() as held:
            survey = survey_damage(store.snapshot, self.progress)
            if survey.ranges and context.fresh().generation != survey.found.generation:
                raise ConcurrentRewrite("what looks like damage may be data that others have moved")
            for record, place, member in survey.found.all_members() if wrong else ():
                if member.id in wrong:
                    survey.damaged.add(place)
                    why = f"object {member.id.hex()[:10]} decodes to other bytes"
                    survey.give_up(place, record.end, why)
            plan = self._plan(survey, held)
            if not plan.rewrite and not plan.ranges:
                return plan, []
            quarantined = keep(store.fs, store.folder, plan.ranges)
            note = f"{len(plan.healed)} objects healed, {len(quarantined)} records in quarantine"
            execute(
                context,
                survey.found,
                plan.rewrite,
                lambda: Entry("repair", store.clock.now_ns(), note),
                progress=self.progress,
            )
            return plan, quarantined

    def _plan(self, survey: DamageSurvey, held: ExitStack) -> _RepairPlan:
        store = self.context.store
        graph = SoundGraph(store.snapshot, survey)
        held.callback(graph.packs.close)
        other = None if self.other is None else held.enter_context(closing(open_other(self.other)))
        own = Recovery(store.snapshot, graph, store.pool)
        own.packs = graph.packs
        working = WorkingFiles(self.context)
        held.callback(working.close)
        sources = Sources(own, store.recovery, working, other)
        needs = _needs_of(survey, graph, sources, working)
        return _Planning(survey, graph, needs, sources).plan()


_Needs = dict[bytes, tuple[TensorSpec | None, int]]
"""The objects of versions by id, in the order of versions: the spec (None for a manifest), and
the entry of the first version with the object."""


class _RepairPlan(Struct):
    """``lost``: objects that versions need and no source has. ``ranges`` go to quarantine.

    With damaged ranges alone the plan is executed as well: the new journal omits them.
    """

    rewrite: RewritePlan
    healed: list[Healed]
    ranges: list[DamagedRange]
    lost: set[bytes]


def _needs_of(
    survey: DamageSurvey, graph: SoundGraph, sources: Sources, working: WorkingFiles
) -> _Needs:
    """All objects of all states that are not forgotten and whose manifests can be recovered.

    Names every object in ``graph`` and every file in ``working``.
    """
    needs: _Needs = {}
    entries = survey.found.entries
    forgotten = {each.commit for recorded in entries for each in recorded.entry.forgotten}
    given_up = survey.found.history.given_up(survey.found.history.numbers.keys() - forgotten)
    holders: dict[ManifestId, int] = {}
    commits: dict[CommitId, tuple[Commit, int]] = {}
    for entry_index, recorded in enumerate(entries):
        for commit in recorded.entry.commits:
            if commit.id not in forgotten:
                graph.name(commit.manifest)
                holders.setdefault(commit.manifest, entry_index)
                commits[commit.id] = commit, entry_index

    def take(id_: ManifestId) -> bool:
        """Adds a manifest and its objects; False if the manifest is lost."""
        manifest = sources.load(id_)
        if manifest is not None:
            for blob, spec in objects(manifest, given_up.get(id_, ())).items():
                graph.name(blob)
                needs.setdefault(blob, (spec, holders[id_]))
            working.names.update((entry.path, None) for entry in manifest.entries)
        needs.setdefault(id_, (None, holders[id_]))
        return manifest is not None

    lost = [id_ for id_ in holders if not take(id_)]
    if lost:
        _rebuild(_Rebuilder(survey, working), sources, commits, lost)
        for id_ in lost:
            take(id_)
    return needs


def _rebuild(
    rebuilder: _Rebuilder,
    sources: Sources,
    commits: dict[CommitId, tuple[Commit, int]],
    lost: list[ManifestId],
) -> None:
    """Makes lost manifests from those of parents and children, while that finds any."""
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
            for made in rebuilder.candidates(entry_index, olders, newers):
                if made.id == commit.manifest:
                    sources.adopt(made)
                    break
            if sources.load(commit.manifest) is not None:
                waiting.remove((commit, entry_index))


class _Planning:
    """Decides for every object what to do; ``sources`` remembers where each comes from."""

    def __init__(
        self, survey: DamageSurvey, graph: SoundGraph, needs: _Needs, sources: Sources
    ) -> None:
        self._survey = survey
        self._graph = graph
        self._needs = needs
        self._sources = sources
        self._pieces: dict[bytes, set[int]] = {}
        # By the first bytes of an id, the earliest entry that stores the object or names it as a
        # base; a new record of it belongs there.
        self._first: dict[bytes, int] = {}
        self._joint: set[bytes] = set()
        for record, place, member in survey.found.all_members():
            if record.header.group or (member.kind == MANIFEST and len(record.header.members) > 1):
                self._joint.add(member.id)
            for prefix in filter(None, (member.id[:BASE_BYTES], member.base)):
                self._first.setdefault(prefix, record.entry_index)
            if place not in survey.damaged:
                self._pieces.setdefault(member.id, set()).add(member.start)
        for id_, (spec, _) in needs.items():
            starts = [0] if spec is None else [start for start, _ in pieces(spec)]
            self._pieces.setdefault(id_, set()).update(starts)
        self._added: dict[bytes, str] = {}
        self._lost: set[bytes] = set()

    def _settle(self) -> None:
        """Repeats until every object is reached, added or lost.

        A record may have to be taken apart. Then the objects of a group, and a manifest that lies
        beside blobs, are encoded again, so they must be readable in this round: an added object
        that leads to one is not enough. Such an object may count as lost until the next round,
        which finds its record in the quarantine.
        """
        order = sorted(self._pieces, key=self._entry_for)
        before = -1
        while before != len(self._lost):
            before = len(self._lost)
            sound = self._recoverable()
            reached = sound.copy()
            reached.reach(self._all_pieces(self._added))
            for id_ in order:
                leads = sound if id_ in self._joint else reached
                if id_ in self._lost or id_ in self._added:
                    continue
                if leads.has_all(self._all_pieces([id_])):
                    continue
                source = None
                if id_ in self._needs:
                    source = self._sources.find(id_, self._needs[id_][0])
                if source is None:
                    self._lost.add(id_)
                else:
                    self._added[id_] = source
                    reached.reach(self._all_pieces([id_]))
            self._lost |= self._stranded()

    def _stranded(self) -> set[bytes]:
        """Objects that no version needs, in groups that are taken apart.

        They would have to be encoded again, but only versions know their dtype and shape.
        """
        found: set[bytes] = set()
        for records in self._survey.found.records:
            for record in records:
                if not record.header.group:
                    continue
                stay = {
                    member.id
                    for place, member in record.members()
                    if place not in self._survey.damaged
                    and member.id not in self._lost
                    and (not member.base or self._known_base(member.base) is not None)
                }
                if len(stay) < len(record.header.members):
                    found |= stay - self._needs.keys()
        return found

    def _recoverable(self) -> Reachability:
        """What sound records lead to without lost objects.

        A base can be named only while a record of it is kept, so no delta leads back to others.
        """
        kept = [
            member
            for _, place, member in self._survey.found.all_members()
            if place not in self._survey.damaged and member.id not in self._lost
        ]
        named = {member.id for member in kept}
        reached = Reachability()
        for member in kept:
            base = self._known_base(member.base)
            if base is not None or not member.base:
                reversible = base in named and not member.coding.forward_only
                reached.add(member.id, member.start, base, reversible=reversible)
        return reached

    def _known_base(self, prefix: bytes) -> bytes | None:
        """The id of a base that is not lost; None for a full record, too."""
        base = self._graph.resolve_prefix(prefix) if prefix else None
        return None if base in self._lost else base

    def _all_pieces(self, ids: Iterable[bytes]) -> list[Piece]:
        return [(id_, at) for id_ in ids for at in self._pieces[id_]]

    def _entry_for(self, id_: bytes) -> int:
        """The entry for a new record of an object: no earlier entry has a delta from it."""
        last = len(self._survey.found.entries) - 1
        first = self._first.get(id_[:BASE_BYTES], last)
        return min(first, self._needs[id_][1] if id_ in self._needs else last)

    def plan(self) -> _RepairPlan:
        self._settle()
        survey, found = self._survey, self._survey.found
        leave = set(survey.damaged)
        again = set()
        for record, place, member in found.all_members():
            if place in survey.damaged:
                again.add(member.id)
            elif member.id in self._lost or (member.base and not self._known_base(member.base)):
                leave.add(place)
                survey.give_up(
                    place, record.end, f"object {member.id.hex()[:10]} cannot be recovered"
                )
        healed = [self._healed(id_, source) for id_, source in self._added.items()]
        for id_ in sorted(again - self._added.keys() - self._lost):
            healed.append(self._healed(id_, "another record of it"))
        for pack in sorted({pack for pack, _ in survey.shared}):
            healed.append(Healed("region", f"pack {pack}", "the records that lie there"))
        rewrite = RewritePlan(
            leave=leave,
            add=[EncodeRequest(id_, self._base(id_), self._entry_for(id_)) for id_ in self._added],
            specs={id_: spec for id_, (spec, _) in self._needs.items() if spec is not None},
            source=self._sources,
            records={place[:2] for place in leave} | survey.shared,
        )
        return _RepairPlan(rewrite, healed, survey.ranges, self._lost & self._needs.keys())

    def _base(self, id_: bytes) -> bytes | None:
        """The base of a known delta of the object, if the base is not lost and earlier."""
        for step in self._graph.steps(id_):
            base = self._known_base(step.member.base)
            if base is not None and self._entry_for(base) < self._entry_for(id_):
                return base
        return None

    def _healed(self, id_: bytes, source: str) -> Healed:
        kind = "manifest" if id_ in self._needs and self._needs[id_][0] is None else "object"
        return Healed(kind, id_.hex(), source)


class _Rebuilder:
    """Makes a lost manifest from a neighbour's in the history.

    Neighbouring versions differ mostly in the ids of their contents. Of each neighbour one
    candidate is made with the ids that the deltas stored beside the version give, and one with
    the files of the working folder. A candidate counts only if its hash is the one that the
    commit names.
    """

    def __init__(self, survey: DamageSurvey, working: WorkingFiles) -> None:
        self._found = survey.found
        self._on_disk: Callable[[str], FileEntry | None] = cache(working.entry)

    def candidates(
        self, entry_index: int, before: Sequence[Manifest], after: Mapping[int, Manifest]
    ) -> Iterator[Manifest]:
        """Manifests that entry ``entry_index`` may have published.

        ``before``: manifests of its parents; ``after``: of its children, by their entries.
        """
        for template in before:
            known = dict(self._deltas(entry_index))
            yield _replaced(template, self._ids(template, entry_index, known))
        for child, template in after.items():
            back = {id_: base for base, id_ in self._deltas(child)}
            yield _replaced(template, self._ids(template, entry_index, back))
        for template in (*before, *after.values()):
            yield Manifest(self._on_disk(entry.path) or entry for entry in template.all_entries)

    def _members(self, entry_index: int) -> Iterator[Member]:
        for record in self._found.records[entry_index]:
            yield from record.header.members

    def _deltas(self, entry_index: int) -> Iterator[tuple[bytes, bytes]]:
        """(base, object) of every delta of an entry."""
        for member in self._members(entry_index):
            if (base := self._found.base_of(member)) is not None:
                yield base, member.id

    def _ids(
        self, template: Manifest, entry_index: int, known: dict[bytes, bytes]
    ) -> dict[bytes, bytes]:
        """The version's ids by the template's.

        ``known`` comes from deltas. An object that entry ``entry_index`` stored in full takes the
        place of the template's of the same size, if there are as many of either.
        """
        sizes = {id_: spec.nbytes for id_, spec in objects(template).items()}
        here = sizes.keys() | known.values()
        full = {
            member.id: member.nbytes
            for member in self._members(entry_index)
            if member.kind == BLOB and not member.base and member.id not in here
        }
        made = dict(known)
        for size in set(full.values()):
            new = [id_ for id_, nbytes in full.items() if nbytes == size]
            old = [id_ for id_, nbytes in sizes.items() if nbytes == size and id_ not in known]
            if len(new) == len(old):
                made.update(zip(old, new, strict=True))
        return made


def _replaced(template: Manifest, ids: Mapping[bytes, bytes]) -> Manifest:
    entries = []
    for entry in template.all_entries:
        contents = tuple(replace(c, id=BlobId(ids.get(c.id, c.id))) for c in entry.contents)
        skeleton = entry.skeleton and BlobId(ids.get(entry.skeleton, entry.skeleton))
        tensors = tuple(
            each if each.view is not None else replace(each, id=contents[each.content].id)
            for each in entry.tensors
        )
        entries.append(replace(entry, contents=contents, skeleton=skeleton, tensors=tensors))
    return Manifest(entries)
