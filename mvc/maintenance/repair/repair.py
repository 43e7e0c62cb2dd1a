"""``mvc fsck --repair``: restores damaged objects, and moves damaged bytes to a quarantine folder.

An object is a tensor or a manifest (the list of a version's files). Objects are stored in records
of pack files. The repair writes new packs that contain only sound records, and restores objects
from other deltas, another repository or the working files. If an object cannot be recovered, all
its records are removed. Then a later commit of the same content stores the object again. If the
writing is interrupted, the repository is unchanged.

Before this, the module ``journal`` repairs the files that are needed to open the repository.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from mvc.maintenance.fsck.fsck import check, fsck, rebuild_index
from mvc.maintenance.fsck.journal import Relinks
from mvc.maintenance.graph import read_records
from mvc.maintenance.quarantine import keep
from mvc.maintenance.repair.damage import SoundGraph, survey_damage
from mvc.maintenance.repair.plan import RepairPlan, needs_of, plan_repair
from mvc.maintenance.repair.sources import folder_of, object_sources
from mvc.maintenance.report import Healed, Quarantined, Repaired
from mvc.maintenance.rewrite_plan import RewritePlan, encoding_policy, retry_on_rewrite, rewrite
from mvc.repo.config import Config
from mvc.store.journal.entries import Entry
from mvc.store.packs.reader import PACK_HEADER, pack_path
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.snapshot import INDEX, PACKS
from mvc.store.store import Store
from mvc.store.writing.full_or_delta import Policy
from mvc.types import Progress

__all__ = ["folder_of", "repair"]

_ROUNDS = 8
_INDEX_HEALED = Healed("index", INDEX, "journal and packs")


def repair(
    store: Store,
    config: Config,
    *,
    full: bool = False,
    other: Path | None = None,
    progress: Progress | None = None,
) -> Repaired:
    """Repairs an open repository and checks it again.

    ``other``: the folder (see ``folder_of``) of another repository, from which lost objects are
    read, and which is never changed. ``full``: decode all objects, to find and repair wrong bytes
    that match their checksum. Raises ReadOnly, Busy, IoFailed. After IoFailed nothing was put into
    quarantine.
    """
    store.check_writable("repaired")
    store.fresh()
    healed = [*([_INDEX_HEALED] if store.snapshot.rebuilt else ()), *_pack_heads(store)]
    objects, quarantined = _heal_objects(store, config, other, progress=progress)
    healed += objects
    report, journal = check(store, full=full, progress=progress)
    if journal.relinks:
        attempt = partial(_relink, store, encoding_policy(config), journal.relinks)
        healed += retry_on_rewrite(store.snapshot, attempt)
        report, _ = check(store, full=full, progress=progress)
    wrong = {bytes.fromhex(p.object) for p in report.problems if p.kind == "content"}
    if wrong:
        objects, moved = _heal_objects(store, config, other, wrong, progress=progress)
        healed, quarantined = [*healed, *objects], [*quarantined, *moved]
        report = fsck(store, full=full, progress=progress)
    problems = tuple(p for p in report.problems if p.kind != "index")
    if len(problems) < len(report.problems):
        rebuild_index(store)
        healed.append(_INDEX_HEALED)
        report = replace(report, problems=problems)
    return Repaired(tuple(healed), tuple(quarantined), store.sweep(), report)


def _pack_heads(store: Store) -> Iterator[Healed]:
    """Rewrites damaged headers of packs. All packs have the same header."""
    regions = (region for recorded in store.snapshot.entries() for region in recorded.entry.regions)
    for pack in sorted({region.pack for region in regions if region.length}):
        path = pack_path(store.folder / PACKS, pack)
        info = store.fs.stat(path)
        if info is None or info.size < len(PACK_HEADER):
            continue
        with store.fs.open_write(path) as file:
            if file.read(0, len(PACK_HEADER)) != PACK_HEADER:
                file.write_at(0, PACK_HEADER)
                file.sync()
                yield Healed("pack", path.name, "the header of every pack")


def _relink(store: Store, policy: Policy, relinks: Relinks) -> list[Healed]:
    """Rewrites the journal so that each statement names the right predecessor.

    A statement is, for example, a deployment or an annotation. Its predecessor is the previous
    statement of the journal on the same topic, such as the same target.
    """
    graph = read_records(store.snapshot)
    edits: dict[int, Entry | None] = {}
    for position, recorded in enumerate(graph.entries):
        if corrected := relinks.get(recorded.sequence):
            rows = enumerate(recorded.entry.previous)
            previous = tuple(corrected.get(index, before) for index, before in rows)
            edits[position] = replace(recorded.entry, previous=previous)
    make_entry = partial(Entry, "repair", store.clock.now_ns(), f"{len(edits)} corrected")
    rewrite(store, policy, RewritePlan(graph, edits=edits), operation=make_entry)
    return [
        Healed("statement", f"operation {sequence}", "the journal's order") for sequence in relinks
    ]


def _heal_objects(
    store: Store,
    config: Config,
    other: Path | None,
    wrong: Collection[bytes] = (),
    progress: Progress | None = None,
) -> tuple[list[Healed], list[Quarantined]]:
    """Repairs objects in several rounds.

    The next round may use a base that a round restored, or a record that it put into quarantine.
    ``wrong``: ids of objects that decode to other bytes than were committed.
    """
    healed: list[Healed] = []
    quarantined: list[Quarantined] = []
    for number in range(_ROUNDS):
        wrong_now = () if number else wrong
        attempt = partial(_heal_once, store, config, other, wrong=wrong_now, progress=progress)
        plan, moved = retry_on_rewrite(store.snapshot, attempt)
        healed += plan.healed
        quarantined += moved
        if not plan.lost or not (plan.healed or moved):
            break
    return healed, quarantined


def _heal_once(
    store: Store,
    config: Config,
    other: Path | None,
    wrong: Collection[bytes],
    *,
    progress: Progress | None,
) -> tuple[RepairPlan, list[Quarantined]]:
    survey = survey_damage(store.snapshot, wrong, progress)
    if survey.ranges and store.fresh().generation != survey.objects.generation:
        raise ConcurrentRewrite("the repository was rewritten while it was read")
    graph = SoundGraph(store.snapshot, survey)
    with object_sources(store, graph, other) as sources:
        needs = needs_of(survey.objects, graph, sources)
        plan = plan_repair(survey, graph, needs, sources)
        if not plan.rewrite and not plan.ranges:
            return plan, []
        quarantined = keep(store.fs, store.folder, plan.ranges)
        note = f"{len(plan.healed)} objects healed, {len(quarantined)} records in quarantine"
        rewrite(
            store, encoding_policy(config), plan.rewrite,
            operation=lambda: Entry("repair", store.clock.now_ns(), note), progress=progress,
        )  # fmt: skip
        return plan, quarantined
