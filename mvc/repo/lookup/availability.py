"""Whether what a version holds can be read: every command asks this here.

The state of a version is kept or forgotten. Of a state that is kept, the contents of a file are
stored, or made again by a recipe for as long as a block runs, or given up and gone. The newest mark
of a version says whether it gave up the weights at a path, or stored them again; its other files,
its manifest and what it carries are stored in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from typing import Literal, TypeAlias

from msgspec import Struct

from mvc.errors import DamagedData, StateForgotten, WeightsDropped
from mvc.ids import CommitId, ManifestId
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.statement import ReplayProof, Tombstone
from mvc.names import RECIPE
from mvc.repo.lookup import commits
from mvc.repo.lookup.refs import BRANCH, HEAD
from mvc.store.journal.entries import StateMark
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.times import format_time

_NEAR = 64  # versions back in which a state is looked for that a delta may start from
GONE = "its commit is still shown by 'mvc log'; what it held is gone"


class Stored(Struct, frozen=True):
    """The state of a version is in this repository."""


class Dropped(Struct, frozen=True):
    """The weights at ``path`` were given up at ``time_ns``; a replay makes them from ``base`` in
    about ``seconds``: None and 0 if no replay of the recipe is known.

    ``proven_ns``: when a replay last made them, None if none did; ``where`` it ran. ``stored``:
    they can still be read, because another version has them or gc has not run.
    """

    commit: CommitId
    path: str
    base: CommitId | None
    seconds: float
    time_ns: int
    proven_ns: int | None
    where: str
    stored: bool = False

    def __str__(self) -> str:
        """``recoverable by retraining (12 s, proven on ...)``."""
        at = self.proven_ns
        proven = "not proven" if at is None else f"proven {format_time(at, precise=False)}"
        there = ", still stored" if self.stored else ""
        taken = f"{self.seconds:.3g} s, " if self.seconds else ""
        return f"recoverable by retraining ({taken}{proven}){there}"


class Gone(Struct, frozen=True):
    """The state of ``commit`` is not here since ``time_ns``: it never came (``absent``), or was
    deleted by a rule (``forgotten``) or for good (``purged``). ``way``: the command that brings it,
    in a sentence; None if no remote can have it.
    """

    commit: CommitId
    why: Literal["absent", "forgotten", "purged"]
    time_ns: int
    way: str | None = None

    @property
    def named(self) -> bool:
        """Whether it can never come back."""
        return self.why == "purged"


Availability: TypeAlias = Stored | Dropped | Gone
"""Where the state of a version is."""


def resolve(store: Store, id_: CommitId) -> Availability:
    """Where the state of a version is."""
    return forgotten(store, id_) or dropped(store, id_) or Stored()


def forgotten(store: Store, id_: CommitId) -> Gone | None:
    """Why the state of a version is not here; None if it is.

    A state with a tombstone is here while something stands on it (``in_use``).
    """
    found = gone(store.snapshot, id_)
    if found is not None and found.named and in_use(store, id_):
        return _by_marks(store.snapshot, id_)
    return found


def gone(snapshot: Snapshot, id_: CommitId) -> Gone | None:
    """As ``forgotten``, but a state with a tombstone is not here in any case."""
    for _, stone in snapshot.about(Tombstone, id_)[:1]:
        return Gone(id_, "purged", stone.recorded_ns)
    return _by_marks(snapshot, id_)


def _by_marks(snapshot: Snapshot, id_: CommitId) -> Gone | None:
    found = None
    for recorded, mark in snapshot.state_marks(id_):
        if mark.what == "stored":
            found = None
        elif mark.what in ("absent", "forgotten"):
            found = Gone(id_, mark.what, recorded.entry.time_ns)
    return found


def in_use(store: Store, id_: CommitId) -> bool:
    """Whether HEAD, with working files, or dropped weights stand on a version with a tombstone."""
    return id_ in _stood_on(store) or id_ in needed_by(store, {id_})


def all_in_use(store: Store) -> Set[CommitId]:
    """All versions with a tombstone of which ``in_use`` is true."""
    entries = [recorded.entry for recorded in store.snapshot.stating(Tombstone)]
    stones = {CommitId(each.subject) for entry in entries for each in entry.of(Tombstone)}
    return stones & _stood_on(store) | needed_by(store, stones).keys() if stones else set()


def _stood_on(store: Store) -> set[CommitId]:
    found: set[CommitId] = set()
    with suppress(DamagedData):  # the entry that moved HEAD is lost
        at = None if store.bare else store.snapshot.ref(HEAD)
        at = store.snapshot.ref(BRANCH + at) if isinstance(at, str) else at
        found.update({at} if isinstance(at, CommitId) else ())
    return found


def needed_by(store: Store, going: Collection[CommitId]) -> dict[CommitId, CommitId]:
    """Versions among ``going`` that the recipe of another one needs, which gave up its weights.

    With that one. Versions that go need none, unless they are needed themselves.
    """
    snapshot = store.snapshot
    marks = (mark for _, mark in snapshot.state_marks(weights=True))
    needs = {
        id_: found[1].needs
        for id_ in dropped_paths(marks)
        if (found := commits.find(snapshot, id_)) is not None and _by_marks(snapshot, id_) is None
    }
    leaves = {id_ for id_ in needs if id_ in going or snapshot.is_subject(Tombstone, id_)}
    leaves -= _stood_on(store)
    stay: dict[CommitId, CommitId] = {}
    while needs:
        used = {id_: needs.pop(id_) for id_ in list(needs) if id_ not in leaves or id_ in stay}
        if not used:
            break
        for id_, needed in used.items():
            stay |= dict.fromkeys(leading_on(store, needed, stay), id_)
    return {each: id_ for each, id_ in stay.items() if each in going}


def leading_on(
    store: Store, needed: Iterable[CommitId], known: Iterable[CommitId] = ()
) -> set[CommitId]:
    """What a version without weights is made from: what it needs, without what is ``known``.

    Those that carry nothing but rows, or states of random generators, lead on to the one before
    them, even if they are stored; not one without weights, which needs its own.
    """
    found, waiting = set[CommitId](), set(needed).difference(known)
    while waiting:
        found.add(id_ := waiting.pop())
        at = commits.find(store.snapshot, id_)
        if at and {*at[1].attached} - {"service"} == {RECIPE} and not dropped(store, id_):
            waiting |= {*at[1].needs}.difference(found, known)
    return found


def nearest_kept(store: Store, versions: Iterable[CommitId]) -> set[CommitId]:
    """By first parents the nearest ancestor of each whose state is here; not all have one."""
    found = set()
    for id_ in versions:
        parents = commits.get(store.snapshot, id_).parents
        for _ in range(_NEAR):
            if not parents:
                break
            if forgotten(store, parents[0]) is None:
                found.add(parents[0])
                break
            parents = commits.get(store.snapshot, parents[0]).parents
    return found


def check_kept(store: Store, id_: CommitId) -> None:
    """Raises StateForgotten if the state of a version was forgotten, or never came here."""
    found = forgotten(store, id_)
    if found is None:
        return
    date, absent = format_time(found.time_ns, precise=False), found.why == "absent"
    what = f"is not here: it did not come along on {date}" if absent else f"was forgotten on {date}"
    error = StateForgotten(f"the state of version {id_.short} {what}", hint=GONE)
    if not found.named:
        error.absent = id_
    raise error


def check_servable(store: Store, id_: CommitId) -> None:
    """As ``check_kept``; also raises WeightsDropped for a version that gave up its weights."""
    check_kept(store, id_)
    gone = dropped(store, id_)
    if gone is not None:
        raise dropped_error(id_, gone)


def dropped_paths(marks: Iterable[StateMark]) -> dict[CommitId, str]:
    """The path that each version gave up, by marks of weights from the oldest to the newest."""
    newest = {mark.commit: mark for mark in marks if mark.path}
    return {id_: mark.path for id_, mark in newest.items() if mark.what == "dropped"}


def given_up(
    paths: Mapping[CommitId, str], states: Iterable[tuple[CommitId, ManifestId]]
) -> dict[ManifestId, set[str]]:
    """The paths that every holder of a manifest has given up, by manifest.

    ``paths``: by version what it gave up. ``states``: the versions that count.
    """
    found: dict[ManifestId, set[str]] = {}
    whole: set[ManifestId] = set()
    for id_, manifest in states if paths else ():
        if id_ in paths:
            found.setdefault(manifest, set()).add(paths[id_])
        else:
            whole.add(manifest)
    return {manifest: each for manifest, each in found.items() if manifest not in whole}


def all_dropped(store: Store) -> dict[CommitId, Dropped]:
    """Every version without its weights. Marks may be left of versions that were collected."""
    snapshot = store.fresh()
    ids = dropped_paths(mark for _, mark in snapshot.state_marks(weights=True))
    found = [dropped(store, id_) for id_ in ids if commits.find(snapshot, id_)]
    return {each.commit: each for each in found if each is not None}


def dropped(store: Store, commit: CommitId, path: str | None = None) -> Dropped | None:
    """What is known of a version that gave up its weights, those at ``path`` if one is named.

    None if it has them.
    """
    marks = store.snapshot.state_marks(commit, weights=True)
    at = dropped_paths(mark for _, mark in marks).get(commit)
    if at is None or path not in (None, at):
        return None
    recorded = next(r for r, m in reversed(marks) if m.what == "dropped")
    known = commits.find(store.snapshot, commit)
    needs = () if known is None else known[1].needs  # a proof from elsewhere may name any version
    proven = proof(store.snapshot, commit, at)
    last = proven or next((each for _, each in reversed(_proofs(store.snapshot, commit, at))), None)
    return Dropped(
        commit,
        at,
        base=last.base if last is not None and last.base in needs else None,
        seconds=0.0 if last is None else last.milliseconds / 1000,
        time_ns=recorded.entry.time_ns,
        proven_ns=None if proven is None else proven.recorded_ns,
        where="" if proven is None else proven.environment,
        stored=_is_there(store, commit, at),
    )


def proof(snapshot: Snapshot, commit: CommitId, path: str) -> ReplayProof | None:
    """The last proof by a replay here that the recipe of a version makes the file ``path``."""
    here = [p for recorded, p in _proofs(snapshot, commit, path) if not recorded.entry.is_received]
    return here[-1] if here else None


def proven_here(
    store: Store, versions: Iterable[CommitId] | None = None
) -> dict[CommitId, ReplayProof]:
    """By version, all or of these, the last proof by a replay here."""
    snapshot = store.fresh()
    if versions is None:
        entries = [recorded.entry for recorded in snapshot.stating(ReplayProof)]
        every = [(entry, each) for entry in entries for each in entry.of(ReplayProof)]
    else:
        about = [pair for id_ in versions for pair in snapshot.about(ReplayProof, id_)]
        every = [(recorded.entry, each) for recorded, each in about]
    return {CommitId(each.subject): each for entry, each in every if not entry.is_received}


def _proofs(snapshot: Snapshot, commit: CommitId, path: str) -> list[tuple[Recorded, ReplayProof]]:
    every = snapshot.about(ReplayProof, commit)
    return [(recorded, each) for recorded, each in every if each.path == path]


def is_stored(store: Store, entry: FileEntry) -> bool:
    """Whether deltas and full records lead to every content of a file."""
    from mvc.store.graph.plan import recovers  # light commands need none

    return all(recovers(store.graph, each.id, each.spec.nbytes) for each in entry.contents)


def _is_there(store: Store, commit: CommitId, path: str) -> bool:
    if forgotten(store, commit) is not None:
        return False
    try:
        manifest = Manifest.decode(
            store.recovery.manifest(commits.get(store.snapshot, commit).manifest)
        )
        return is_stored(store, manifest.by_path[path])
    except (DamagedData, KeyError):
        return False


def check_available(
    store: Store, commit: CommitId, entries: Iterable[FileEntry], *, stored: bool = False
) -> None:
    """Raises WeightsDropped if one of a version's files was given up and nothing leads to it.

    ``stored``: also if it was made again only for now, and is not stored (``Store.provided``).
    """
    gone = dropped(store, commit)
    if gone is None:
        return
    for entry in entries:
        made = not stored and all(content.id in store.provided for content in entry.contents)
        if entry.path == gone.path and not made and not is_stored(store, entry):
            raise dropped_error(commit, gone)


def dropped_error(commit: CommitId, gone: Dropped) -> WeightsDropped:
    """The error for what needs the weights of this version."""
    when = format_time(gone.time_ns, precise=False)
    return WeightsDropped(
        f"the weights of version {commit.short} were given up on {when}; a training"
        + (f" of about {gone.seconds:.3g} s" if gone.seconds else "")
        + " makes them again",
        hint=f"'mvc retrain {commit.short} --trust-code' trains and stores them again; in Python, "
        f"'with mvc.retraining(repo, {commit.short!r}, trust=True):' reads them once",
    )
