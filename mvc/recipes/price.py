"""Whether a new version's recipe is cheaper than its weights (``store.storage_weight``)."""

from __future__ import annotations

from collections.abc import Iterable

from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.maintenance.repack.goal import Proven
from mvc.model.manifest import FileEntry
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.weights import dropped
from mvc.report.stats import recipe_base

__all__ = ["is_cheaper"]


def is_cheaper(context: Context, commit: CommitId, recipe: Proven) -> bool:
    """Whether making a version again costs less than storing what only it has of the weights.

    Never without ``store.storage_weight``, nor where it takes longer than ``store.max_recovery``.
    """
    get = context.config.get
    weight, bound = get("store.storage_weight"), get("store.max_recovery")
    if weight is None:
        return False
    base = manifests.of_commit(context, recipe.base)
    again = recipe.seconds + _making(context, recipe.base)
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


def _making(context: Context, commit: CommitId) -> float:
    """Seconds to recover a version or, if it gave up its weights, to train it and so on back."""
    seconds, at = 0.0, commit
    while (gone := dropped(context, at)) is not None:
        seconds += gone.seconds
        base = recipe_base(context, at)
        if base is None:
            return seconds
        at = base
    return seconds + _recovery(context, manifests.of_commit(context, at).entries)


def _recovery(context: Context, entries: Iterable[FileEntry]) -> float:
    """Estimated seconds to recover some files of a version as they are stored."""
    graph, timing, walks = context.store.graph, context.store.timing, []
    files = list(entries)
    for content in {content.id: content for entry in files for content in entry.contents}.values():
        for start in range(0, max(content.spec.nbytes, 1), PIECE):
            steps = graph.path(content.id, start).steps
            walks.append((min(PIECE, content.spec.nbytes - start), content.spec, steps))
    return timing.version(timing.works(walks), len(files), sum(entry.size for entry in files))
