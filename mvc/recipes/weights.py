"""Gives up weights that a proven recipe makes again, and stores them again.

Each is one journal entry with a mark of the state; the proof by a replay is a statement. The next
``gc`` deletes what no other version has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any

from msgspec.structs import replace

from mvc.adapters.python.state import from_state
from mvc.api import FileEntry
from mvc.errors import (
    CannotRetrain,
    DamagedData,
    StateForgotten,
    UnknownPath,
    UnknownRevision,
)
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.maintenance.repack.goal import Proven
from mvc.maintenance.rewrite_plan import encoding_policy, retry_on_rewrite
from mvc.names import printable
from mvc.recipes import dataset
from mvc.recipes.recipe import Recipe, needed_file, recipe_of
from mvc.recipes.replay import ReplayOptions, Retrained, made_again
from mvc.repo.commit.commit import store_file
from mvc.repo.content.contents import write_file
from mvc.repo.content.predecessors import BaseFinder
from mvc.repo.context import Context
from mvc.repo.lookup import availability, commits, manifests
from mvc.store.graph.plan import plan
from mvc.store.journal.entries import Entry, StateMark
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.writing.content_writer import ContentWriter


def prove(context: Context, commit: CommitId, options: ReplayOptions) -> Retrained:
    """Trains a version again, and verifies and records that as ``made_again`` does."""
    with made_again(context, commit, options) as done:
        return done


def all_proven(context: Context) -> dict[CommitId, Proven]:
    """The versions with a recipe that a replay has proven here, and what it takes.

    Not those whose data lie outside of the repository, nor those whose recipe cannot be read.
    """
    found = {}
    for commit, mark in availability.proven_here(context).items():
        with suppress(UnknownPath, UnknownRevision, StateForgotten, DamagedData):
            recipe = recipe_of(context, commit)
            proven = mark.path == recipe.makes.path and unproven_base(context, commit) is None
            if proven and not dataset.outside(context, recipe.data):
                found[commit] = Proven(
                    recipe.base.version, recipe.makes.path, mark.milliseconds / 1000
                )
    return found


def unproven_base(context: Context, commit: CommitId) -> CommitId | None:
    """A base that gave up its weights unproven, and that the recipe of this version needs.

    Of versions before it, too, back to one that has its weights. None if none did.
    """
    for base, recipe in islice(_lineage(context, commit), 1, None):
        if availability.proof(context, base, recipe.makes.path) is None:
            return base
    return None


def _lineage(context: Context, commit: CommitId) -> Iterator[tuple[CommitId, Recipe]]:
    """A version and the bases before it that gave up their weights, with their recipes."""
    recipe = recipe_of(context, commit)
    yield commit, recipe
    while availability.dropped(context, recipe.base.version, recipe.base.path):
        commit = recipe.base.version
        recipe = recipe_of(context, commit)
        yield commit, recipe


def is_cheaper(context: Context, commit: CommitId, recipe: Proven) -> bool:
    """Whether making a version again costs less than storing what only it has of the weights.

    Never without ``store.storage_weight``, nor where it takes longer than ``store.max_recovery``.
    """
    get = context.config.get
    weight, bound = get("store.storage_weight"), get("store.max_recovery")
    if weight is None:
        return False
    base = manifests.of_commit(context, recipe.base)
    again, stored_base = recipe.seconds, recipe.base
    for each, needs in islice(_lineage(context, commit), 1, None):
        gone = availability.dropped(context, each)
        again += 0.0 if gone is None else gone.seconds
        stored_base = needs.base.version
    again += _recovery(context, manifests.of_commit(context, stored_base).entries)
    if bound is not None and again > bound:
        return False
    entry = manifests.of_commit(context, commit).by_path[recipe.path]
    there = {content.id for each in base.entries for content in each.contents}
    new = {content.id: content.spec.nbytes for content in entry.contents if content.id not in there}
    graph, stored = context.store.graph, 0
    for id_, nbytes in new.items():
        for start in range(0, max(nbytes, 1), PIECE):
            last = graph.path(id_, start).steps[-1]
            stored += last.header.share(last.member)
    return again < stored * float(weight) / 1e9 + _recovery(context, [entry])


def _recovery(context: Context, entries: Iterable[FileEntry]) -> float:
    """Estimated seconds to recover some files of a version as they are stored."""
    graph, rates, walks = context.store.graph, context.store.rates, []
    files = list(entries)
    for content in {content.id: content for entry in files for content in entry.contents}.values():
        for start in range(0, max(content.spec.nbytes, 1), PIECE):
            steps = plan(graph, [content.id], start).steps
            walks.append((min(PIECE, content.spec.nbytes - start), content.spec, steps))
    return rates.version(rates.works(walks), len(files), sum(entry.size for entry in files))


@contextmanager
def readable(
    context: Context, commit: CommitId, options: ReplayOptions
) -> Iterator[Retrained | None]:
    """While the block runs, a version can be read; it is trained again if nothing else leads to it.

    Yields None if its weights are stored. Raises as ``made_again`` does.
    """
    gone = availability.dropped(context, commit)
    if gone is None or availability.is_stored(context, needed_file(context, commit, gone.path)):
        yield None
        return
    with made_again(context, commit, options) as done:
        yield done


def drop(
    context: Context,
    versions: Sequence[CommitId],
    *,
    reason: str = "",
) -> None:
    """Gives up the weights that the recipes of these versions make; durable on return.

    All that the recipes need is read and compared with its hash before. Raises UnknownPath for a
    version without a recipe, CannotRetrain for one that no replay on this repository has proven or
    whose data are references, DamagedData, StateForgotten; then nothing is given up.
    """
    context.fresh()
    marks, needed = [], dict[tuple[CommitId, str], FileEntry]()
    for commit in dict.fromkeys(versions):
        recipe = recipe_of(context, commit)
        needed |= _needed(context, commit)
        unproven = unproven_base(context, commit)
        if unproven is not None:
            raise CannotRetrain(
                f"{commit.short} was trained from {unproven.short}, whose weights were given up "
                "unproven",
                hint=f"'mvc retrain {unproven.short} --trust-code' stores them again",
            )
        proof = availability.proof(context, commit, recipe.makes.path)
        if proof is None:
            raise CannotRetrain(
                f"the recipe of {commit.short} is not proven: no replay has made its weights",
                hint=f"'mvc retrain {commit.short} --trust-code' proves it, or "
                f"mvc.retrain(repo, {commit.short!r}, trust=True)",
            )
        marks.append(StateMark(commit, "dropped", recipe.makes.path))

    generation = context.store.graph.generation
    _check_whole(context, needed)

    def make() -> Entry:
        there = [mark for mark in marks if availability.dropped(context, mark.commit) is None]
        if not there:
            raise _NothingToDo
        for version in {*(mark.commit for mark in there), *(version for version, _ in needed)}:
            availability.check_kept(context, version)
        if context.store.graph.was_rewritten(generation):
            for (version, path), entry in needed.items():
                gone = availability.dropped(context, version, path)
                if gone is None and not availability.is_stored(context, entry):
                    raise _incomplete(version, path, "it was collected meanwhile")
        return Entry(
            "drop-weights",
            context.store.clock.now_ns(),
            author=context.author,
            reason=reason,
            states=tuple(there),
        )

    with suppress(_NothingToDo):
        context.store.publish(make)


class _NothingToDo(Exception):
    """The weights were given up already."""


def _needed(context: Context, commit: CommitId) -> dict[tuple[CommitId, str], FileEntry]:
    """The files without which a version cannot be made again, by version and path.

    These are what it carries, the files of its data sets, and its base or, if that gave up its
    weights, too, what that one needs. Raises CannotRetrain, DamagedData, StateForgotten.
    """
    found: dict[tuple[CommitId, str], FileEntry] = {}
    for version, recipe in _lineage(context, commit):
        names = dataset.outside(context, recipe.data)
        if names:
            raise CannotRetrain(
                f"the data that {version.short} was trained on lie outside of mvc: "
                f"{', '.join(names)}; if they change, its weights are lost",
                hint="store them with 'mvc import --data', and train on those",
            )
        carried = manifests.of_commit(context, version).attached
        found |= {(version, entry.path): entry for entry in carried}
        for data in recipe.data:
            entries = manifests.of_commit(context, data.version).entries
            found |= {(data.version, entry.path): entry for entry in entries}
    base = recipe.base
    return found | {(base.version, base.path): needed_file(context, base.version, base.path)}


def _check_whole(context: Context, needed: Mapping[tuple[CommitId, str], FileEntry]) -> None:
    """Reads every byte of these files. Raises DamagedData, which names one that is not whole."""
    for (version, path), entry in needed.items():
        try:
            context.store.recovery.manifest(commits.get(context, version).manifest)
            write_file(context.store.recovery, entry, lambda _at, _data: None)
        except DamagedData as error:
            raise _incomplete(version, path, error.message) from error


def _incomplete(version: CommitId, path: str, why: str) -> DamagedData:
    return DamagedData(
        f"no weights are given up: their recipe needs {printable(path)} of {version.short}: {why}",
        hint="'mvc fsck --repair' looks for other copies",
    )


def store_again(context: Context, commit: CommitId, options: ReplayOptions) -> None:
    """Stores weights again that a version gave up: from what is still there, or by a replay.

    Nothing is done if it has them. Raises as ``made_again`` does.
    """
    gone = availability.dropped(context, commit)
    if gone is None:
        return
    mark = StateMark(commit, "stored", gone.path)
    if availability.is_stored(context, needed_file(context, commit, gone.path)):
        with suppress(_Collected):
            _store(context, mark, None)
            return
    with made_again(context, commit, options) as done:
        _store(context, mark, done.state)


class _Collected(Exception):
    """A gc has deleted the weights meanwhile."""


def _store(context: Context, mark: StateMark, state: Any) -> None:
    """Writes the weights that were made in full (None: they are still stored), with the mark.

    Raises _Collected if there were none to write, and they are stored no more.
    """
    store, policy = context.store, replace(encoding_policy(context.config), reset=True)

    def attempt() -> None:
        store.snapshot.refresh()
        generation = store.graph.generation
        with store.pack_writer() as packs, closing(store.object_writer(packs, policy)) as objects:
            if state is not None:
                finder = BaseFinder(manifests.EMPTY)
                store_file(ContentWriter(objects), finder, from_state(state), mark.path)
            regions = objects.sync()

            def make() -> Entry:
                if store.graph.was_rewritten(generation):
                    raise ConcurrentRewrite
                file = needed_file(context, mark.commit, mark.path)
                if state is None and not availability.is_stored(context, file):
                    raise _Collected
                now, author = store.clock.now_ns(), context.author
                return Entry("restore-weights", now, author=author, states=(mark,), regions=regions)

            store.publish(make, release=packs.close)

    retry_on_rewrite(store.snapshot, attempt)
