"""Repair: restore what another copy or path gives back, put the rest into quarantine.

What opening needs (the journal's copies, ``format``) is repaired before, by ``journal``.
Objects are repaired by a rewrite that keeps only sound records. It takes effect in one step,
so an interruption leaves the repository as it was. A repair that finds nothing changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from mvc.repo.context import Context, Progress
from mvc.repo.fsck.fsck import check, fsck, rebuild_index
from mvc.repo.maintenance.quarantine import DamagedRange, keep
from mvc.repo.maintenance.report import FsckReport, Healed, Quarantined, Repaired
from mvc.repo.maintenance.rewrite_plan import check_writable, execute, retry_on_rewrite
from mvc.repo.repair.damage import DamageSurvey, survey_damage
from mvc.repo.repair.paths import SoundGraph, SoundRecovery
from mvc.repo.repair.plan import RepairPlan, make_plan, needs_of
from mvc.repo.repair.sources import OtherRepository, Sources, WorkingFiles, folder_of
from mvc.store.journal.entries import Entry, Relink
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PACK_HEADER, pack_path
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.snapshot import INDEX, PACKS

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
    report = _index(context, work, report)
    freed = store.sweep()
    return Repaired(tuple(work.healed), tuple(work.quarantined), freed, report)


def _index(context: Context, work: _Repair, report: FsckReport) -> FsckReport:
    """Rebuilds the index if it is damaged."""
    problems = tuple(p for p in report.problems if p.kind != "index")
    if len(problems) == len(report.problems):
        return report
    rebuild_index(context)
    work.healed.append(Healed("index", INDEX, "journal and packs"))
    return replace(report, problems=problems)


@dataclass
class _Repair:
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
            note = f"{len(part)} corrected"

            def make(part: tuple[Relink, ...] = part, note: str = note) -> Entry:
                return Entry("relink", store.clock.now_ns(), note, relinks=part)

            store.publish(make)
            self.healed += [
                Healed("deployment", f"{r.target} (operation {r.sequence})", "the journal's order")
                for r in part
            ]
        return bool(relinks)

    def rounds(self, wrong: Collection[bytes] = ()) -> None:
        """Repeats while objects are lost: one round may restore the base of a lost object."""
        for _ in range(_ROUNDS):
            plan = self._round(wrong)
            if not plan.healed or not plan.lost:
                return
            wrong = ()

    def _round(self, wrong: Collection[bytes]) -> RepairPlan:
        done: list[tuple[RepairPlan, list[Quarantined]]] = []

        def attempt() -> Recorded | None:
            with ExitStack() as held:
                found = survey_damage(self.context.store.snapshot, self.progress)
                if found.ranges and self.context.fresh().generation != found.found.generation:
                    raise ConcurrentRewrite(
                        "what looks like damage may be data that others have moved"
                    )
                _exclude(found, wrong)
                plan = self._plan(found, held)
                done[:] = [(plan, [])]
                if not plan.needed:
                    return None
                return self._execute(found, plan, done)

        retry_on_rewrite(self.context, attempt)
        plan, quarantined = done[0]
        self.healed += plan.healed
        self.quarantined += quarantined
        return plan

    def _plan(self, found: DamageSurvey, held: ExitStack) -> RepairPlan:
        context, store = self.context, self.context.store
        graph = SoundGraph(store.snapshot, found)
        held.callback(graph.close)
        other = (
            None if self.other is None else held.enter_context(closing(OtherRepository(self.other)))
        )
        own = SoundRecovery(graph, store.pool)
        working = WorkingFiles(store.fs, context.root, [])
        held.callback(working.close)
        sources = Sources(own, store.recovery, working, other)
        needs = needs_of(found, graph, sources)
        working.names += needs.paths
        return make_plan(found, graph, needs, sources)

    def _execute(
        self,
        found: DamageSurvey,
        plan: RepairPlan,
        done: list[tuple[RepairPlan, list[Quarantined]]],
    ) -> Recorded:
        store = self.context.store
        quarantined = keep(store.fs, store.folder, plan.ranges)
        note = f"{len(plan.healed)} objects healed, {len(quarantined)} records in quarantine"
        recorded = execute(
            self.context,
            found.found,
            plan.rewrite,
            lambda: Entry("repair", store.clock.now_ns(), note),
            progress=self.progress,
        )
        done[:] = [(plan, quarantined)]
        return recorded


def _exclude(found: DamageSurvey, wrong: Collection[bytes]) -> None:
    """Marks every coding of these objects as damaged, because they decode to wrong bytes."""
    for records in found.found.records if wrong else ():
        for record in records:
            for i, member in enumerate(record.header.members):
                if member.id in wrong:
                    found.damaged.add((record.pack, record.offset, i))
                    end = record.offset + record.header.size
                    why = f"object {member.id.hex()[:10]} decodes to other bytes"
                    found.ranges.append(DamagedRange(record.pack, record.offset, end, why))
