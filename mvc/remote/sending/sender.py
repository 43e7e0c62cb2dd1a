"""Sends the journal entries (recorded operations) that a receiver lacks, as slices.

A slice is a part of a transfer: versions with their stored data, and statements (for example
deployments).
"""

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
from mvc.remote.statements import Purged, about, statements_to_send
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
    part_of: Callable[[Recorded], Recorded] = lambda recorded: recorded,
) -> Generator[Slice]:
    """The slices that a receiver lacks, oldest first. There is at least one slice.

    ``without``: versions whose states are not sent. ``most``: limit of bytes of stored data in a
    slice of several entries. ``part_of``: returns an entry without the statements that are not to
    be sent. Each slice names the position in the journal up to which entries are then sent. Read
    the data of a slice before you request the next slice. Raises UnknownRevision; StateForgotten
    for an absent state; HistoryMissing if the receiver has versions that this repository has lost;
    Busy.
    """
    snapshot = store.fresh()
    for _ in range(_TRIES):
        generation = snapshot.generation
        sending: Sending | None = None
        try:
            if wanted.live:
                yield live_slice(store, config, wanted)
                return
            sending = Sending(store, config, wanted, without, part_of=part_of)
            yield from sending.slices(most)
            return
        except (ConcurrentRewrite, DamagedData):
            snapshot.refresh()
            if snapshot.generation == generation:
                raise
        if sending is not None:  # the rewrite of the journal changed all positions
            wanted = replace(wanted, after=None, have=wanted.have | sending.sent)
    raise Busy("the repository is rewritten continuously", hint="repeat the command later")


class _Version(Struct, frozen=True):
    """A version to send. ``lack``: the part of the version that is not sent, or None."""

    commit: Commit
    lack: Absent | None = None

    @property
    def has_state(self) -> bool:
        return self.lack is None or self.lack.why == "dropped"


class _Row(Struct, frozen=True):
    """An entry to send, its records, and the position in the journal after the entry."""

    sent: Sent
    chosen: ChosenRecords
    place: Place | None


class Sending:
    """The entries that one receiver lacks. ``without``: versions whose states are not sent.

    ``sent``: the versions in the slices that were created so far.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        wanted: Wanted,
        without: Container[CommitId] = frozenset(),
        part_of: Callable[[Recorded], Recorded] = lambda recorded: recorded,
    ) -> None:
        self._store, self._config, self._wanted, self._without = store, config, wanted, without
        self._part_of = part_of
        self._purged = Purged(store.snapshot, wanted.without)
        self.sent: set[CommitId] = set()
        self._snapshot = store.fresh()
        self._generation = self._snapshot.generation
        # Other threads may refresh the snapshot meanwhile. Entries after this end are not sent.
        self._end = self._snapshot.position
        self._refs = head_refs(self._snapshot)
        self._start = begins(self._snapshot, wanted.after)
        self._since, self._deployed = self._read_since()
        self._known = Ancestors(self._snapshot, self._versions_at_receiver(), needs=True)
        self._new = self._new_versions()
        self._states = self._with_states()
        self._closure = Closure(
            store, config, self._has_entry, self._purged.contains_all_of, whole=wanted.objects
        )
        self._features = read_features(store.fs, store.folder)

    # -- versions ------------------------------------------------------------------------

    def _read_since(self) -> tuple[list[int], set[CommitId]]:
        """Offsets of entries after the receiver's position, and versions that they deploy."""
        offsets, deployed = list[int](), set[CommitId]()
        for recorded in self._snapshot.entries(self._start):
            offsets.append(recorded.offset)
            deployed.update(
                CommitId(row.subject)
                for row in recorded.entry.deployments
                if self._wanted.reports or not is_report(row.target)
            )
        return offsets, deployed

    def _versions_at_receiver(self) -> list[CommitId]:
        """Versions that the receiver has with all of their ancestors."""
        wanted, known = self._wanted, list[CommitId]()
        for id_ in sorted(wanted.have):
            if commits.find(self._snapshot, id_) is not None:
                known.append(id_)
            elif wanted.after is not None and self._start == GENESIS:
                raise HistoryMissing(
                    f"the remote lost version {id_.short}: the remote was rolled back or replaced",
                    hint="if this is intended, 'mvc remote remove' and 'mvc remote add' start over",
                )
        return known

    def _new_versions(self) -> dict[CommitId, int]:
        """The requested versions, their ancestors and needs, if the receiver lacks these versions.

        Maps each version to the journal offset of the entry that published the version. If the
        request names no versions, the receiver is assumed to have all versions that were published
        before the receiver's position. If it lacks one, it repeats the request without a position.
        """
        before = 0 if self._wanted.versions else self._start.offset
        new, waiting = dict[CommitId, int](), self._roots()
        while waiting:
            id_ = waiting.pop()
            if id_ not in new:
                recorded, commit = commits.placed(self._snapshot, id_)
                if recorded.offset >= before and not self._known.holds(recorded, commit):
                    new[id_] = recorded.offset
                    waiting += (*commit.parents, *commit.needs)
        return new

    def _roots(self) -> list[CommitId]:
        wanted = self._wanted
        if wanted.versions or wanted.restore:
            for id_ in wanted.versions:
                commits.get(self._store.snapshot, id_)
            return list(wanted.versions)
        at = self._store.snapshot.ref(HEAD)
        roots = {*self._refs.values(), *self._deployed}
        return sorted(roots | ({at} if isinstance(at, CommitId) else set()))

    def _has_entry(self, recorded: Recorded) -> bool:
        """Whether the receiver probably has the contents that an entry published."""
        published = recorded.entry.commits
        if any(commit.id in self._new for commit in published) or (
            self._purged.contains_all_of(recorded)
        ):
            return False
        if recorded.offset < self._start.offset and not self._wanted.versions:
            return True
        return any(commit.id in self._known for commit in published)

    # -- states --------------------------------------------------------------------------

    def _mark(self, id_: CommitId) -> Lack | None:
        """Why the state of a version cannot be sent. None if the state can be sent."""
        if id_ in self._purged:
            return "name"
        return None if availability.forgotten(self._store, id_) is None else "rule"

    def _with_states(self) -> Container[CommitId]:
        """The new versions whose states are sent, and versions that dropped weights need."""
        states = self._wanted.states
        if states == "all":
            return self._new
        chosen: set[CommitId] = set()
        if states != "none":
            with suppress(DamagedData):  # entries with deployments may be damaged
                chosen.update(live_now(self._store))
        for tip in self._wanted.versions or self._refs.values():
            at: CommitId | None = tip
            for _ in range(0 if states == "none" else states):
                placed = None if at is None else commits.find(self._snapshot, at)
                if placed is None:
                    break
                chosen.add(placed[1].id)
                at = next(iter(placed[1].parents), None)
        return self._with_needed(chosen)

    def _with_needed(self, chosen: set[CommitId]) -> set[CommitId]:
        """Adds the versions that are needed to recompute dropped weights."""
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
        return _Version(commit, self._dropped(id_) if mark is None else Absent(bytes(id_), mark))

    def _dropped(self, id_: CommitId) -> Absent | None:
        dropped = availability.dropped(self._store, id_)
        return None if dropped is None else Absent(bytes(id_), "dropped", dropped.path)

    @property
    def versions(self) -> Iterator[Commit]:
        return (commits.get(self._store.snapshot, id_) for id_ in self._new)

    def lacks(self) -> Iterator[tuple[Commit, Absent, list[CommitId]]]:
        """The versions that are sent without their state or weights, in no particular order.

        Yields the version, the part that is not sent, and ids of other versions. These other
        versions are needed to recompute the part, but are sent without states.
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
        """The slices. Raises ConcurrentRewrite if the journal is replaced meanwhile."""
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
        yield self._slice(rows, None if self._wanted.restore else _place(self._end))

    def _slice(self, rows: Sequence[_Row], place: Place | None) -> Slice:
        sent = [row.sent for row in rows]
        self.sent |= versions_in(sent)
        return Slice(
            encode_entries(sent),
            sum(entry.size for entry in sent),
            (part for row in rows for part in row.chosen.read()),
            place=place,
            features=self._features,
        )

    def _all(self) -> Iterator[_Row]:
        for recorded in self._entries():
            yield from self._sent(recorded)
        for recorded, commit in self._wanted_states() if self._wanted.restore else ():
            version = _Version(commit, self._dropped(commit.id))
            yield self._row(recorded, [version], Sent(restored=(bytes(commit.id),)))

    def _entries(self) -> Iterator[Recorded]:
        """The entries to send, in the order of the journal."""
        offsets = {
            *self._new.values(),
            *(about(self._snapshot, self._new) if self._start != GENESIS else ()),
            *about(self._snapshot, self._wanted.due),
            *(() if self._wanted.restore else self._since),
        }
        return map(self._snapshot.entry, sorted(offsets))

    def _sent(self, recorded: Recorded) -> Iterator[_Row]:
        """Yields one row with the parts of an entry that are sent, or none if no part is sent."""
        versions = [
            self._version(commit)
            for commit in recorded.entry.commits
            if self._new.get(commit.id) == recorded.offset
        ]
        among = self._will_have if self._wanted.versions else None
        part = self._part_of(recorded)
        statements = statements_to_send(self._snapshot, part, among, reports=self._wanted.reports)
        if versions or statements:
            sent = Sent(
                tuple(version.commit.encoded for version in versions),
                statements=tuple(statement.encoded for statement in statements),
                is_own=bool(statements) and not part.entry.is_received,
            )
            yield self._row(recorded, versions, sent)

    def _will_have(self, id_: CommitId) -> bool:
        """Whether the receiver has a version, or gets the version with this transfer."""
        return id_ in self._new or id_ in self._known

    def _wanted_states(self) -> list[tuple[Recorded, Commit]]:
        """The versions whose states are requested, and versions that dropped weights need.

        Oldest first.
        """
        for id_ in self._wanted.restore:
            commits.get(self._store.snapshot, id_)
            availability.check_stored(self._store, id_)
        chosen = self._with_needed({*self._wanted.restore})
        rows = [commits.placed(self._snapshot, id_) for id_ in chosen if self._mark(id_) is None]
        return sorted(rows, key=lambda row: newest_first(*row), reverse=True)

    def _row(self, recorded: Recorded, versions: Sequence[_Version], sent: Sent) -> _Row:
        needed_manifests: set[ManifestId] = set()
        blobs: dict[bytes, TensorSpec] = {}
        for version in versions:
            if not version.has_state:
                continue
            manifest = self._closure.manifests.load(version.commit.manifest)
            dropped = () if version.lack is None else (version.lack.path,)
            self._note_parents(version.commit)
            needed_manifests.add(version.commit.manifest)
            blobs.update(manifests.objects(manifest.all_entries, dropped))
        needed = Needed(frozenset(needed_manifests), blobs)
        chosen = self._closure.choose(recorded, needed) if needed_manifests else NOTHING
        lacks = tuple(version.lack for version in versions if version.lack is not None)
        sent = replace(sent, size=chosen.size, absent=lacks, shapes=chosen.shapes)
        place = None if sent.restored else _place(recorded.after, self._end.sequence)
        return _Row(sent, chosen, place)

    def _note_parents(self, commit: Commit) -> None:
        """Notes which contents of parent versions the receiver has. These are not sent again."""
        for id_ in commit.parents:
            if id_ in self._known and id_ not in self._without:
                with suppress(StateForgotten, DamagedData):
                    self._closure.known |= manifests.objects(
                        manifests.of_commit(self._store, id_).all_entries
                    ).keys()


def _place(position: Position, end: int = 0) -> Place:
    return Place(position.sequence, position.chain, 0 if end == position.sequence else end)
