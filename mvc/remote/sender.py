"""Sends the entries that a receiver lacks, as slices: versions with their records, and truths."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from mvc.errors import HistoryMissing
from mvc.ids import CommitId, ManifestId
from mvc.model.commit import Commit
from mvc.model.tensor import TensorSpec
from mvc.remote.closure import NOTHING, Chosen, Closure, Needed
from mvc.remote.door import Move, Place, Slice, Wanted
from mvc.remote.merging import TruthReader
from mvc.remote.slices import HEADS, SLICE, Absent, Sent, encode_entries
from mvc.repo.context import Context
from mvc.repo.lookup import availability, commits, manifests
from mvc.repo.lookup.commits import Ancestors, newest_first
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG
from mvc.store.format import read_features
from mvc.store.journal.frames import GENESIS, Position, Recorded
from mvc.store.snapshot import Snapshot


def send(
    context: Context, wanted: Wanted, *, without: Container[CommitId] = frozenset()
) -> Iterator[Slice]:
    """The slices that a receiver lacks, oldest first; at least one.

    ``without``: versions whose states do not leave. Each slice names the place in the journal up to
    which it leads; the last one has the present refs as moves from nothing. Raises UnknownRevision
    for a wanted version that is not here, StateForgotten for a wanted state that is not,
    HistoryMissing for a receiver that has what this journal lacks.
    """
    return _Sending(context, wanted, without).slices()


def head_refs(snapshot: Snapshot) -> dict[str, CommitId]:
    """Branches and tags with their prefixes, by name."""
    found = {}
    for prefix in (BRANCH, TAG):
        for name, recorded in snapshot.refs_under(prefix):
            changes = () if recorded is None else recorded.entry.refs
            value = next((c.new for c in reversed(changes) if c.name == name), None)
            if isinstance(value, CommitId):
                found[name] = value
    return found


class _Version(Struct):
    """A version that travels. ``given_up``: paths without weights; None: without its state."""

    commit: Commit
    lack: Absent | None = None

    @property
    def has_state(self) -> bool:
        return self.lack is None or self.lack.why == "dropped"


class _Sending:
    def __init__(self, context: Context, wanted: Wanted, without: Container[CommitId]) -> None:
        self._context, self._wanted, self._without = context, wanted, without
        self._snapshot = context.fresh()
        self._refs = head_refs(self._snapshot)
        self._start = _begins(self._snapshot, wanted.after)
        self._since = list(self._look_since())
        self._have = self._had()
        self._new = _unheld(self._snapshot, self._roots(), self._have)
        self._held = Ancestors(self._snapshot, self._have)
        self._truths = TruthReader(self._snapshot)
        self._states = self._with_states()
        self._closure = Closure(context, self._is_held, self._is_banned, wanted.objects)
        self._features = read_features(context.store.fs, context.store.folder) - {"compacted"}

    # -- which versions ------------------------------------------------------------------

    def _look_since(self) -> Iterator[int]:
        """Offsets of entries since the receiver's place that may say more than versions.

        Notes the values that refs had there, and what was deployed since.
        """
        self._before: dict[str, CommitId | str | None] = {}
        self._deployed: set[CommitId] = set()
        for recorded in self._snapshot.entries(self._start):
            for change in recorded.entry.refs:
                self._before.setdefault(change.name, change.old)
            self._deployed.update(made.commit for made in recorded.entry.deployments)
            yield recorded.offset

    def _had(self) -> list[CommitId]:
        """Versions that the receiver has with all that they come from."""
        wanted, known = self._wanted, list[CommitId]()
        for id_ in sorted(wanted.have):
            if commits.find(self._snapshot, id_) is not None:
                known.append(id_)
            elif wanted.after is not None and self._start == GENESIS:
                raise HistoryMissing(
                    f"this repository has no version {id_.short}, which it once gave away: it was "
                    "put back to an earlier state, or is another one",
                    hint="ask its owner; 'mvc remote remove' and 'add' begin anew",
                )
        if not wanted.versions and self._start != GENESIS:
            # All that refs led to at the receiver's place was sent.
            for name in {*self._refs, *self._before}:
                value = self._before.get(name, self._refs.get(name))
                is_sent = isinstance(value, CommitId) and name.startswith((BRANCH, TAG))
                if is_sent and commits.find(self._snapshot, value) is not None:
                    known.append(value)
        return known

    def _roots(self) -> list[CommitId]:
        wanted = self._wanted
        if wanted.versions or wanted.again:
            for id_ in wanted.versions:
                commits.get(self._context, id_)
            return list(wanted.versions)
        at = self._context.store.ref(HEAD)
        roots = {*self._refs.values(), *self._deployed}
        return sorted(roots | ({at} if isinstance(at, CommitId) else set()))

    def _is_held(self, recorded: Recorded) -> bool:
        """Whether the receiver has, as far as known, what an entry published first."""
        published = recorded.entry.commits
        if any(commit.id in self._new for commit in published):
            return False
        if recorded.offset < self._start.offset and not self._wanted.versions:
            return True
        return any(commit.id in self._held for commit in published)

    def _is_banned(self, recorded: Recorded) -> bool:
        """Whether an entry's versions were all forgotten by name."""
        published = recorded.entry.commits
        return bool(published) and all(self._mark(commit.id) == "name" for commit in published)

    # -- which states --------------------------------------------------------------------

    def _mark(self, id_: CommitId) -> str | None:
        recorded = self._snapshot.forgotten(id_)
        if recorded is None:
            return None
        named = any(each.named for each in recorded.entry.forgotten if each.commit == id_)
        return "name" if named else "rule"

    def _with_states(self) -> Container[CommitId]:
        """The new versions whose states are wanted; those without weights count what they need."""
        states = self._wanted.states
        if states == "all":
            return self._new
        chosen: set[CommitId] = set()
        waiting = [] if states == "none" else [*self._wanted.versions] or [*self._refs.values()]
        for tip in waiting if isinstance(states, int) else ():
            at: CommitId | None = tip
            for _ in range(states):
                if at is None or (found := commits.find(self._snapshot, at)) is None:
                    break
                chosen.add(at)
                at = next(iter(found[1].parents), None)
        waiting = list(chosen)
        while waiting:
            id_ = waiting.pop()
            if availability.dropped(self._context, id_) is not None:
                commit = commits.get(self._context, id_)
                more = {*commit.needs, *commit.parents[:1]} - chosen
                chosen |= more
                waiting += more
        return chosen

    def _version(self, commit: Commit) -> _Version:
        id_, mark = commit.id, self._mark(commit.id)
        if mark == "name":
            return _Version(commit, Absent(bytes(id_), "name"))
        if mark == "rule" or id_ not in self._states or id_ in self._without:
            return _Version(commit, Absent(bytes(id_), "rule"))
        gone = availability.dropped(self._context, id_)
        if gone is None:
            return _Version(commit)
        took = round(gone.seconds * 1000)
        return _Version(commit, Absent(bytes(id_), "dropped", gone.path, took))

    # -- slices --------------------------------------------------------------------------

    def slices(self) -> Iterator[Slice]:
        waiting = _Gathered()
        for recorded in self._entries():
            sent, chosen = self._sent(recorded)
            if sent is None:
                continue
            if waiting.is_full(chosen.size):
                yield waiting.done(self._features)
                waiting = _Gathered()
            waiting.add(sent, chosen, _place(recorded.after))
        if self._wanted.again:
            for id_ in self._wanted.again:
                sent, chosen = self._again(id_)
                if waiting.is_full(chosen.size):
                    yield waiting.done(self._features)
                    waiting = _Gathered()
                waiting.add(sent, chosen, waiting.place)
        moves = tuple(Move(name, None, id_) for name, id_ in sorted(self._refs.items()))
        waiting.place = _place(self._snapshot.position) if not self._wanted.again else None
        yield waiting.done(self._features, moves)

    def _entries(self) -> Iterator[Recorded]:
        """The entries that may travel, in the order of the journal."""
        offsets = {recorded.offset for recorded, _ in self._new.values()}
        offsets.update(self._truths.about(self._new.keys()) if self._start != GENESIS else ())
        offsets.update(() if self._wanted.again else self._since)
        for offset in sorted(offsets):
            yield self._snapshot.entry(offset)

    def _sent(self, recorded: Recorded) -> tuple[Sent | None, Chosen]:
        versions = [
            self._version(commit)
            for commit in recorded.entry.commits
            if commit.id in self._new and self._new[commit.id][0].offset == recorded.offset
        ]
        among = None if not self._wanted.versions else _Known(self._new, self._held)
        truths = self._truths.of(recorded, among)
        if not versions and truths is None:
            return None, NOTHING
        chosen = self._records(recorded, versions)
        return (
            Sent(
                tuple(version.commit.encoded for version in versions),
                chosen.size,
                tuple(version.lack for version in versions if version.lack is not None),
                shapes=chosen.shapes,
                truths=truths,
            ),
            chosen,
        )

    def _again(self, id_: CommitId) -> tuple[Sent, Chosen]:
        """The state of a version that the receiver has without it."""
        recorded, commit = commits.placed(self._snapshot, id_)
        availability.check_kept(self._context, id_)
        chosen = self._records(recorded, [_Version(commit)])
        return Sent(size=chosen.size, again=(bytes(id_),), shapes=chosen.shapes), chosen

    def _records(self, recorded: Recorded, versions: Sequence[_Version]) -> Chosen:
        found: set[ManifestId] = set()
        blobs: dict[bytes, TensorSpec] = {}
        for version in versions:
            if not version.has_state:
                continue
            manifest = self._closure.load(version.commit.manifest)
            given_up = () if version.lack is None else (version.lack.path,)
            found.add(version.commit.manifest)
            blobs.update(manifests.objects(manifest, given_up))
        if not found:
            return NOTHING
        return self._closure.choose(recorded, Needed(frozenset(found), blobs))


class _Known(Container[CommitId]):
    """The versions that the receiver has or gets."""

    def __init__(self, new: Container[CommitId], held: Container[CommitId]) -> None:
        self._new, self._held = new, held

    def __contains__(self, id_: object) -> bool:
        return id_ in self._new or (isinstance(id_, CommitId) and id_ in self._held)


class _Gathered:
    """A slice in the making."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self._sent: list[Sent] = []
        self._chosen: list[Chosen] = []
        self._size = self._heads = 0

    def is_full(self, more: int) -> bool:
        """Whether it ends before an entry with so many bytes of records."""
        return bool(self._sent) and (self._size + more > SLICE or self._heads > HEADS)

    def add(self, sent: Sent, chosen: Chosen, place: Place | None) -> None:
        self._sent.append(sent)
        self._chosen.append(chosen)
        self._size += chosen.size
        self._heads += len(encode_entries([sent]))
        self.place = place

    def done(self, features: frozenset[str], moves: tuple[Move, ...] = ()) -> Slice:
        records = (part for chosen in self._chosen for part in chosen.read())
        head = encode_entries(self._sent)
        return Slice(head, self._size, records, moves, place=self.place, features=features)


def _place(position: Position) -> Place:
    return Place(position.sequence, position.chain)


def _begins(snapshot: Snapshot, after: Place | None) -> Position:
    """Where the journal goes on from a place; its beginning if it does not lead on from there."""
    if after is None or after.sequence <= 0:
        return GENESIS
    if after == _place(snapshot.position):
        return snapshot.position
    before = snapshot.by_sequence(after.sequence - 1)
    return GENESIS if before is None or before.check != after.chain else before.after


def _unheld(
    snapshot: Snapshot, wanted: Iterable[CommitId], held: Iterable[CommitId]
) -> dict[CommitId, tuple[Recorded, Commit]]:
    """The versions that lead to wanted ones, as parents or needed, and to no held one.

    Read back from the newest on, only until all that is left leads to held ones as well.
    """
    heap: list[tuple[tuple[int, int], CommitId, Recorded, Commit]] = []
    is_held: dict[CommitId, bool] = {}
    open_ = 0

    def push(id_: CommitId, mark: bool) -> int:
        """How many more are waiting that are not held."""
        known = is_held.get(id_)
        if known is None:
            recorded, commit = commits.placed(snapshot, id_)
            is_held[id_] = mark
            heappush(heap, (newest_first(recorded, commit), id_, recorded, commit))
            return 0 if mark else 1
        if mark and not known:
            is_held[id_] = True
            return -1
        return 0

    for id_ in held:
        open_ += push(id_, True)
    for id_ in wanted:
        open_ += push(id_, False)
    found: dict[CommitId, tuple[Recorded, Commit]] = {}
    while open_:
        _, id_, recorded, commit = heappop(heap)
        mark = is_held[id_]
        if not mark:
            open_ -= 1
            found[id_] = recorded, commit
        for behind in (*commit.parents, *commit.needs):
            open_ += push(behind, mark)
    return found
