"""Which weights a proven recipe may replace, and whether that is cheaper than to store them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from msgspec.structs import replace

from mvc.api import Alternative, Dropped, Repository, Stored
from mvc.errors import CannotRetrain, DamagedData, StateForgotten, UnknownPath
from mvc.ids import CommitId
from mvc.recipes import dataset
from mvc.recipes.recipe import STEPS, Recipe, StepRecipe, missing_weights, recipe_of, segment


def alternatives(repo: Repository) -> dict[CommitId, Alternative]:
    """The versions whose weights a recipe makes again, as a replay here has proven.

    Not full states of a training by steps, nor those whose data lie outside of the repository, nor
    those whose recipe cannot be read.
    """
    found = {}
    for commit, proof in repo.storage.proofs().items():
        here = map(repo.availability, (commit, *repo.version(commit).needs))
        if STEPS not in repo.version(commit).attached and all(
            isinstance(each, Stored | Dropped) for each in here
        ):
            with suppress(UnknownPath, DamagedData, CannotRetrain, StateForgotten):
                found[commit] = alternative(repo, commit, proof.milliseconds / 1000)
    return found


def alternative(repo: Repository, commit: CommitId, seconds: float = 0.0) -> Alternative:
    """How the recipe of a version makes its weights again, and what it needs for that.

    That is its base, or, if that dropped its weights, what its recipe needs, and the files of data
    sets. Raises UnknownPath for a version without a recipe, and CannotRetrain where data lie
    outside of mvc or the recipe of a base is not proven.
    """
    needs = list[tuple[CommitId, str]]()
    lineage = [*_lineage(repo, commit)]
    for version, recipe, gone in lineage:
        if names := dataset.outside(repo, recipe.data):
            raise CannotRetrain(
                f"the data that {version.short} was trained on lie outside of mvc: "
                f"{', '.join(names)}; if they change, its weights are lost",
                hint="store them with 'mvc import --data', and train on those",
            )
        if gone is not None and gone.proven_ns is None:
            raise CannotRetrain(
                f"{commit.short} was trained from {version.short}, whose weights were given up "
                "unproven",
                hint=f"'mvc retrain {version.short} --trust-code' stores them again",
            )
        carriers = {recipe.carrier(version): None, version: None}
        if isinstance(recipe, StepRecipe):
            carriers |= dict.fromkeys(segment(repo, version))
        needs += [
            *((each, entry.path) for each in carriers for entry in repo.manifest(each).attached),
            *(
                (data.version, entry.path)
                for data in recipe.data
                for entry in repo.manifest(data.version).entries
            ),
        ]
    needs.append((recipe.base.version, recipe.base.path))
    first = lineage[0][1]
    return Alternative(first.base.version, first.makes.path, seconds, tuple(needs))


def drop_steps(repo: Repository, end: CommitId) -> list[CommitId]:
    """Drops the weights of proven versions between a full state and ``end``; returns these.

    ``end`` and full states keep theirs, and so do versions that would take longer to recover than
    ``store.max_recovery``. Raises CannotRetrain where data lie outside of mvc, DamagedData.
    """
    again, bound = alternative(repo, end), repo.config.get("store.max_recovery")
    first = repo.storage.cost(again.base).seconds
    going = {
        commit: replace(again, seconds=proof.milliseconds / 1000)
        for commit, proof in repo.storage.proofs(segment(repo, end)).items()
        if commit != end and STEPS not in repo.version(commit).attached
        if bound is None or first + proof.milliseconds / 1000 <= bound
    }
    repo.storage.drop_weights(going)
    return list(going)


def is_cheaper(repo: Repository, commit: CommitId, again: Alternative) -> bool:
    """Whether making a version again costs less than storing what only it has of the weights.

    Never without ``store.storage_weight``, nor where it takes longer than ``store.max_recovery``.
    """
    weight, bound = map(repo.config.get, ("store.storage_weight", "store.max_recovery"))
    seconds = recovery(repo, commit, again.seconds)
    if weight is None or (bound is not None and seconds > bound):
        return False
    stored = repo.storage.cost(commit, again.path, besides=again.base)
    return seconds < stored.nbytes * float(weight) / 1e9 + stored.seconds


def late(repo: Repository) -> list[CommitId]:
    """The versions that only a replay makes, in more seconds than ``store.max_recovery``."""
    bound, proofs = repo.config.get("store.max_recovery"), repo.storage.proofs()
    return [
        commit
        for commit, proof in proofs.items()
        if bound is not None and missing_weights(repo, commit) is not None
        if recovery(repo, commit, proof.milliseconds / 1000) > bound
    ]


def recovery(repo: Repository, commit: CommitId, seconds: float) -> float:
    """Estimated seconds to make a version again: its replay's ``seconds``, and those of its base.

    Those of a process that starts and imports torch do not count.
    """
    lineage = [*_lineage(repo, commit)]
    seconds += sum(gone.seconds for _, _, gone in lineage if gone is not None)
    return seconds + repo.storage.cost(lineage[-1][1].base.version).seconds


def _lineage(
    repo: Repository, commit: CommitId
) -> Iterator[tuple[CommitId, Recipe, Dropped | None]]:
    """A version, and the bases before it that dropped their weights: with their recipes."""
    gone = None
    while True:
        recipe = recipe_of(repo, commit)
        yield commit, recipe, gone
        base = repo.availability(recipe.base.version)
        if not isinstance(base, Dropped) or base.path != recipe.base.path:
            return
        commit, gone = base.commit, base
