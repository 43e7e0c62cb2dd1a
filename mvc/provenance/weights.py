"""Gives up weights that a proven recipe makes again, and stores them again.

Each is one journal entry with a mark, as is the proof by a replay. The next ``gc`` deletes what no
other version has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mvc.adapters.python.state import from_state
from mvc.codecs.pipeline import Pipeline
from mvc.errors import Busy, CannotRetrain
from mvc.ids import CommitId
from mvc.provenance.replay import Retrained, made_again, recipe_of
from mvc.repo.commit.commit import layout_of
from mvc.repo.commit.state_writer import StateWriter
from mvc.repo.context import Context, Progress
from mvc.repo.lookup import commits, manifests, weights
from mvc.repo.repack.goal import Proven
from mvc.store.journal.entries import Entry, Weights
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.writing.full_or_delta import Policy

__all__ = ["all_proven", "drop", "prove", "store_again"]

_TRIES = 8


def prove(
    context: Context,
    commit: CommitId,
    *,
    trust: bool,
    anyway: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Retrained:
    """Trains a version again, and verifies and records that as ``made_again`` does."""
    with made_again(
        context, commit, trust=trust, anyway=anyway, threads=threads, progress=progress
    ) as done:
        return done


def all_proven(context: Context) -> dict[CommitId, Proven]:
    """The versions with a recipe that a replay has proven here, and what it takes."""
    marks = {mark.commit: mark for _, mark in context.fresh().weights() if mark.where}
    found = {}
    for commit, mark in marks.items():
        if manifests.forgotten_ns(context, commit) is None:
            recipe = recipe_of(context, commit)
            found[commit] = Proven(recipe.base, recipe.path, mark.milliseconds / 1000)
    return found


@contextmanager
def readable(
    context: Context,
    commit: CommitId,
    *,
    trust: bool,
    anyway: bool = False,
    progress: Progress | None = None,
) -> Iterator[Retrained | None]:
    """While the block runs, a version can be read; it is trained again if nothing else leads to it.

    Yields None if its weights are stored. Raises as ``made_again`` does.
    """
    context.fresh()
    gone = weights.dropped(context, commit)
    if gone is not None:
        entry = manifests.of_commit(context, commit).by_path[gone.path]
        if not weights.is_stored(context, entry):
            with made_again(context, commit, trust=trust, anyway=anyway, progress=progress) as done:
                yield done
            return
    yield None


def drop(
    context: Context,
    versions: Sequence[CommitId],
    *,
    unproven: bool = False,
    trust: bool = False,
    anyway: bool = False,
    progress: Progress | None = None,
) -> None:
    """Gives up the weights that the recipes of these versions make; durable on return.

    A recipe that no replay on this repository has proven is proven now, with ``trust``. Raises
    UnknownPath for a version without a recipe, CannotRetrain for one that is not proven (unless
    ``unproven``), and StateForgotten; then nothing is given up.
    """
    context.fresh()
    marks = []
    for commit in dict.fromkeys(versions):
        recipe = recipe_of(context, commit)
        proof = weights.proof(context, commit)
        if proof is None and trust and not unproven:
            prove(context, commit, trust=trust, anyway=anyway, progress=progress)
            proof = weights.proof(context, commit)
        if proof is None and not unproven:
            raise CannotRetrain(
                f"the recipe of {commit.short} is not proven: no replay has made its weights",
                hint=f"repo.retrain({commit.short!r}, trust=True) proves it, or "
                "'mvc repack --drop-weights REV --trust-code'",
            )
        taken = recipe.seconds if proof is None else proof[1].milliseconds / 1000
        marks.append(Weights(commit, "dropped", recipe.path, round(taken * 1000)))

    def make() -> Entry:
        there = [mark for mark in marks if weights.dropped(context, mark.commit) is None]
        for mark in there:
            manifests.check_kept(context, mark.commit)
            for needed in commits.get(context, mark.commit).needs:
                manifests.check_kept(context, needed)
        if not there:
            raise _NothingToDo
        now = context.store.clock.now_ns()
        return Entry("drop-weights", now, weights=tuple(there))

    with suppress(_NothingToDo):
        context.store.publish(make)


class _NothingToDo(Exception):
    """The weights were given up already."""


def store_again(
    context: Context,
    commit: CommitId,
    *,
    trust: bool,
    anyway: bool = False,
    progress: Progress | None = None,
) -> None:
    """Stores weights again that a version gave up: from what is still there, or by a replay.

    Nothing is done if it has them. Raises as ``made_again`` does.
    """
    context.fresh()
    gone = weights.dropped(context, commit)
    if gone is None:
        return
    entry = manifests.of_commit(context, commit).by_path[gone.path]
    if weights.is_stored(context, entry):
        _store(context, commit, gone, None)
        return
    with made_again(context, commit, trust=trust, anyway=anyway, progress=progress) as done:
        _store(context, commit, gone, done)


def _store(
    context: Context, commit: CommitId, gone: weights.Dropped, done: Retrained | None
) -> None:
    """Writes the weights that were made in full (None: they are still stored), with the mark."""
    seconds = gone.seconds if done is None else done.seconds
    where = "" if done is None else done.where
    mark = Weights(commit, "restored", gone.path, round(seconds * 1000), where)
    get = context.config.get
    pipeline = Pipeline.parse(str(get("commit.pipeline"))).coding()
    policy = Policy(pipeline, layout_of(context.config), float(get("store.max_chain")), True)
    for _ in range(_TRIES):
        with suppress(ConcurrentRewrite):
            _attempt(context, policy, mark, None if done is None else done.state)
            return
    raise Busy("the store was rewritten again and again meanwhile", hint="run it again")


def _attempt(context: Context, policy: Policy, mark: Weights, state: Any) -> None:
    graph = context.store.graph
    context.store.snapshot.refresh()
    generation = graph.generation
    with context.store.pack_writer() as packs:
        files = StateWriter(context, packs, policy, manifests.EMPTY)
        try:
            if state is not None:
                files.keep(from_state(state), mark.path)
            files.writer.flush()
            regions = packs.sync()

            def make() -> Entry:
                if graph.was_rewritten(generation):
                    raise ConcurrentRewrite
                now = context.store.clock.now_ns()
                return Entry("restore-weights", now, regions=regions, weights=(mark,))

            context.store.publish(make, release=packs.close)
        finally:
            files.writer.close()
