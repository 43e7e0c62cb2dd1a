"""forget: delete the states of versions; their commits, ids and history stay.

Choosing (``choose``), saying what that frees (``preview``) and recording (``forget``) are
separate. The record is one journal
entry. From then on a forgotten state cannot be read, and the next ``gc`` deletes its bytes.
Versions are forgotten by name or by rule. Of a state forgotten by name ``gc`` leaves
nothing, not even objects that other deltas start from.
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

    ``rules`` is None if they were named. ``already``: named versions that were forgotten by
    name before. ``short``: ``best`` rules that keep fewer versions than they say.
    ``queries_since_ns``: with ``unqueried``, older versions stay (ns since 1970). ``restored``:
    versions that gave up weights which another one has; they have them again, because what they
    are trained from is to go. ``number``: the operation that forgot them; None if none did yet.
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
        """As ``reachable`` takes them."""
        return {commit.id: self.named for commit in self.commits}


def choose(store: Store, revs: Iterable[Rev] = (), rules: Retention | None = None) -> Chosen:
    """The versions that are named, or that ``rules`` select.

    A version forgotten by rule may be forgotten again by name. Raises WrongUsage,
    UnknownRevision, UnknownTarget, UnknownMetric; RefConflict for the version of HEAD, and for one
    that is needed to train another one again, unless a further version has the weights of that one:
    it then has them again. A rule passes over what a version without its weights needs.
    """
    store.fresh()
    revs = list(revs)
    if bool(revs) == bool(rules):
        raise WrongUsage("name versions or give rules, one of the two")
    if rules:
        selected = select(store, rules)
        stay = needed_by(store, {commit.id for commit in selected})
        going = _sorted(commit for commit in selected if commit.id not in stay)
        since = recorded_since(store) if rules.unqueried else None
        short = too_few(store, rules, going)
        return Chosen(going, rules, short=short, queries_since_ns=since)
    ids = dict.fromkeys(id_ for rev in revs for id_ in _versions(store, rev))
    found = [commits.get(store.snapshot, id_) for id_ in ids]
    kept = tuple(each.commit for each in check_forgettable(store, found))
    already = tuple(commit.id for commit in found if _mark(store.snapshot, commit.id) is True)
    going = _sorted(c for c in found if c.id not in already)
    return Chosen(going, None, already, restored=kept)


def _versions(store: Store, rev: Rev) -> list[CommitId]:
    """What ``rev`` names; ``A..B``: the versions of B without those of A."""
    if isinstance(rev, str) and ".." in rev:
        return [commit.id for commit in in_range(store, rev)]
    return [resolve(store, rev)]


def forget(store: Store, config: Config, chosen: Chosen, *, reason: str = "") -> Recorded | None:
    """Forgets the chosen versions; durable on return. None if there is nothing to do.

    Versions chosen by rule stay if a ref names them or they went live meanwhile. Raises
    RefConflict if HEAD is on a named version.
    """
    if not chosen.commits:
        return None

    def make() -> Entry:
        going = _still_going(store, chosen)
        now, author = store.clock.now_ns(), config.author
        if chosen.rules is not None:
            marks = tuple(StateMark(commit.id, "forgotten") for commit in going)
            return Entry("forget", now, chosen.rules.text, author, reason=reason, states=marks)
        stones = tuple(
            Tombstone(subject=each.id, author=author, reason=reason, root=each.root)
            for each in going
        )
        again = tuple(_kept_by(store, going))
        return Entry("forget", now, "by name", statements=stones, states=again)

    try:
        done = store.publish(make)
    except _NothingLeft:
        return None
    drop_rows(store, done.entry.forgets)
    return done


class _NothingLeft(Exception):
    """All chosen versions are needed by now, or forgotten already."""


def _still_going(store: Store, chosen: Chosen) -> list[Commit]:
    """The chosen versions that may still be forgotten; runs under the journal's lock."""
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

    Returns the marks of those that have their weights again because they are.
    """
    _refuse_head(store, going)
    return _kept_by(store, going)


def _refuse_head(store: Store, going: Iterable[Commit]) -> None:
    if store.bare:
        return
    at = refs.head(store.fresh())
    if at.commit is not None and any(commit.id == at.commit for commit in going):
        raise RefConflict(
            f"HEAD stands on {at.commit.short}: its state is that of the working files",
            hint="commit something else or switch away first",
        )


def _kept_by(store: Store, going: Iterable[Commit]) -> list[StateMark]:
    """Marks of versions that these are needed to train again, and whose weights another one has.

    Raises RefConflict for one whose weights no other has.
    """
    found: dict[CommitId, StateMark] = {}
    ids = {commit.id for commit in going}
    for id_, holder in needed_by(store, ids).items():
        gone = availability.dropped(store, holder)
        if gone is None or not _another_has(store, gone, ids):
            raise RefConflict(
                f"{id_.short} is needed to train {holder.short} again, whose weights were given up",
                hint=f"'mvc retrain {holder.short} --trust-code' stores them again first",
            )
        found[holder] = StateMark(holder, "stored", gone.path)
    return list(found.values())


def _another_has(store: Store, gone: availability.Dropped, going: set[CommitId]) -> bool:
    """Whether a version that stays has these weights, too, and has not given them up."""
    entry = manifests.of_commit(store, gone.commit).by_path.get(gone.path)
    if entry is None or not gone.stored:
        return False
    return any(
        id_ not in {gone.commit, *going} and not availability.dropped(store, id_, path)
        for id_, path in holders(store, entry)
    )


def _mark(snapshot: Snapshot, id_: CommitId) -> bool | None:
    """Whether a version was forgotten by name (True), by rule (False) or not at all (None)."""
    mark = availability.gone(snapshot, id_)
    return None if mark is None else mark.named


def _sorted(found: Iterable[Commit]) -> tuple[Commit, ...]:
    return tuple(sorted(found, key=lambda commit: (commit.time_ns, commit.id), reverse=True))


class ForgetPreview(Struct, frozen=True):
    """``tensors`` would be deleted; ``shared`` ones stay, because other versions have them.
    Weights that a version gave up are no tensors of it.
    Likewise ``files`` and ``shared_files`` for files without tensors.

    ``same``: by chosen version, versions that stay and have the same content. ``live``: by
    chosen version, the targets it is live on. ``collection``: what the next ``gc`` would do,
    None if the repository is damaged; then the counts hold for what is sound.
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
    """Reads the graph, and samples the tensors that would be encoded again. Raises Busy."""
    return retry_on_rewrite(
        store.snapshot, lambda: _preview(store, config, chosen, grace, progress=progress)
    )


def _preview(
    store: Store, config: Config, chosen: Chosen, grace: timedelta, progress: Progress | None
) -> ForgetPreview:
    found = read(store, progress)
    tensors, files = dict[bytes, bytes](), dict[bytes, tuple[bytes, ...]]()
    dropped = found.history.given_up(commit.id for commit in chosen.commits)
    for commit in reversed(chosen.commits):  # each near its base
        with suppress(DamagedData):
            codings = [coding.step for coding in found.codings(commit.manifest)]
            manifest = found.contents.stream.load(commit.manifest, codings)
            given_up = dropped.get(commit.manifest, ())
            for each in (each for each in manifest.all_entries if each.path not in given_up):
                tensors.update((t.id, each.contents[t.content].id) for t in each.tensors)
                if not each.tensors:
                    files[each.content_id] = tuple(manifests.objects([each]))
    collection: Collection | None = None
    same = dict[CommitId, tuple[CommitId, ...]]()
    blobs: Mapping[bytes, TensorSpec] = {}
    with suppress(DamagedData):
        cutoff, in_use = cutoff_of(store.now_ns(), grace), all_in_use(store)
        reach = reachable(found, cutoff, forget=chosen.marks, in_use=in_use)
        blobs = reach.blobs
        same = {c.id: ids for c in chosen.commits if (ids := _same(store, c, reach.states))}
        found.refuse_damage()
        plan, _ = plan_deletion(store, encoding_policy(config), found, reach, disk=store.disk_use())
        collection = plan.summary
    if store.fresh().generation != found.generation:
        raise ConcurrentRewrite("what is missing may be data that others have moved")
    shared = sum(content in blobs for content in tensors.values())
    shared_files = sum(all(id_ in blobs for id_ in each) for each in files.values())
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


def _same(store: Store, commit: Commit, among: Container[CommitId]) -> tuple[CommitId, ...]:
    """The versions ``among`` these that have the content of this one."""
    entries = map(store.snapshot.entry, store.snapshot.marked(commit.root[:8]))
    every = (each for recorded in entries for each in recorded.entry.commits if each.id in among)
    return tuple({c.id: None for c in every if _content(c) == _content(commit)})


def _content(commit: Commit) -> bytes:
    """Identifies the content of a version; without tensors by every byte of its files."""
    return commit.manifest if commit.root == manifests.EMPTY.root else commit.root
