"""Weights that something outside of mvc can make again: dropped, stored again, and their cost.

Each change is one journal entry with a mark of the state; the proof by a replay is a statement.
The next ``gc`` deletes what no other version has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from mvc.adapters.state_file import StateFile
from mvc.errors import CannotRetrain, DamagedData
from mvc.ids import CommitId, Root
from mvc.limits import PIECE
from mvc.maintenance.rewrite_plan import encoding_policy, retry_on_rewrite
from mvc.model.manifest import FileEntry
from mvc.model.statement import ReplayProof
from mvc.names import printable
from mvc.repo.commit.write import store_file
from mvc.repo.config import Config
from mvc.repo.content.contents import write_file
from mvc.repo.content.predecessors import BaseFinder
from mvc.repo.lookup import availability, commits, manifests
from mvc.store.graph.plan import plan
from mvc.store.journal.entries import Entry, StateMark
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.store.writing.content_writer import ContentWriter


class Alternative(Struct, frozen=True):
    """How something outside of mvc makes the file ``path`` of a version again.

    It takes ``seconds``, from the version ``base``, one of those that this version needs.
    ``needs``: the files that it reads, by version and path, beside what the version carries.
    """

    base: CommitId
    path: str
    seconds: float
    needs: tuple[tuple[CommitId, str], ...] = ()


class Proof(Struct, frozen=True):
    """A replay made the state ``root`` of the file ``path``, from ``base`` in ``seconds``."""

    commit: CommitId
    path: str
    root: Root
    base: CommitId
    seconds: float


class Cost(Struct, frozen=True):
    """What files cost as they are stored: estimated ``seconds`` to recover them, and ``nbytes``."""

    seconds: float
    nbytes: int


def cost(store: Store, commit: CommitId, path: str | None, besides: CommitId | None = None) -> Cost:
    """The cost of a version, or of its file ``path``, without the bytes that ``besides`` has."""
    graph, rates, walks, stored = store.graph, store.rates, [], 0
    there = {
        content.id
        for entry in manifests.of_commit(store, besides).entries
        for content in entry.contents
    }
    entries = manifests.of_commit(store, commit).entries
    files = [entry for entry in entries if path in (None, entry.path)]
    for content in {content.id: content for entry in files for content in entry.contents}.values():
        for start in range(0, max(content.spec.nbytes, 1), PIECE):
            steps = plan(graph, [content.id], start).steps
            walks.append((min(PIECE, content.spec.nbytes - start), content.spec, steps))
            if content.id not in there:
                stored += steps[-1].header.share(steps[-1].member)
    size = sum(entry.size for entry in files)
    return Cost(rates.version(rates.works(walks), len(files), size), stored)


def prove(store: Store, config: Config, proofs: Sequence[Proof], *, where: str) -> None:
    """Records that replays on this repository made these states, in the environment ``where``.

    Nothing where the repository cannot be written. Raises DamagedData if a version has another
    state there.
    """
    for each in proofs:
        _check_same(each.root, _file(store, each.commit, each.path))
    if store.writable and proofs:
        made = tuple(
            ReplayProof(
                subject=each.commit,
                author=config.author,
                path=each.path,
                base=each.base,
                milliseconds=ceil(each.seconds * 1000),
                environment=where,
            )
            for each in proofs
        )
        store.publish(lambda: Entry("prove", store.clock.now_ns(), where, statements=made))


def providing(
    store: Store, commit: CommitId, path: str, file: StateFile
) -> AbstractContextManager[None]:
    """While the block runs, the file at ``path`` of a version is read from ``file``."""
    _check_same(file.root, _file(store, commit, path))
    contents = {bytes(tensor.id): file.tensor_bytes(tensor) for tensor in file.entry.tensors}
    return store.providing(contents)


def _check_same(root: Root, entry: FileEntry) -> None:
    if root != entry.state.root:
        raise DamagedData(f"this is not the state of {printable(entry.path)} in that version")


# -- dropping ----------------------------------------------------------------------------------


def is_proven(snapshot: Snapshot, commit: CommitId, alternative: Alternative) -> bool:
    """Whether a replay on this repository made these weights of a version that carries a recipe.

    A base that the version does not need does not count: it could be forgotten, or be made from
    the version itself.
    """
    known = commits.find(snapshot, commit)
    return (
        known is not None
        and bool(known[1].attached)
        and alternative.base in known[1].needs
        and availability.proof(snapshot, commit, alternative.path) is not None
    )


def drop(
    store: Store, config: Config, alternatives: Mapping[CommitId, Alternative], *, reason: str = ""
) -> None:
    """Drops the weights that the alternatives of these versions make; durable on return.

    All that they need, and what the versions carry, is read and compared with its hash before.
    Raises CannotRetrain for a version of which no replay on this repository has proven it,
    DamagedData, StateForgotten; then nothing is dropped.
    """
    if not alternatives:
        return
    store.fresh()
    needed = dict[tuple[CommitId, str], FileEntry]()
    for commit, each in alternatives.items():
        carried = manifests.of_commit(store, commit).attached
        for version, path in (*((commit, entry.path) for entry in carried), *each.needs):
            needed[version, path] = _file(store, version, path)
        if not is_proven(store.snapshot, commit, each):
            raise CannotRetrain(
                f"the recipe of {commit.short} is not proven: no replay has made its weights",
                hint=f"'mvc retrain {commit.short} --trust-code' proves it, or "
                f"mvc.retrain(repo, {commit.short!r}, trust=True)",
            )
    generation = store.graph.generation
    _check_whole(store, needed)

    def make() -> Entry:
        going = {
            id_: each
            for id_, each in alternatives.items()
            if availability.dropped(store, id_) is None
        }
        if not going:
            raise _NothingToDo
        for version in {*going, *(version for version, _ in needed)}:
            availability.check_kept(store, version)
        if store.graph.was_rewritten(generation):
            for (version, path), entry in needed.items():
                gone = availability.dropped(store, version, path)
                if gone is None and not availability.is_stored(store, entry):
                    raise _incomplete(version, path, "it was collected meanwhile")
        return Entry(
            "drop-weights",
            store.clock.now_ns(),
            author=config.author,
            reason=reason,
            states=tuple(StateMark(id_, "dropped", each.path) for id_, each in going.items()),
        )

    with suppress(_NothingToDo):
        store.publish(make)


class _NothingToDo(Exception):
    """The weights were dropped already."""


def _file(store: Store, commit: CommitId, path: str) -> FileEntry:
    for entry in manifests.of_commit(store, commit).all_entries:
        if entry.path == path:
            return entry
    raise DamagedData(
        f"version {commit.short} has no {printable(path)}, which the journal or a recipe names",
        hint="'mvc fsck' says what is damaged",
    )


def _check_whole(store: Store, needed: Mapping[tuple[CommitId, str], FileEntry]) -> None:
    """Reads every byte of these files. Raises DamagedData, which names one that is not whole."""
    for (version, path), entry in needed.items():
        try:
            store.recovery.manifest(commits.get(store.snapshot, version).manifest)
            write_file(store.recovery, entry, lambda _at, _data: None)
        except DamagedData as error:
            raise _incomplete(version, path, error.message) from error


def _incomplete(version: CommitId, path: str, why: str) -> DamagedData:
    return DamagedData(
        f"no weights are given up: their recipe needs {printable(path)} of {version.short}: {why}",
        hint="'mvc fsck --repair' looks for other copies",
    )


# -- storing again -----------------------------------------------------------------------------


def store(store: Store, config: Config, commit: CommitId, file: StateFile | None) -> None:
    """Stores dropped weights again, in full: ``file``, or (None) those that are still stored.

    Nothing is done if they were not dropped. Raises WeightsDropped if nothing leads to them, and
    DamagedData if the file has another state.
    """
    gone = availability.dropped(store, commit)
    if gone is None:
        return
    entry, mark = _file(store, commit, gone.path), StateMark(commit, "stored", gone.path)
    if file is not None:
        _check_same(file.root, entry)
    policy = replace(encoding_policy(config), reset=True)

    def attempt() -> None:
        store.snapshot.refresh()
        generation = store.graph.generation
        with store.pack_writer() as packs, closing(store.object_writer(packs, policy)) as objects:
            if file is not None:
                finder = BaseFinder(manifests.EMPTY)
                storing = finder.storing(mark.path, file.parsed)
                store_file(ContentWriter(objects), finder, storing)
            regions = objects.sync()

            def make() -> Entry:
                if store.graph.was_rewritten(generation):
                    raise ConcurrentRewrite
                if file is None and not availability.is_stored(store, entry):
                    raise availability.dropped_error(commit, gone)
                now, author = store.clock.now_ns(), config.author
                return Entry("restore-weights", now, author=author, states=(mark,), regions=regions)

            store.publish(make, release=packs.close)

    retry_on_rewrite(store.snapshot, attempt)
