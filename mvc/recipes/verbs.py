"""Shows how versions were trained, and trains versions again (the provenance approach of MMlib).

A version may have attachments that describe its training: the code, the environment, and a recipe.
The recipe names the base (the version from which the training started), the data sets, and the call
that trains. A replay makes this call again. The replay proves the recipe if the weights are the
same bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mvc.api import Rev
from mvc.errors import (
    CannotBuild,
    CannotRetrain,
    DamagedData,
    MvcError,
    RetrainingDiffers,
    UnknownPath,
    WeightsDropped,
    need_torch,
)
from mvc.ids import CommitId
from mvc.models.environment import NAME as ENVIRONMENT
from mvc.models.environment import Environment
from mvc.models.models import NAME, attached_bytes, trusted_versions
from mvc.models.models import read_model as model
from mvc.models.stored_code import FOLDER
from mvc.names import ATTACHED, DEFAULT_STATE, RECIPE
from mvc.recipes.recipe import (
    STEPS,
    Call,
    StepRecipe,
    carrier_of,
    missing_weights,
    recipe_of,
    segment,
)
from mvc.recipes.replay import ReplayOptions, ReplayProcess, Retrained, replaying
from mvc.types import Progress, Reason

if TYPE_CHECKING:
    import torch

    from mvc.api import Repository
    from mvc.recipes.dataset import DataArgument
    from mvc.recipes.recording import Run


def record(
    repo: Repository,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    service: Any,
    data: DataArgument = None,
    path: str = DEFAULT_STATE,
    message: str = "",
    metrics: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    deploy: str | None = None,
    branch: str | None = None,
    deterministic: bool = True,
    verify: bool = True,
    drop_weights: bool | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Run:
    """Records a replayable training: ``with mvc.record(repo, ...) as run``.

    In the block, ``run.train(**arguments)`` calls ``service``: a function of a module
    (``service(model, optimizer=..., data=..., **arguments)``) or an object with a method
    ``train(model, **arguments)``. The end of the block commits the model with its recipe. ``data``
    is a file or folder, or a mapping from names of data sets to files or folders. Objects in the
    arguments, except optimizers and random generators, must be created with ``mvc.constructed``.

    With ``verify``, a replay in another process proves that the recipe reproduces the weights. The
    replay is ended after ``timeout`` seconds. ``progress`` is called as by ``retrain``. With
    ``drop_weights``, the weights are dropped after the proof, and data sets that are references are
    refused. By default, weights are dropped only if ``store.storage_weight`` is set and a replay
    costs less than storing the weights. Raises CannotRecord, before the training, for anything that
    docs/provenance.md does not permit.
    """
    need_torch("recording a training")
    from mvc.recipes.recording import Run, RunOptions

    options = RunOptions(
        path=path, message=message, metrics=metrics, params=params, deploy=deploy,
        branch=branch, deterministic=deterministic, verify=verify, drop_weights=drop_weights,
        timeout=timeout, progress=progress,
    )  # fmt: skip
    return Run(repo, model, optimizer, service=service, data=data, options=options)


def retrain(
    repo: Repository,
    rev: Rev | None = None,
    *,
    trust: bool | Sequence[Rev] = False,
    anyway: bool = False,
    threads: int | None = None,
    tolerance: float | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Retrained:
    """Retrains a version by its recipe in another process, and returns the verified state.

    A retraining runs code that is attached to the version, and so needs ``trust=True``. If the
    weights of the base are not stored, the base is trained first. In this case, ``trust`` must be a
    list of all versions to train. With ``anyway``, trains even if the environment differs in a way
    that affects the bits of the result. ``threads`` overrides the recorded thread number (another
    number needs ``anyway``). With ``tolerance``, weights that differ from the stored weights by at
    most this number are accepted, too. The recipe is then not proven, and a note of the version
    records the difference.

    ``timeout``: maximum seconds for the replay of one version. ``progress`` is called with steps
    done, total steps and a text. Raises UnknownPath for a version without a recipe; NotTrusted;
    CannotRetrain if the training is impossible or fails; RetrainingDiffers if the weights differ.
    """
    commit = repo.find(rev)
    options = ReplayOptions(
        trusted_versions(repo, trust, [commit]),
        anyway=anyway,
        threads=threads,
        tolerance=tolerance,
        timeout=timeout,
        progress=progress,
    )
    with replaying(repo, commit, options) as replayed:
        return replayed


@contextmanager
def retraining(
    repo: Repository,
    rev: Rev | None = None,
    *,
    trust: bool | Sequence[Rev] = False,
    anyway: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Iterator[Retrained | None]:
    """Within the ``with`` block, a version with dropped weights can be read like any other version.

    If the weights are not stored, the version is retrained first, as by ``retrain``.
    """
    commit = repo.find(rev)
    if missing_weights(repo, commit) is None:
        yield None
        return
    options = ReplayOptions(
        trusted_versions(repo, trust, [commit]), anyway=anyway, timeout=timeout, progress=progress
    )
    with replaying(repo, commit, options) as replayed:
        yield replayed


def drop_weights(
    repo: Repository,
    revs: Sequence[Rev],
    *,
    trust: bool | Sequence[Rev] = False,
    progress: Progress | None = None,
    reason: Reason = "",
) -> dict[CommitId, str | None]:
    """Drops the weights of versions that a proven recipe reproduces. Durable on return.

    ``revs``: ``A..B`` names several versions. Versions with unproven step recipes are replayed
    first, which needs ``trust``. Returns a mapping from each version to the reason why its weights
    stay; None if they were dropped.

    Before anything is dropped, all data that a replay needs are read and hashed. If this function
    raises an error, nothing was dropped. Raises UnknownPath for a version without a recipe;
    NotTrusted; CannotRetrain if no replay in this repository has proven the recipe, or if a data
    set is not stored; DamagedData.
    """
    from mvc.recipes.weights import alternative

    repo.storage.stats()  # raises for damage: then the weights must stay
    commits = [
        entry.id
        for rev in revs
        for entry in repo.log(rev, limit=None if isinstance(rev, str) and ".." in rev else 1)
    ]
    trusted = trusted_versions(repo, trust, commits)
    reasons = _prove_segments(repo, commits, ReplayOptions(trusted, progress=progress))
    dropped = {commit: alternative(repo, commit) for commit in commits if reasons[commit] is None}
    repo.storage.drop_weights(dropped, reason=reason)
    return reasons


def _prove_segments(
    repo: Repository, commits: Sequence[CommitId], options: ReplayOptions
) -> dict[CommitId, str | None]:
    """Replays each version that has a step recipe without a proof.

    Maps each version to the reason why the version keeps its weights, or to None.
    """
    from mvc.recipes.weights import recovery

    full = {commit for commit in commits if STEPS in repo.version(commit).attached}
    reasons: dict[CommitId, str | None] = dict.fromkeys(commits)
    reasons |= dict.fromkeys(full, "a full state, from which later versions are replayed")
    steps = {
        commit: segment(repo, commit)
        for commit in commits
        if commit not in full and isinstance(recipe_of(repo, commit), StepRecipe)
    }
    left = steps.keys() - repo.storage.proofs(steps).keys()
    with repo.storage.work_folder() as folder, ReplayProcess(folder) as worker:
        while left:
            end = max(left, key=lambda commit: len(steps[commit]))
            try:
                with replaying(repo, end, options, worker):
                    pass
            except (CannotBuild, CannotRetrain, DamagedData, RetrainingDiffers) as error:
                reasons |= dict.fromkeys(left & steps[end].keys(), error.message)
            left -= steps[end].keys()
    proofs, bound = repo.storage.proofs(steps), repo.config.get("store.max_recovery")
    for commit, proof in proofs.items():
        reasons[commit] = (
            "recovery would take longer than store.max_recovery"
            if bound is not None and recovery(repo, commit, proof.milliseconds / 1000) > bound
            else None
        )
    return reasons | dict.fromkeys(
        steps.keys() & {repo.head().commit}, "HEAD, the parent of the next version"
    )


def store_weights(
    repo: Repository,
    rev: Rev,
    *,
    trust: bool | Sequence[Rev] = False,
    anyway: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> None:
    """Restores the dropped weights of a version: from other versions if possible, else by a replay.

    The arguments and errors are those of ``retrain``.
    """
    commit = repo.find(rev)
    with suppress(WeightsDropped):  # only a replay restores the weights
        repo.storage.store_weights(commit)
        return
    with retraining(
        repo, commit, trust=trust, anyway=anyway, timeout=timeout, progress=progress
    ) as replayed:
        repo.storage.store_weights(commit, None if replayed is None else replayed.file)


def steps(repo: Repository, rev: Rev = "HEAD") -> dict[str, Any] | None:
    """How to replay a version that has a step recipe; None for any other version.

    ``start``: the version from whose training state a replay starts. ``batches`` and ``rows``: how
    many batches and samples a replay trains on. ``seconds``: estimated time of a replay, including
    the recovery of ``start``; None if no local replay has proven the version. Returns None, too, if
    the recipe cannot be read here.
    """
    from mvc.recipes.weights import recovery

    commit = repo.find(rev)
    with suppress(MvcError):
        recipe = recipe_of(repo, commit) if RECIPE in repo.version(commit).attached else None
        if isinstance(recipe, StepRecipe):
            batches = [rows for part in segment(repo, commit).values() for rows in part.rows]
            proof = repo.storage.proofs([commit]).get(commit)
            return {
                "start": recipe.base.version,
                "batches": len(batches),
                "rows": sum(rows.count(" ") + 1 for rows in batches),
                "seconds": proof and recovery(repo, commit, proof.milliseconds / 1000),
            }
    return None


def calls(repo: Repository, rev: Rev = "HEAD") -> list[Call]:
    """The calls that ``retrain`` would make for a version, in order. Runs no code of the version.

    The list is empty if the version has no recipe. Raises DamagedData.
    """
    commit = repo.find(rev)
    return recipe_of(repo, commit).calls if RECIPE in repo.version(commit).attached else []


def code(repo: Repository, rev: Rev = "HEAD") -> dict[str, bytes]:
    """Maps the names of the source files attached to a version to their content.

    The mapping is empty if the version has no code.
    """
    commit = carrier_of(repo, repo.find(rev))
    names = (entry.path.removeprefix(ATTACHED) for entry in repo.manifest(commit).attached)
    return {name: attached_bytes(repo, commit, name) for name in names if name.startswith(FOLDER)}


def environment(repo: Repository, rev: Rev = "HEAD") -> Environment:
    """The environment in which a version was committed, for comparison.

    Raises DamagedData, and UnknownPath if no environment was recorded.
    """
    commit = carrier_of(repo, repo.find(rev))
    attached = repo.version(commit).attached
    if ENVIRONMENT not in attached:
        raise UnknownPath(
            f"{commit.short} has no recorded environment",
            hint="repo.commit(..., attachments=mvc.describe_model(model)) records it",
        )
    used = model(repo, commit).packages if NAME in attached else ()
    return Environment.decode(attached_bytes(repo, commit, ENVIRONMENT), tuple(used))
