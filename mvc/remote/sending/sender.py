"""Sends the entries that a receiver lacks, as slices: versions with records, and statements."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import Busy, DamagedData, HistoryMissing, StateForgotten
from mvc.ids import CommitId, ManifestId
from mvc.model.commit import Commit
from mvc.model.tensor import TensorSpec
from mvc.names import is_report
from mvc.remote.places import begins
from mvc.remote.sending.closure import NOTHING, ChosenRecords, Closure, Needed
from mvc.remote.sending.live import live_slice
from mvc.remote.slices import HEADS, SLICE, Absent, Lack, Sent, encode_entries
from mvc.remote.statements import Buried, about, told
from mvc.remote.transfer import versions_in
from mvc.remote.transport import Place, Slice, Wanted
from mvc.repo.config import Config
from mvc.repo.lookup import availability, commits, manifests
from mvc.repo.lookup.commits import Ancestors, newest_first
from mvc.repo.lookup.refs import HEAD, head_refs
from mvc.repo.statements.live import live_now
from mvc.store.format import read_features
from mvc.store.journal.frames import GENESIS, Position, Recorded
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.store import Store

_TRIES = 8


def send(
    store: Store,
    config: Config,
    wanted: Wanted,
    *,
    without: Container[CommitId] = frozenset(),
    most: int = SLICE,
    said: Callable[[Recorded], Recorded] = lambda recorded: recorded,
) -> Generator[Slice]:
    """The slices that a receiver lacks, oldest first; at least one.

    ``without``: versions whose states do not leave. ``most``: bytes of records in a slice of
    several entries. ``said``: an entry with what is told of it. Each slice names the place in the
    journal up to which it leads; its records may be read until the next one is asked for. Raises
    UnknownRevision for a wanted version that is not here, StateForgotten for a wanted state that is
    not, HistoryMissing for a receiver that has what this journal lacks, Busy.
    """
    snapshot = store.fresh()
    for _ in range(_TRIES):
        generation = snapshot.generation
        sending: Sending | None = None
        try:
            if wanted.live:
                yield live_slice(store, config, wanted)
                return
            sending = Sending(store, config, wanted, without, said=said)
            yield from sending.slices(most)
            return
        except (ConcurrentRewrite, DamagedData):
            snapshot.refresh()
            if snapshot.generation == generation:
                raise
        if sending is not None:  # places in the journal are others now
            wanted = replace(wanted, after=None, have=wanted.have | sending.gone)
    raise Busy("the repository was rewritten again and again meanwhile", hint="run it again")


class _Version(Struct, frozen=True):
    """A version that travels; ``lack``: without what, if it is not whole."""

    commit: Commit
    lack: Absent | None = None

    @property
    def has_state(self) -> bool:
        return self.lack is None or self.lack.why == "dropped"


class _Row(Struct, frozen=True):
    """An entry as it travels, its records, and up to where the journal was read then."""

    sent: Sent
    chosen: ChosenRecords
    place: Place | None


class Sending:
    """What one receiver lacks; ``without``: versions whose states do not leave.

    ``gone``: the versions in the slices so far.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        wanted: Wanted,
        without: Container[CommitId] = frozenset(),
        said: Callable[[Recorded], Recorded] = lambda recorded: recorded,
    ) -> None:
        self._store, self._config, self._wanted, self._without = store, config, wanted, without
        self._said = said
        self._buried = Buried(store.snapshot, wanted.without)
        self.gone: set[CommitId] = set()
        self._snapshot = store.fresh()
        self._generation = self._snapshot.generation
        # Other threads may read on meanwhile: what they find goes the next time.
        self._end = self._snapshot.position
        self._refs = head_refs(self._snapshot)
        self._start = begins(self._snapshot, wanted.after)
        self._since, self._deployed = self._look_since()
        self._held = Ancestors(self._snapshot, self._had(), needs=True)
        self._new = self._unheld()
        self._states = self._with_states()
        self._closure = Closure(
            store, config, self._is_held, self._buried.hold, whole=wanted.objects
        )
        self._features = read_features(store.fs, store.folder)

    # -- which versions ------------------------------------------------------------------

    def _look_since(self) -> tuple[list[int], set[CommitId]]:
        """Offsets of the entries since the receiver's place, and what these deploy."""
        offsets, deployed = list[int](), set[CommitId]()
        for recorded in self._snapshot.entries(self._start):
            offsets.append(recorded.offset)
            deployed.update(
                CommitId(made.subject)
                for made in recorded.entry.deployments
                if self._wanted.reports or not is_report(made.target)
            )
        return offsets, deployed

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
        return known

    def _unheld(self) -> dict[CommitId, int]:
        """The versions that the receiver lacks: those that wanted ones come from or need.

        By id the byte of the journal at which the entry stands that published it. Who wants all has
        what stands before its place, but for what nothing led to then; if that is needed now, it
        asks again, from the beginning.
        """
        before = 0 if self._wanted.versions else self._start.offset
        found, waiting = dict[CommitId, int](), self._roots()
        while waiting:
            id_ = waiting.pop()
            if id_ not in found:
                recorded, commit = commits.placed(self._snapshot, id_)
                if recorded.offset >= before and not self._held.holds(recorded, commit):
                    found[id_] = recorded.offset
                    waiting += (*commit.parents, *commit.needs)
        return found

    def _roots(self) -> list[CommitId]:
        wanted = self._wanted
        if wanted.versions or wanted.again:
            for id_ in wanted.versions:
                commits.get(self._store.snapshot, id_)
            return list(wanted.versions)
        at = self._store.snapshot.ref(HEAD)
        roots = {*self._refs.values(), *self._deployed}
        return sorted(roots | ({at} if isinstance(at, CommitId) else set()))

    def _is_held(self, recorded: Recorded) -> bool:
        """Whether the receiver has, as far as known, what an entry published first."""
        published = recorded.entry.commits
        if any(commit.id in self._new for commit in published) or self._buried.hold(recorded):
            return False
        if recorded.offset < self._start.offset and not self._wanted.versions:
            return True
        return any(commit.id in self._held for commit in published)

    # -- which states --------------------------------------------------------------------

    def _mark(self, id_: CommitId) -> Lack | None:
        """Why the state of a version is not here, or must not go; None if it is and may."""
        if id_ in self._buried:
            return "name"
        return None if availability.forgotten(self._store, id_) is None else "rule"

    def _with_states(self) -> Container[CommitId]:
        """The new versions whose states are wanted; those without weights count what they need."""
        states = self._wanted.states
        if states == "all":
            return self._new
        chosen: set[CommitId] = set()
        if states != "none":
            with suppress(DamagedData):  # what is live may be lost
                chosen.update(live_now(self._store))
        for tip in self._wanted.versions or self._refs.values():
            at: CommitId | None = tip
            for _ in range(0 if states == "none" else states):
                found = None if at is None else commits.find(self._snapshot, at)
                if found is None:
                    break
                chosen.add(found[1].id)
                at = next(iter(found[1].parents), None)
        return self._with_needed(chosen)

    def _with_needed(self, chosen: set[CommitId]) -> set[CommitId]:
        """Versions, and what those of them that gave up their weights are made from."""
        waiting, needed, store = list(chosen), set[CommitId](), self._store
        while waiting:
            id_ = waiting.pop()
            if availability.dropped(store, id_) is not None:
                more = availability.leading_on(
                    store, commits.get(store.snapshot, id_).needs, needed
                )
                needed |= more
                waiting += more - chosen
                chosen |= more
        return chosen

    def _version(self, commit: Commit) -> _Version:
        id_, mark = commit.id, self._mark(commit.id)
        if mark is None and (id_ not in self._states or id_ in self._without):
            mark = "rule"
        return _Version(commit, self._given_up(id_) if mark is None else Absent(bytes(id_), mark))

    def _given_up(self, id_: CommitId) -> Absent | None:
        gone = availability.dropped(self._store, id_)
        return None if gone is None else Absent(bytes(id_), "dropped", gone.path)

    @property
    def versions(self) -> Iterator[Commit]:
        return (commits.get(self._store.snapshot, id_) for id_ in self._new)

    def lacks(self) -> Iterator[tuple[Commit, Absent, list[CommitId]]]:
        """The versions that travel without something, in no order.

        With what it is, and those that it is made from whose states do not travel with it, and
        that the receiver lacks.
        """
        snapshot = self._snapshot
        marked = {
            *(id_ for recorded in snapshot.forgetting() for id_ in recorded.entry.forgets),
            *(mark.commit for _, mark in snapshot.state_marks(weights=True)),
        }
        for id_ in marked & self._new.keys():
            version = self._version(commits.get(self._store.snapshot, id_))
            if version.lack is not None:
                needs = (
                    availability.leading_on(self._store, version.commit.needs) & self._new.keys()
                )
                known = (commits.get(self._store.snapshot, n) for n in sorted(needs))
                absent = [commit.id for commit in known if not self._version(commit).has_state]
                yield version.commit, version.lack, absent

    # -- slices --------------------------------------------------------------------------

    def slices(self, most: int) -> Iterator[Slice]:
        """Raises ConcurrentRewrite once the journal was replaced."""
        rows, size, heads = list[_Row](), 0, 0
        for row in self._all():
            if self._snapshot.generation != self._generation:
                raise ConcurrentRewrite("the journal was replaced while it was read")
            if rows and (size + row.sent.size > most or heads > HEADS):
                yield self._slice(rows, rows[-1].place)
                rows, size, heads = [], 0, 0
            rows.append(row)
            size += row.sent.size
            heads += len(encode_entries([row.sent]))
        yield self._slice(rows, None if self._wanted.again else _place(self._end))

    def _slice(self, rows: Sequence[_Row], place: Place | None) -> Slice:
        sent = [row.sent for row in rows]
        self.gone |= versions_in(sent)
        return Slice(
            encode_entries(sent),
            sum(each.size for each in sent),
            (part for row in rows for part in row.chosen.read()),
            place=place,
            features=self._features,
        )

    def _all(self) -> Iterator[_Row]:
        for recorded in self._entries():
            yield from self._sent(recorded)
        for recorded, commit in self._wanted_again() if self._wanted.again else ():
            version = _Version(commit, self._given_up(commit.id))
            yield self._row(recorded, [version], Sent(again=(bytes(commit.id),)))

    def _entries(self) -> Iterator[Recorded]:
        """The entries that may travel, in the order of the journal."""
        offsets = {
            *self._new.values(),
            *(about(self._snapshot, self._new) if self._start != GENESIS else ()),
            *about(self._snapshot, self._wanted.due),
            *(() if self._wanted.again else self._since),
        }
        return map(self._snapshot.entry, sorted(offsets))

    def _sent(self, recorded: Recorded) -> Iterator[_Row]:
        """What of an entry travels, if anything does."""
        versions = [
            self._version(commit)
            for commit in recorded.entry.commits
            if self._new.get(commit.id) == recorded.offset
        ]
        among = self._is_there if self._wanted.versions else None
        said = self._said(recorded)
        statements = told(self._snapshot, said, among, reports=self._wanted.reports)
        if versions or statements:
            sent = Sent(
                tuple(version.commit.encoded for version in versions),
                statements=tuple(each.encoded for each in statements),
                is_own=bool(statements) and not said.entry.is_received,
            )
            yield self._row(recorded, versions, sent)

    def _is_there(self, id_: CommitId) -> bool:
        """Whether the receiver has a version, or gets it."""
        return id_ in self._new or id_ in self._held

    def _wanted_again(self) -> list[tuple[Recorded, Commit]]:
        """The versions whose states go later, oldest first, with what they are made from."""
        for id_ in self._wanted.again:
            commits.get(self._store.snapshot, id_)
            availability.check_kept(self._store, id_)
        chosen = self._with_needed({*self._wanted.again})
        found = [commits.placed(self._snapshot, id_) for id_ in chosen if self._mark(id_) is None]
        return sorted(found, key=lambda each: newest_first(*each), reverse=True)

    def _row(self, recorded: Recorded, versions: Sequence[_Version], sent: Sent) -> _Row:
        found: set[ManifestId] = set()
        blobs: dict[bytes, TensorSpec] = {}
        for version in versions:
            if not version.has_state:
                continue
            manifest = self._closure.manifests.load(version.commit.manifest)
            given_up = () if version.lack is None else (version.lack.path,)
            self._note_parents(version.commit)
            found.add(version.commit.manifest)
            blobs.update(manifests.objects(manifest.all_entries, given_up))
        needed = Needed(frozenset(found), blobs)
        chosen = self._closure.choose(recorded, needed) if found else NOTHING
        lacks = tuple(version.lack for version in versions if version.lack is not None)
        sent = replace(sent, size=chosen.size, absent=lacks, shapes=chosen.shapes)
        place = None if sent.again else _place(recorded.after, self._end.sequence)
        return _Row(sent, chosen, place)

    def _note_parents(self, commit: Commit) -> None:
        """Notes what the receiver has of the versions that this one was made from.

        Otherwise only a look far back tells whether it has what is as in the first version.
        """
        for id_ in commit.parents:
            if id_ in self._held and id_ not in self._without:
                with suppress(StateForgotten, DamagedData):
                    self._closure.there |= manifests.objects(
                        manifests.of_commit(self._store, id_).all_entries
                    ).keys()


def _place(position: Position, end: int = 0) -> Place:
    return Place(position.sequence, position.chain, 0 if end == position.sequence else end)
