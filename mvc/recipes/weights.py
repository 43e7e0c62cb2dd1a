"""Decides which stored weights may be dropped (deleted), because a replay can compute them.

A *replay* repeats the training of a version, by the version's *recipe*. A recipe is *proven* if a
replay in this repository computed the same weights bit for bit. The *base* of a version is the
version from whose weights the training started.
"""

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
    """Maps each version with a proven recipe to an Alternative, which describes its replay.

    Leaves out versions that must stay (full states, which store the whole training state), versions
    whose data are outside of the repository, and versions whose recipe cannot be read.
    """
    result = {}
    for commit, proof in repo.storage.proofs().items():
        availabilities = map(repo.availability, (commit, *repo.version(commit).needs))
        if STEPS not in repo.version(commit).attached and all(
            isinstance(one, Stored | Dropped) for one in availabilities
        ):
            with suppress(UnknownPath, DamagedData, CannotRetrain, StateForgotten):
                result[commit] = alternative(repo, commit, proof.milliseconds / 1000)
    return result


def alternative(repo: Repository, commit: CommitId, seconds: float = 0.0) -> Alternative:
    """Describes the replay of a version: its base, and all files that it needs.

    A replay needs its data sets and the weights of its base. If the weights of the base are
    dropped, the base is replayed first, and the files for its replay are needed, too. Raises
    UnknownPath for a version without a recipe. Raises CannotRetrain if data are outside of mvc, or
    if the recipe of a base with dropped weights is not proven.
    """
    needs = list[tuple[CommitId, str]]()
    lineage = [*_lineage(repo, commit)]
    for version, recipe, dropped in lineage:
        if names := dataset.outside(repo, recipe.data):
            raise CannotRetrain(
                f"the training data of {version.short} are stored outside of mvc: "
                f"{', '.join(names)}; if the data change, the weights are lost",
                hint="store the data with 'mvc import --data', and train with the stored data",
            )
        if dropped is not None and dropped.proven_ns is None:
            raise CannotRetrain(
                f"{commit.short} was trained from {version.short}, whose weights were dropped "
                "without a proof",
                hint=f"'mvc retrain {version.short} --trust-code' restores the weights",
            )
        carriers = {recipe.carrier(version): None, version: None}
        if isinstance(recipe, StepRecipe):
            carriers |= dict.fromkeys(segment(repo, version))
        needs += [
            *(
                (carrier, entry.path)
                for carrier in carriers
                for entry in repo.manifest(carrier).attached
            ),
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
    """Drops weights of a training by steps. Returns the versions whose weights were dropped.

    These are the versions with a proven recipe, after the full state (the version with the whole
    training state) that precedes ``end``, and before ``end``. A version keeps its weights if its
    recovery by replay would take longer than ``store.max_recovery``. Raises DamagedData, and
    CannotRetrain if data are outside of mvc.
    """
    substitute, bound = alternative(repo, end), repo.config.get("store.max_recovery")
    first = repo.storage.cost(substitute.base).seconds
    dropped = {
        commit: replace(substitute, seconds=proof.milliseconds / 1000)
        for commit, proof in repo.storage.proofs(segment(repo, end)).items()
        if commit != end and STEPS not in repo.version(commit).attached
        if bound is None or first + proof.milliseconds / 1000 <= bound
    }
    repo.storage.drop_weights(dropped)
    return list(dropped)


def is_cheaper(repo: Repository, commit: CommitId, substitute: Alternative) -> bool:
    """Whether replaying a version costs less than storing the weights that its base lacks.

    The setting ``store.storage_weight`` says how many seconds 1 GB of storage is worth. False if
    this setting is missing, or if recovery by replay takes longer than ``store.max_recovery``.
    """
    weight, bound = map(repo.config.get, ("store.storage_weight", "store.max_recovery"))
    seconds = recovery(repo, commit, substitute.seconds)
    if weight is None or (bound is not None and seconds > bound):
        return False
    stored = repo.storage.cost(commit, substitute.path, besides=substitute.base)
    return seconds < stored.nbytes * float(weight) / 1e9 + stored.seconds


def late(repo: Repository) -> list[CommitId]:
    """Versions with dropped weights whose recovery takes longer than ``store.max_recovery``."""
    bound, proofs = repo.config.get("store.max_recovery"), repo.storage.proofs()
    return [
        commit
        for commit, proof in proofs.items()
        if bound is not None and missing_weights(repo, commit) is not None
        if recovery(repo, commit, proof.milliseconds / 1000) > bound
    ]


def recovery(repo: Repository, commit: CommitId, seconds: float) -> float:
    """The estimated recovery time of a version by replay: ``seconds`` for its own replay, plus the
    recovery time of its base. Does not include the start of a process and the import of torch.
    """
    lineage = [*_lineage(repo, commit)]
    seconds += sum(dropped.seconds for _, _, dropped in lineage if dropped is not None)
    return seconds + repo.storage.cost(lineage[-1][1].base.version).seconds


def _lineage(
    repo: Repository, commit: CommitId
) -> Iterator[tuple[CommitId, Recipe, Dropped | None]]:
    """Yields the version ``commit``, then its base, the base of the base, etc., as long as the
    weights of the base are dropped.

    Yields tuples of version, recipe, and how the weights were dropped (None for ``commit``).
    """
    dropped = None
    while True:
        recipe = recipe_of(repo, commit)
        yield commit, recipe, dropped
        base = repo.availability(recipe.base.version)
        if not isinstance(base, Dropped) or base.path != recipe.base.path:
            return
        commit, dropped = base.commit, base
