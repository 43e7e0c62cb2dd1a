"""Drops weights that a training program can compute again, and stores dropped weights again.

A replay runs the program again. If the replay computes the same weights, ``prove`` records a proof.
``drop`` marks proven weights as dropped, and the next ``gc`` deletes their bytes, unless another
version has the same bytes. ``store`` stores dropped weights again.
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
    """How a program computes the weights of a version, the file ``path``, again.

    ``seconds``: how long the program takes. ``base``: the version from which the program starts.
    ``needs``: each file of another version that the program reads, as version and path.
    """

    base: CommitId
    path: str
    seconds: float
    needs: tuple[tuple[CommitId, str], ...] = ()


class Proof(Struct, frozen=True):
    """The result of a replay that computed the file ``path`` of the version ``commit``.

    ``root``: the hash of the computed state. ``base``: the version from which the replay started.
    ``seconds``: how long the replay took.
    """

    commit: CommitId
    path: str
    root: Root
    base: CommitId
    seconds: float


class Cost(Struct, frozen=True):
    """Estimated ``seconds`` to recover files, and the number of bytes that they need on disk."""

    seconds: float
    nbytes: int


def cost(
    store: Store, commit: CommitId, path: str | None, except_for: CommitId | None = None
) -> Cost:
    """The cost of all files of a version, or of the file ``path``.

    ``nbytes`` does not include tensors that the version ``except_for`` has, too.
    """
    graph, rates, walks, stored = store.graph, store.rates, [], 0
    excluded = {
        content.id
        for entry in manifests.of_commit(store, except_for).entries
        for content in entry.contents
    }
    entries = manifests.of_commit(store, commit).entries
    files = [entry for entry in entries if path in (None, entry.path)]
    for content in {content.id: content for entry in files for content in entry.contents}.values():
        for start in range(0, max(content.spec.nbytes, 1), PIECE):
            steps = plan(graph, [content.id], start).steps
            walks.append((min(PIECE, content.spec.nbytes - start), content.spec, steps))
            if content.id not in excluded:
                stored += steps[-1].header.share(steps[-1].member)
    size = sum(entry.size for entry in files)
    return Cost(rates.version(rates.works(walks), len(files), size), stored)


def prove(store: Store, config: Config, proofs: Sequence[Proof], *, where: str) -> None:
    """Records the results of replays, if the repository is writable.

    ``where``: the environment of the replays. Raises DamagedData if a replay computed another state
    than the version has.
    """
    for proof in proofs:
        _check_same(proof.root, _file(store, proof.commit, proof.path))
    if store.writable and proofs:
        statements = tuple(
            ReplayProof(
                subject=proof.commit,
                author=config.author,
                path=proof.path,
                base=proof.base,
                milliseconds=ceil(proof.seconds * 1000),
                environment=where,
            )
            for proof in proofs
        )
        store.publish(lambda: Entry("prove", store.clock.now_ns(), where, statements=statements))


def providing(
    store: Store, commit: CommitId, path: str, file: StateFile
) -> AbstractContextManager[None]:
    """While the block runs, the file at ``path`` of a version is read from ``file``."""
    _check_same(file.root, _file(store, commit, path))
    contents = {bytes(tensor.id): file.tensor_bytes(tensor) for tensor in file.entry.tensors}
    return store.providing(contents)


def _check_same(root: Root, entry: FileEntry) -> None:
    if root != entry.state.root:
        raise DamagedData(f"the state differs from that of {printable(entry.path)} in this version")


# -- dropping ----------------------------------------------------------------------------------


def is_proven(snapshot: Snapshot, commit: CommitId, alternative: Alternative) -> bool:
    """Whether a replay on this repository has computed the weights of ``alternative``.

    False if the commit does not record that it needs the base. Such a base could be forgotten, or
    be stored as a delta from the version itself.
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
    """Drops the weights of the versions in ``alternatives``. Durable on return.

    First checks the hashes of all attachments of these versions, and of all files that the
    alternatives need. After an error, no weights are dropped. Raises CannotRetrain if no replay on
    this repository has computed the weights of a version; DamagedData; StateForgotten.
    """
    if not alternatives:
        return
    store.fresh()
    needed = dict[tuple[CommitId, str], FileEntry]()
    for commit, alternative in alternatives.items():
        carried = manifests.of_commit(store, commit).attached
        for version, path in (*((commit, entry.path) for entry in carried), *alternative.needs):
            needed[version, path] = _file(store, version, path)
        if not is_proven(store.snapshot, commit, alternative):
            raise CannotRetrain(
                f"the recipe of {commit.short} is not proven: no replay has restored its weights",
                hint=f"run 'mvc retrain {commit.short} --trust-code' to prove it, or "
                f"mvc.retrain(repo, {commit.short!r}, trust=True)",
            )
    generation = store.graph.generation
    _check_whole(store, needed)

    def make_entry() -> Entry:
        going = {
            id_: alternative
            for id_, alternative in alternatives.items()
            if availability.dropped(store, id_) is None
        }
        if not going:
            raise _NothingToDo
        for version in {*going, *(version for version, _ in needed)}:
            availability.check_stored(store, version)
        if store.graph.was_rewritten(generation):
            for (version, path), entry in needed.items():
                dropped = availability.dropped(store, version, path)
                if dropped is None and not availability.is_stored(store, entry):
                    raise _incomplete(version, path, "gc deleted the file meanwhile")
        return Entry(
            "drop-weights",
            store.clock.now_ns(),
            author=config.author,
            reason=reason,
            states=tuple(
                StateMark(id_, "dropped", alternative.path) for id_, alternative in going.items()
            ),
        )

    with suppress(_NothingToDo):
        store.publish(make_entry)


class _NothingToDo(Exception):
    """The weights were dropped already."""


def _file(store: Store, commit: CommitId, path: str) -> FileEntry:
    for entry in manifests.of_commit(store, commit).all_entries:
        if entry.path == path:
            return entry
    raise DamagedData(
        f"version {commit.short} has no {printable(path)}, which the journal or a recipe names",
        hint="run 'mvc fsck' to see the damage",
    )


def _check_whole(store: Store, needed: Mapping[tuple[CommitId, str], FileEntry]) -> None:
    """Reads every byte of the files in ``needed``. Raises DamagedData if a file is damaged."""
    for (version, path), entry in needed.items():
        try:
            store.recovery.manifest(commits.get(store.snapshot, version).manifest)
            write_file(store.recovery, entry, lambda _at, _data: None)
        except DamagedData as error:
            raise _incomplete(version, path, error.message) from error


def _incomplete(version: CommitId, path: str, why: str) -> DamagedData:
    return DamagedData(
        f"no weights were dropped: their recipe needs {printable(path)} of {version.short}: {why}",
        hint="run 'mvc fsck --repair' to search other copies",
    )


# -- storing again -----------------------------------------------------------------------------


def store(store: Store, config: Config, commit: CommitId, file: StateFile | None) -> None:
    """Stores dropped weights again, in full, from ``file``. Does nothing if none were dropped.

    If ``file`` is None, only marks the weights as stored, which needs bytes that ``gc`` has not
    deleted yet. Raises WeightsDropped if ``gc`` has deleted the bytes; DamagedData if ``file`` has
    another state than the version.
    """
    dropped = availability.dropped(store, commit)
    if dropped is None:
        return
    entry, mark = _file(store, commit, dropped.path), StateMark(commit, "stored", dropped.path)
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

            def make_entry() -> Entry:
                if store.graph.was_rewritten(generation):
                    raise ConcurrentRewrite
                if file is None and not availability.is_stored(store, entry):
                    raise availability.dropped_error(commit, dropped)
                now, author = store.clock.now_ns(), config.author
                return Entry("restore-weights", now, author=author, states=(mark,), regions=regions)

            store.publish(make_entry, release=packs.close)

    retry_on_rewrite(store.snapshot, attempt)
