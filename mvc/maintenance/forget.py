"""``mvc forget``: deletes the states of versions. The commits, their ids and history stay.

``choose`` selects versions by name or by a rule. ``preview`` shows what would be deleted.
``forget`` records the selection as one journal entry. From then on, the states of these versions
cannot be read. The next ``gc`` deletes the objects (tensors and manifests) that only these versions
have. But if a rule selected a version, ``gc`` may retain objects that are bases of deltas.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from msgspec import Struct

from mvc.errors import DamagedData, RefConflict, WrongUsage
from mvc.ids import CommitId
from mvc.maintenance.collect import Collection, reachable
from mvc.maintenance.gc import DEFAULT_GRACE, cutoff_of, plan_deletion
from mvc.maintenance.graph import read
from mvc.maintenance.retention import Retention, Short, protected, recorded_since, select, too_few
from mvc.maintenance.rewrite_plan import encoding_policy, retry_on_rewrite
from mvc.model.commit import Commit
from mvc.model.statement import Tombstone
from mvc.model.tensor import TensorSpec
from mvc.repo.config import Config
from mvc.repo.history.log import in_range
from mvc.repo.lookup import availability, commits, manifests, refs
from mvc.repo.lookup.availability import all_in_use, needed_by
from mvc.repo.queries import drop_rows
from mvc.repo.revisions import Rev, resolve
from mvc.repo.statements.live import live_now
from mvc.repo.worktree.identify import holders
from mvc.store.journal.entries import Entry, StateMark
from mvc.store.journal.frames import Recorded
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.types import Progress


class Chosen(Struct, frozen=True):
    """``commits``: the versions to forget, newest first; may be empty.

    ``rules``: None if versions were named. ``already``: named versions that an earlier operation
    forgot by name. ``short``: the ``best`` rules that keep fewer versions than they ask for.
    ``queries_since_ns``: the time when recording of queries began; ``unqueried`` keeps all older
    versions. ``restored``: versions whose dropped weights count as stored again. ``number``: the
    number of the operation that forgot the versions, or None.
    """

    commits: tuple[Commit, ...]
    rules: Retention | None
    already: tuple[CommitId, ...] = ()
    short: tuple[Short, ...] = ()
    queries_since_ns: int | None = None
    restored: tuple[CommitId, ...] = ()
    number: int | None = None

    @property
    def named(self) -> bool:
        return self.rules is None

    @property
    def marks(self) -> dict[CommitId, bool]:
        """The argument ``forget`` of ``reachable``: maps each version to whether it was named."""
        return {commit.id: self.named for commit in self.commits}


def choose(store: Store, revs: Iterable[Rev] = (), rules: Retention | None = None) -> Chosen:
    """The versions that ``revs`` name, or those that ``rules`` select.

    A version forgotten by rule may be forgotten again by name. Raises RefConflict if HEAD is on a
    named version, or if the recipe of dropped weights needs a named version and no version that
    stays has the same weights. Rules skip versions that recipes need. Raises WrongUsage,
    UnknownRevision, UnknownTarget, UnknownMetric.
    """
    store.fresh()
    revs = list(revs)
    if bool(revs) == bool(rules):
        raise WrongUsage("either name versions or set rules")
    if rules:
        selected = select(store, rules)
        needed = needed_by(store, {commit.id for commit in selected})
        going = _sorted(commit for commit in selected if commit.id not in needed)
        since = recorded_since(store) if rules.unqueried else None
        short = too_few(store, rules, going)
        return Chosen(going, rules, short=short, queries_since_ns=since)
    ids = dict.fromkeys(id_ for rev in revs for id_ in _versions(store, rev))
    named = [commits.get(store.snapshot, id_) for id_ in ids]
    restored = tuple(mark.commit for mark in check_forgettable(store, named))
    already = tuple(commit.id for commit in named if _mark(store.snapshot, commit.id) is True)
    going = _sorted(c for c in named if c.id not in already)
    return Chosen(going, None, already, restored=restored)


def _versions(store: Store, rev: Rev) -> list[CommitId]:
    """The versions that ``rev`` names. ``A..B``: the versions reachable from B but not from A."""
    if isinstance(rev, str) and ".." in rev:
        return [commit.id for commit in in_range(store, rev)]
    return [resolve(store, rev)]


def forget(store: Store, config: Config, chosen: Chosen, *, reason: str = "") -> Recorded | None:
    """Forgets the chosen versions. Durable on return. Returns None if no version is left to forget.

    A version that a rule selected stays if a ref now names it, or if it went live meanwhile. Raises
    RefConflict if HEAD is on a named version.
    """
    if not chosen.commits:
        return None

    def make_entry() -> Entry:
        going = _still_going(store, chosen)
        now, author = store.clock.now_ns(), config.author
        if chosen.rules is not None:
            marks = tuple(StateMark(commit.id, "forgotten") for commit in going)
            return Entry("forget", now, chosen.rules.text, author, reason=reason, states=marks)
        stones = tuple(
            Tombstone(subject=stone.id, author=author, reason=reason, root=stone.root)
            for stone in going
        )
        restored = tuple(_restored_by(store, going))
        return Entry("forget", now, "by name", statements=stones, states=restored)

    try:
        done = store.publish(make_entry)
    except _NothingLeft:
        return None
    drop_rows(store, done.entry.forgets)
    return done


class _NothingLeft(Exception):
    """Every chosen version is needed now, or was forgotten meanwhile."""


def _still_going(store: Store, chosen: Chosen) -> list[Commit]:
    """The chosen versions that may still be forgotten. Call it under the journal's lock."""
    going = [c for c in chosen.commits if commits.find(store.snapshot, c.id) is not None]
    if chosen.rules is None:
        _refuse_head(store, going)
        going = [c for c in going if _mark(store.snapshot, c.id) is not True]
    else:
        stay = {*protected(store, chosen.rules), *needed_by(store, {c.id for c in going})}
        going = [c for c in going if c.id not in stay and _mark(store.snapshot, c.id) is None]
    if not going:
        raise _NothingLeft
    return going


def check_forgettable(store: Store, going: Sequence[Commit]) -> list[StateMark]:
    """Raises RefConflict for versions that cannot be forgotten by name.

    Returns the marks of ``_restored_by``.
    """
    _refuse_head(store, going)
    return _restored_by(store, going)


def _refuse_head(store: Store, going: Iterable[Commit]) -> None:
    if store.bare:
        return
    head = refs.head(store.fresh())
    if head.commit is not None and any(commit.id == head.commit for commit in going):
        raise RefConflict(
            f"HEAD is on {head.commit.short}: its state belongs to the working files",
            hint="commit or check out another version first",
        )


def _restored_by(store: Store, going: Iterable[Commit]) -> list[StateMark]:
    """Marks dropped weights as stored if their recipe needs a version in ``going``.

    This is possible if a version that stays has the same weights. Otherwise raises RefConflict.
    """
    marks: dict[CommitId, StateMark] = {}
    ids = {commit.id for commit in going}
    for id_, dependent in needed_by(store, ids).items():
        dropped = availability.dropped(store, dependent)
        if dropped is None or not _another_has(store, dropped, ids):
            raise RefConflict(
                f"{id_.short} is needed to retrain {dependent.short}, whose weights were dropped",
                hint=f"run 'mvc retrain {dependent.short} --trust-code' first to store them again",
            )
        marks[dependent] = StateMark(dependent, "stored", dropped.path)
    return list(marks.values())


def _another_has(store: Store, dropped: availability.Dropped, going: set[CommitId]) -> bool:
    """Whether a version that stays stores the same weights."""
    entry = manifests.of_commit(store, dropped.commit).by_path.get(dropped.path)
    if entry is None or not dropped.stored:
        return False
    return any(
        id_ not in {dropped.commit, *going} and not availability.dropped(store, id_, path)
        for id_, path in holders(store, entry)
    )


def _mark(snapshot: Snapshot, id_: CommitId) -> bool | None:
    """Whether a version was forgotten by name (True), by rule (False) or not at all (None)."""
    mark = availability.recorded_absence(snapshot, id_)
    return None if mark is None else mark.named


def _sorted(versions: Iterable[Commit]) -> tuple[Commit, ...]:
    return tuple(sorted(versions, key=lambda commit: (commit.time_ns, commit.id), reverse=True))


class ForgetPreview(Struct, frozen=True):
    """What ``forget`` would delete. ``tensors``: how many tensors.

    ``shared``: how many tensors stay because other versions have them. ``files``, ``shared_files``:
    the same numbers for files without tensors. Dropped weights do not count. ``same``: maps a
    chosen version to versions that stay and have the same content. ``live``: maps a chosen version
    to the targets on which it is live. ``collection``: what the next ``gc`` would do; None if the
    repository is damaged.
    """

    tensors: int
    shared: int
    files: int
    shared_files: int
    same: Mapping[CommitId, tuple[CommitId, ...]]
    live: Mapping[CommitId, tuple[str, ...]]
    collection: Collection | None


def preview(
    store: Store,
    config: Config,
    chosen: Chosen,
    *,
    grace: timedelta = DEFAULT_GRACE,
    progress: Progress | None = None,
) -> ForgetPreview:
    """What ``forget`` would delete. Raises Busy."""
    return retry_on_rewrite(
        store.snapshot, lambda: _preview(store, config, chosen, grace, progress=progress)
    )


def _preview(
    store: Store, config: Config, chosen: Chosen, grace: timedelta, progress: Progress | None
) -> ForgetPreview:
    graph = read(store, progress)
    tensors, files = dict[bytes, bytes](), dict[bytes, tuple[bytes, ...]]()
    dropped = graph.history.dropped_paths(commit.id for commit in chosen.commits)
    for commit in reversed(chosen.commits):  # oldest first: manifests are deltas
        with suppress(DamagedData):
            codings = [coding.step for coding in graph.codings(commit.manifest)]
            manifest = graph.contents.stream.load(commit.manifest, codings)
            left_out = dropped.get(commit.manifest, ())
            for entry in (entry for entry in manifest.all_entries if entry.path not in left_out):
                tensors.update((t.id, entry.contents[t.content].id) for t in entry.tensors)
                if not entry.tensors:
                    files[entry.content_id] = tuple(manifests.objects([entry]))
    collection: Collection | None = None
    same = dict[CommitId, tuple[CommitId, ...]]()
    blobs: Mapping[bytes, TensorSpec] = {}
    with suppress(DamagedData):
        cutoff, in_use = cutoff_of(store.now_ns(), grace), all_in_use(store)
        reach = reachable(graph, cutoff, forget=chosen.marks, in_use=in_use)
        blobs = reach.blobs
        same = {
            c.id: ids for c in chosen.commits if (ids := _versions_like(store, c, reach.states))
        }
        graph.refuse_damage()
        plan, _ = plan_deletion(store, encoding_policy(config), graph, reach, disk=store.disk_use())
        collection = plan.summary
    if store.fresh().generation != graph.generation:
        raise ConcurrentRewrite("the repository was rewritten while it was read")
    shared = sum(content in blobs for content in tensors.values())
    shared_files = sum(all(id_ in blobs for id_ in ids) for ids in files.values())
    live = live_now(store, reports=True)
    return ForgetPreview(
        tensors=len(tensors) - shared,
        shared=shared,
        files=len(files) - shared_files,
        shared_files=shared_files,
        same=same,
        live={c.id: tuple(live[c.id]) for c in chosen.commits if c.id in live},
        collection=collection,
    )


def _versions_like(
    store: Store, commit: Commit, among: Container[CommitId]
) -> tuple[CommitId, ...]:
    """The versions in ``among`` that have the content of ``commit``."""
    entries = map(store.snapshot.entry, store.snapshot.marked(commit.root[:8]))
    candidates = (
        candidate
        for recorded in entries
        for candidate in recorded.entry.commits
        if candidate.id in among
    )
    return tuple({c.id: None for c in candidates if _content(c) == _content(commit)})


def _content(commit: Commit) -> bytes:
    """Identifies the content of a version: by its root hash, or by its manifest if it has no
    tensors.
    """
    return commit.manifest if commit.root == manifests.EMPTY.root else commit.root
