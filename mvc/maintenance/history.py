"""Collects facts about versions from all entries of the journal, and shortens old entries for gc.

The journal is the log of the repository's operations, with one entry for each operation.
``VersionHistory`` needs a few hundred bytes of memory for each entry, a tenth of the entry's size.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from mvc.ids import CommitId, ManifestId
from mvc.model.commit import Commit
from mvc.model.statement import Tombstone
from mvc.names import is_report
from mvc.repo.lookup import availability
from mvc.repo.lookup.refs import BRANCH
from mvc.store.journal.entries import Entry, RefChange, StateMark
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot


class VersionHistory:
    """Facts about versions. Add every entry in the order of the journal, then query.

    ``numbers``: maps every version that an entry names to a number, counted from 0.
    ``published``: the numbers of published versions. ``homes``: for each entry, the number of the
    last version that the entry published, or -1. ``forgotten``: maps every version without state
    to True if it was forgotten by name, otherwise to False. ``absent``: the forgotten versions that
    were received without state. ``without_residue``: forgotten versions whose bytes are all
    deleted. ``dropped``: maps versions to the path of their dropped weights.
    """

    def __init__(self) -> None:
        self.numbers: dict[CommitId, int] = {}
        self.published: list[int] = []
        self.homes = array("q")
        self.forgotten: dict[CommitId, bool] = {}
        self.absent: set[CommitId] = set()
        self.without_residue: set[CommitId] = set()
        self.dropped: dict[CommitId, str] = {}
        self.deployments = 0
        self.targets: set[str] = set()
        self._manifests: list[ManifestId | None] = []  # None: the version is not published
        self._needs: list[tuple[int, ...]] = []
        # The present value of each ref, and the position of the entry that set this value.
        self._refs: dict[str, tuple[int | None, int]] = {}
        self._deployed: set[int] = set()
        self._times, self._sequences = array("Q"), array("q")
        # The numbers of the versions that the first entry names, the second entry names, and so on.
        self._names, self._name_ends = array("q"), array("q", [0])
        # For each entry, whether it only publishes versions and moves branches.
        self._plain = bytearray()
        self._marked: set[int] = set()  # positions of entries with facts about versions

    def add(self, recorded: Recorded) -> None:
        entry, position = recorded.entry, len(self._times)
        for commit in entry.commits:
            number = self._number(commit.id)
            self.published.append(number)
            self._manifests[number] = commit.manifest
            needed = (*commit.parents, *commit.needs)
            self._needs[number] = tuple(map(self._number, needed))
        self.homes.append(self.published[-1] if entry.commits else -1)
        moves_branch = False
        for change in entry.refs:
            value = self._number(change.new) if isinstance(change.new, CommitId) else None
            self._refs[change.name] = value, position
            moves_branch = moves_branch or change.name.startswith(BRANCH)
        for deployment in entry.deployments:
            self._deployed.add(self._number(CommitId(deployment.subject)))
            if not is_report(deployment.target):
                self.targets.add(deployment.target)
                self.deployments += 1
        stones = [CommitId(stone.subject) for stone in entry.of(Tombstone)]
        for id_ in stones:
            self.forgotten[id_] = True
            self.without_residue.discard(id_)
            self.absent.discard(id_)
        for mark in entry.states:
            self._mark(mark)
        if any(mark.path for mark in entry.states) or any(
            not s.is_evidence for s in entry.statements
        ):
            self._marked.add(position)
        self._times.append(entry.time_ns)
        self._sequences.append(recorded.sequence)
        self._names.extend(map(self._number, names_of(entry)))
        self._name_ends.append(len(self._names))
        special = entry.states or stones or position in self._marked
        self._plain.append(bool(entry.commits and moves_branch and not special))

    def _mark(self, mark: StateMark) -> None:
        id_, is_named = mark.commit, self.forgotten.get(mark.commit, False)
        if mark.change == "dropped":
            self.dropped[id_] = mark.path
        elif mark.path:
            self.dropped.pop(id_, None)
        elif mark.change == "no residue":
            self.without_residue.add(id_)
        elif not is_named:
            self.forgotten.pop(id_, None)
            self.absent.discard(id_)
            self.without_residue.discard(id_)
            if mark.change != "stored":
                self.forgotten[id_] = False
            if mark.change == "absent":
                self.absent.add(id_)

    @property
    def with_residue(self) -> set[CommitId]:
        """Versions that were forgotten by name, and of whose bytes some may still exist."""
        return {id_ for id_, named in self.forgotten.items() if named} - self.without_residue

    def _number(self, id_: CommitId) -> int:
        number = self.numbers.setdefault(id_, len(self.numbers))
        if number == len(self._manifests):
            self._manifests.append(None)
            self._needs.append(())
        return number

    def _named(self, position: int) -> array[int]:
        """The numbers of the versions that the entry at ``position`` names (``names_of``)."""
        return self._names[self._name_ends[position] : self._name_ends[position + 1]]

    def manifest(self, id_: CommitId) -> ManifestId | None:
        """The manifest (list of files) of a version. None if no entry publishes the version."""
        number = self.numbers.get(id_)
        return None if number is None else self._manifests[number]

    def states(self) -> Mapping[CommitId, ManifestId]:
        """The manifests of all published versions that are not forgotten, oldest first."""
        ids = list(self.numbers)
        manifests = ((ids[number], self._manifests[number]) for number in self.published)
        return {id_: m for id_, m in manifests if m is not None and id_ not in self.forgotten}

    def dropped_paths(self, among: Iterable[CommitId]) -> dict[ManifestId, set[str]]:
        """Maps each manifest to paths whose weights are dropped.

        A path is included if its weights are dropped in all versions in ``among`` with this
        manifest.
        """
        states = ((id_, m) for id_ in among if (m := self.manifest(id_)) is not None)
        return availability.dropped_by_manifest(self.dropped, states)

    def stored(self) -> set[CommitId]:
        """Published versions that are reachable and not forgotten."""
        reachable = self.reachable()
        return {id_ for id_ in self.states() if self.numbers[id_] in reachable}

    def reachable(self, cutoff_ns: int | None = None) -> set[int]:
        """The numbers of the published versions that refs, HEAD and deployments name.

        With ``cutoff_ns``, operations since this time name versions, too. Includes the ancestors of
        all these versions, and versions that are needed to train them again.
        """
        roots = set(self._deployed)
        roots.update(value for value, _ in self._refs.values() if value is not None)
        if cutoff_ns is not None:
            late = (position for position, at in enumerate(self._times) if at >= cutoff_ns)
            roots.update(number for position in late for number in self._named(position))
        return self._closure(roots)

    def _closure(self, roots: Iterable[int]) -> set[int]:
        reached: set[int] = set()
        waiting = list(roots)
        while waiting:
            number = waiting.pop()
            if number not in reached and self._manifests[number] is not None:
                reached.add(number)
                waiting.extend(self._needs[number])
        return reached

    # -- what can be left out --------------------------------------------------------------

    def shortened(
        self, entries: Sequence[Recorded], stay: Set[CommitId], cutoff_ns: int
    ) -> tuple[dict[int, Entry | None], int]:
        """The entries as gc shortens them, and the number of saved bytes.

        Maps the position of each changed entry to the new entry, or to None if the entry is
        deleted. ``entries``: all entries that were added. ``stay``: the versions that gc does not
        delete. From entries since ``cutoff_ns``, removes only marks and statements (for example
        annotations) about deleted versions. From older entries, removes the deleted versions, too.
        An older entry whose versions all stay can still be undone. Other older entries lose the old
        values of refs and cannot be undone, so that no undo is partial or repeated.
        """
        numbers = {self.numbers[id_] for id_ in stay}
        undoable: set[int] = set()  # sequence numbers of older entries that can be undone
        edits: dict[int, Entry | None] = {}
        saved = 0
        for position in range(1, len(self._times)):
            recent = self._times[position] >= cutoff_ns
            if recent and position not in self._marked:
                continue
            plain = not recent and self._plain[position]
            if plain and all(number in numbers for number in self._named(position)):
                undoable.add(self._sequences[position])
                continue
            recorded = entries[position]
            old = recorded.entry
            new = _without(old, stay)
            if not recent:
                refs = self._refs_left(position, old, stay)
                if (refs or old.undoes in undoable) and names_of(old) <= stay:
                    undoable.add(recorded.sequence)
                else:
                    new = replace(new, refs=tuple(replace(c, old=c.new) for c in refs), undoes=None)
                commits = tuple(commit for commit in old.commits if commit.id in stay)
                new = replace(new, commits=commits, marks=old.marks if commits else ())
                if not (new.commits or new.refs or new.statements or new.states or new.reason):
                    edits[position] = None
                    saved += recorded.after.offset - recorded.offset
                    continue
            if new != old:
                edits[position] = new
                saved += 2 * (len(old.encoded) - len(new.encoded))
        return edits, saved

    def _refs_left(self, position: int, entry: Entry, stay: Set[CommitId]) -> tuple[RefChange, ...]:
        """The changes of refs that remain in an entry.

        A change remains if it set the present value of its ref. If a version that the entry
        published stays, moves of branches between versions that stay remain, too.
        """
        keeps_moves = any(commit.id in stay for commit in entry.commits)
        return tuple(
            change
            for change in entry.refs
            if self._refs[change.name][1] == position
            or (keeps_moves and _moves_among(stay, change))
        )


def read_versions(snapshot: Snapshot) -> tuple[VersionHistory, dict[CommitId, Commit]]:
    """The history of the whole journal, and every published version in the order of publication."""
    history, versions = VersionHistory(), dict[CommitId, Commit]()
    for recorded in snapshot.entries():
        history.add(recorded)
        versions.update((commit.id, commit) for commit in recorded.entry.commits)
    return history, versions


def names_of(entry: Entry) -> set[CommitId]:
    """The versions that an entry names: published versions, and old and new values of refs."""
    values = (value for change in entry.refs for value in (change.old, change.new))
    named = (value for value in values if isinstance(value, CommitId))
    return {*(commit.id for commit in entry.commits), *named}


def _moves_among(stay: Set[CommitId], change: RefChange) -> bool:
    values = [value for value in (change.old, change.new) if isinstance(value, CommitId)]
    return change.name.startswith(BRANCH) and all(value in stay for value in values)


def _without(entry: Entry, stay: Set[CommitId]) -> Entry:
    """The entry without its marks and statements about versions that are not in ``stay``."""
    rows = [
        (statement, entry.before(statement))
        for statement in entry.statements
        if statement.is_evidence or statement.commit is None or statement.commit in stay
    ]
    return replace(
        entry,
        statements=tuple(statement for statement, _ in rows),
        previous=tuple(before for _, before in rows),
        states=tuple(mark for mark in entry.states if not mark.path or mark.commit in stay),
    )
