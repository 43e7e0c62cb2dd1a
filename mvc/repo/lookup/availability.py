"""Whether the state of a version (its tensors and files) can be read from this repository.

A state is stored or absent. If it is stored, the weights of one file may be *dropped*: mvc deleted
them, because a *recipe* (code, data and settings of the training) can compute them. A *replay* runs
the recipe. The journal (the log of all operations) contains *marks*: a mark records that the state
of a version became ``absent``, ``forgotten``, ``dropped`` or ``stored``. The newest mark counts. If
weights are dropped, all other files, the manifest (list of files) and the attachments remain.
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

_NEAR = 64  # how many ancestors ``nearest_stored`` searches
GONE = "'mvc log' still shows its commit; its files are not stored here"


class Stored(Struct, frozen=True):
    """The state of a version is stored in this repository."""


class Dropped(Struct, frozen=True):
    """The weights in the file ``path`` of a version were dropped at ``time_ns``.

    ``base``: the version from which the newest known replay started, or None. ``seconds``: how long
    that replay took, or 0. ``proven_ns``, ``where``: time and environment of the newest replay in
    this repository that computed exactly these weights; None and empty without such a replay.
    ``stored``: whether the weights can still be read, because another version has the same weights,
    or because gc has not deleted them yet.
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
        """For example ``recoverable by retraining (12 s, proven 2026-11-20T10:00:00Z)``."""
        at = self.proven_ns
        proven = "not proven" if at is None else f"proven {format_time(at, precise=False)}"
        stored = ", still stored" if self.stored else ""
        duration = f"{self.seconds:.3g} s, " if self.seconds else ""
        return f"recoverable by retraining ({duration}{proven}){stored}"


class Gone(Struct, frozen=True):
    """The state of ``commit`` has not been stored here since ``time_ns``.

    ``why``: ``absent`` (never fetched), ``forgotten`` (deleted by a rule) or ``purged`` (deleted
    for ever). ``hint``: a sentence with the command that fetches the state, or None.
    """

    commit: CommitId
    why: Literal["absent", "forgotten", "purged"]
    time_ns: int
    hint: str | None = None

    @property
    def named(self) -> bool:
        """Whether the state was purged and can never return."""
        return self.why == "purged"


Availability: TypeAlias = Stored | Dropped | Gone
"""Whether the state of a version can be read."""


def resolve(store: Store, id_: CommitId) -> Availability:
    """Whether the state of a version is stored, dropped or absent."""
    return forgotten(store, id_) or dropped(store, id_) or Stored()


def forgotten(store: Store, id_: CommitId) -> Gone | None:
    """Why the state of a version is absent; None if the state is stored.

    A purge does not count while the state is in use (``in_use``).
    """
    absence = recorded_absence(store.snapshot, id_)
    if absence is not None and absence.named and in_use(store, id_):
        return _by_marks(store.snapshot, id_)
    return absence


def recorded_absence(snapshot: Snapshot, id_: CommitId) -> Gone | None:
    """As ``forgotten``, but a purge counts even while the state is in use."""
    for _, stone in snapshot.about(Tombstone, id_)[:1]:
        return Gone(id_, "purged", stone.recorded_ns)
    return _by_marks(snapshot, id_)


def _by_marks(snapshot: Snapshot, id_: CommitId) -> Gone | None:
    absence = None
    for recorded, mark in snapshot.state_marks(id_):
        if mark.change == "stored":
            absence = None
        elif mark.change in ("absent", "forgotten"):
            absence = Gone(id_, mark.change, recorded.entry.time_ns)
    return absence


def in_use(store: Store, id_: CommitId) -> bool:
    """Whether a version's state must not be deleted yet: the version is HEAD in a repository with a
    working folder, or the recipe of another version's dropped weights needs it.
    """
    return id_ in _checked_out(store) or id_ in needed_by(store, {id_})


def all_in_use(store: Store) -> Set[CommitId]:
    """All purged versions that are in use."""
    entries = [recorded.entry for recorded in store.snapshot.stating(Tombstone)]
    purged = {CommitId(stone.subject) for entry in entries for stone in entry.of(Tombstone)}
    return purged & _checked_out(store) | needed_by(store, purged).keys() if purged else set()


def _checked_out(store: Store) -> set[CommitId]:
    versions: set[CommitId] = set()
    with suppress(DamagedData):  # if the journal entry about HEAD is lost
        at = None if store.bare else store.snapshot.ref(HEAD)
        at = store.snapshot.ref(BRANCH + at) if isinstance(at, str) else at
        versions.update({at} if isinstance(at, CommitId) else ())
    return versions


def needed_by(store: Store, going: Collection[CommitId]) -> dict[CommitId, CommitId]:
    """The versions of ``going`` that must not be deleted, because recipes of dropped weights need
    them.

    Maps each such version to a version whose recipe needs it. ``going``: the versions to delete. If
    a version in ``going`` is not needed, its own recipe does not count.
    """
    snapshot = store.snapshot
    marks = (mark for _, mark in snapshot.state_marks(weights=True))
    needs = {
        id_: placed[1].needs
        for id_ in dropped_paths(marks)
        if (placed := commits.find(snapshot, id_)) is not None and _by_marks(snapshot, id_) is None
    }
    leaves = {id_ for id_ in needs if id_ in going or snapshot.is_subject(Tombstone, id_)}
    leaves -= _checked_out(store)
    stay: dict[CommitId, CommitId] = {}
    while needs:
        used = {id_: needs.pop(id_) for id_ in list(needs) if id_ not in leaves or id_ in stay}
        if not used:
            break
        for id_, needed in used.items():
            stay |= dict.fromkeys(leading_on(store, needed, stay), id_)
    return {needed: id_ for needed, id_ in stay.items() if needed in going}


def leading_on(
    store: Store, needed: Iterable[CommitId], known: Iterable[CommitId] = ()
) -> set[CommitId]:
    """``needed``, and the versions that these versions need, without ``known``.

    Follows the needs of a version only if its weights are not dropped, and if a recipe is its only
    attachment: such a version has data rows or states of random generators for the recipe.
    """
    versions, waiting = set[CommitId](), set(needed).difference(known)
    while waiting:
        versions.add(id_ := waiting.pop())
        at = commits.find(store.snapshot, id_)
        if at and {*at[1].attached} - {"service"} == {RECIPE} and not dropped(store, id_):
            waiting |= {*at[1].needs}.difference(versions, known)
    return versions


def nearest_stored(store: Store, versions: Iterable[CommitId]) -> set[CommitId]:
    """For each version, its nearest ancestor along first parents whose state is stored."""
    ancestors = set()
    for id_ in versions:
        parents = commits.get(store.snapshot, id_).parents
        for _ in range(_NEAR):
            if not parents:
                break
            if forgotten(store, parents[0]) is None:
                ancestors.add(parents[0])
                break
            parents = commits.get(store.snapshot, parents[0]).parents
    return ancestors


def check_stored(store: Store, id_: CommitId) -> None:
    """Raises StateForgotten if the state of a version is absent."""
    absence = forgotten(store, id_)
    if absence is None:
        return
    date, absent = format_time(absence.time_ns, precise=False), absence.why == "absent"
    problem = f"was not fetched (on {date})" if absent else f"was forgotten on {date}"
    error = StateForgotten(f"the state of version {id_.short} {problem}", hint=GONE)
    if not absence.named:
        error.absent = id_
    raise error


def check_servable(store: Store, id_: CommitId) -> None:
    """As ``check_stored``. In addition, raises WeightsDropped if the weights were dropped."""
    check_stored(store, id_)
    record = dropped(store, id_)
    if record is not None:
        raise dropped_error(id_, record)


def dropped_paths(marks: Iterable[StateMark]) -> dict[CommitId, str]:
    """Maps each version with dropped weights to the path of these weights.

    ``marks``: sorted, oldest first.
    """
    newest = {mark.commit: mark for mark in marks if mark.path}
    return {id_: mark.path for id_, mark in newest.items() if mark.change == "dropped"}


def dropped_by_manifest(
    paths: Mapping[CommitId, str], states: Iterable[tuple[CommitId, ManifestId]]
) -> dict[ManifestId, set[str]]:
    """Maps a manifest (list of files) to the paths with dropped weights, if the weights are dropped
    in all versions with this manifest.

    ``paths``: maps versions to the path of their dropped weights. ``states``: pairs of a version
    and its manifest. Only these versions are considered.
    """
    dropped_by: dict[ManifestId, set[str]] = {}
    whole: set[ManifestId] = set()
    for id_, manifest in states if paths else ():
        if id_ in paths:
            dropped_by.setdefault(manifest, set()).add(paths[id_])
        else:
            whole.add(manifest)
    return {manifest: names for manifest, names in dropped_by.items() if manifest not in whole}


def all_dropped(store: Store) -> dict[CommitId, Dropped]:
    """All versions with dropped weights, except versions that gc deleted."""
    snapshot = store.fresh()
    ids = dropped_paths(mark for _, mark in snapshot.state_marks(weights=True))
    records = [dropped(store, id_) for id_ in ids if commits.find(snapshot, id_)]
    return {record.commit: record for record in records if record is not None}


def dropped(store: Store, commit: CommitId, path: str | None = None) -> Dropped | None:
    """How the weights of a version were dropped. None if they were not dropped, or if ``path`` is
    not None and the dropped weights have another path.
    """
    marks = store.snapshot.state_marks(commit, weights=True)
    at = dropped_paths(mark for _, mark in marks).get(commit)
    if at is None or path not in (None, at):
        return None
    recorded = next(r for r, m in reversed(marks) if m.change == "dropped")
    known = commits.find(store.snapshot, commit)
    needs = () if known is None else known[1].needs  # a received proof may name any version
    proven = proof(store.snapshot, commit, at)
    last = proven or next((p for _, p in reversed(_proofs(store.snapshot, commit, at))), None)
    return Dropped(
        commit,
        at,
        base=last.base if last is not None and last.base in needs else None,
        seconds=0.0 if last is None else last.milliseconds / 1000,
        time_ns=recorded.entry.time_ns,
        proven_ns=None if proven is None else proven.recorded_ns,
        where="" if proven is None else proven.environment,
        stored=_is_readable(store, commit, at),
    )


def proof(snapshot: Snapshot, commit: CommitId, path: str) -> ReplayProof | None:
    """The newest proof that a version's recipe computes the file ``path``: a replay that ran in
    this repository. None if there is no proof.
    """
    own_proofs = [
        p for recorded, p in _proofs(snapshot, commit, path) if not recorded.entry.is_received
    ]
    return own_proofs[-1] if own_proofs else None


def proven_here(
    store: Store, versions: Iterable[CommitId] | None = None
) -> dict[CommitId, ReplayProof]:
    """Maps versions to their newest proof from this repository. ``versions``: if not None, only
    these versions.
    """
    snapshot = store.fresh()
    if versions is None:
        entries = [recorded.entry for recorded in snapshot.stating(ReplayProof)]
        every = [(entry, proof) for entry in entries for proof in entry.of(ReplayProof)]
    else:
        about = [pair for id_ in versions for pair in snapshot.about(ReplayProof, id_)]
        every = [(recorded.entry, proof) for recorded, proof in about]
    return {CommitId(proof.subject): proof for entry, proof in every if not entry.is_received}


def _proofs(snapshot: Snapshot, commit: CommitId, path: str) -> list[tuple[Recorded, ReplayProof]]:
    every = snapshot.about(ReplayProof, commit)
    return [(recorded, proof) for recorded, proof in every if proof.path == path]


def is_stored(store: Store, entry: FileEntry) -> bool:
    """Whether all contents (tensor data) of a file are stored here, in full or as deltas."""
    from mvc.store.graph.plan import recovers  # not needed by light commands

    return all(recovers(store.graph, c.id, c.spec.nbytes) for c in entry.contents)


def _is_readable(store: Store, commit: CommitId, path: str) -> bool:
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
    """Raises WeightsDropped if the weights of one of these files were dropped and cannot be read.

    ``stored``: raise even if ``with mvc.retraining(...)`` has computed the weights for its block.
    """
    record = dropped(store, commit)
    if record is None:
        return
    for entry in entries:
        provided = not stored and all(content.id in store.provided for content in entry.contents)
        if entry.path == record.path and not provided and not is_stored(store, entry):
            raise dropped_error(commit, record)


def dropped_error(commit: CommitId, record: Dropped) -> WeightsDropped:
    """The error to raise when dropped weights are read."""
    when = format_time(record.time_ns, precise=False)
    return WeightsDropped(
        f"the weights of version {commit.short} were dropped on {when}; a training"
        + (f" of about {record.seconds:.3g} s" if record.seconds else "")
        + " recovers them",
        hint=f"'mvc retrain {commit.short} --trust-code' trains and restores them; in Python, "
        f"'with mvc.retraining(repo, {commit.short!r}, trust=True):' reads them once",
    )
