"""How versions were trained, and training them again (MMlib, provenance).

A version may carry its code, the environment in which it was made, the data sets that it was
trained with, and the call that trained it.
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
from mvc.recipes.replay import ReplayOptions, ReplayProcess, Retrained, made_again
from mvc.types import Progress, Reason

if TYPE_CHECKING:
    import torch

    from mvc.api import Repository
    from mvc.recipes.dataset import Given
    from mvc.recipes.recording import Run


def record(
    repo: Repository,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    service: Any,
    data: Given = None,
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
    """Records a training so that it can be run again: ``with mvc.record(repo, ...) as run``.

    In the block ``run.train(**arguments)`` calls ``service``, a function of a module
    (``service(model, optimizer=..., data=..., **arguments)``) or an object with a method
    ``train(model, **arguments)``; at the end of the block the model is committed with its
    recipe. ``data`` is a file or folder, or several by the names of their data sets. Objects
    among the arguments are made by ``mvc.constructed``. With ``verify`` the recipe is proven by one
    replay in another process, which is ended after ``timeout`` seconds and tells ``progress``
    as ``retrain`` does; ``drop_weights`` then gives up the weights, which is refused if a data
    set is only referred to. By default they are kept, unless ``store.storage_weight`` is set
    and the proven recipe is cheaper.
    docs/provenance.md says what can be recorded. Raises CannotRecord before training.
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
    """Trains a version again by its recipe in another process; returns the verified state.

    This runs the code that the version carries, and so needs ``trust=True``. Bases that are not
    stored are trained first, if they are trusted, too: then ``trust`` is a list of all these
    versions. ``anyway`` begins although the environment differs in what the bits depend on;
    ``threads``, in place of the recorded number, is such a difference. With a ``tolerance`` weights
    that differ from the stored ones by at most this are returned, too (``Retrained.distance``): a
    note of the version says so, and they are no proof. ``timeout``: seconds
    after which the replay of a version is ended. ``progress`` is called with steps done, steps
    in total and a text. Raises UnknownPath for a version without a recipe,
    NotTrusted, CannotRetrain before anything runs, and RetrainingDiffers if other weights
    come out.
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
    with made_again(repo, commit, options) as done:
        return done


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
    """While the block runs, a version that gave up its weights can be read like any other.

    It is trained again first, as by ``retrain``; nothing is if its weights are stored.
    """
    commit = repo.find(rev)
    if missing_weights(repo, commit) is None:
        yield None
        return
    options = ReplayOptions(
        trusted_versions(repo, trust, [commit]), anyway=anyway, timeout=timeout, progress=progress
    )
    with made_again(repo, commit, options) as done:
        yield done


def drop_weights(
    repo: Repository,
    revs: Sequence[Rev],
    *,
    trust: bool | Sequence[Rev] = False,
    progress: Progress | None = None,
    reason: Reason = "",
) -> dict[CommitId, str | None]:
    """Gives up the weights of versions that a proven recipe makes again; durable on return.

    Versions that steps made (``A..B`` names several) are proven first, where they are trusted.
    Returns by version why it keeps its weights, None if they went. All that is needed is read and
    hashed before. Raises UnknownPath for a version without a recipe, NotTrusted, CannotRetrain
    where no replay here has proven a whole recipe (``retrain``) or data are references,
    DamagedData; then nothing is given up.
    """
    from mvc.recipes.weights import alternative

    repo.storage.stats()  # of a damaged repository nothing is given up
    commits = [
        entry.id
        for rev in revs
        for entry in repo.log(rev, limit=None if isinstance(rev, str) and ".." in rev else 1)
    ]
    trusted = trusted_versions(repo, trust, commits)
    kept = _kept(repo, commits, ReplayOptions(trusted, progress=progress))
    given = {commit: alternative(repo, commit) for commit in commits if kept[commit] is None}
    repo.storage.drop_weights(given, reason=reason)
    return kept


def _kept(
    repo: Repository, commits: Sequence[CommitId], options: ReplayOptions
) -> dict[CommitId, str | None]:
    """Replays, once each, the segments of versions that steps made and that are not proven."""
    from mvc.recipes.weights import recovery

    full = {commit for commit in commits if STEPS in repo.version(commit).attached}
    kept: dict[CommitId, str | None] = dict.fromkeys(commits)
    kept |= dict.fromkeys(full, "a full state, from which others are made again")
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
                with made_again(repo, end, options, worker):
                    pass
            except (CannotBuild, CannotRetrain, DamagedData, RetrainingDiffers) as error:
                kept |= dict.fromkeys(left & steps[end].keys(), error.message)
            left -= steps[end].keys()
    proofs, bound = repo.storage.proofs(steps), repo.config.get("store.max_recovery")
    for commit, proof in proofs.items():
        kept[commit] = (
            "recovery would take longer than store.max_recovery"
            if bound is not None and recovery(repo, commit, proof.milliseconds / 1000) > bound
            else None
        )
    return kept | dict.fromkeys(
        steps.keys() & {repo.head().commit}, "HEAD, which the next version follows"
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
    """Stores weights again that a version gave up: from other versions, or by a replay.

    The arguments, and what is raised, are those of ``retrain``.
    """
    commit = repo.find(rev)
    with suppress(WeightsDropped):  # only a replay makes them
        repo.storage.store_weights(commit)
        return
    with retraining(
        repo, commit, trust=trust, anyway=anyway, timeout=timeout, progress=progress
    ) as done:
        repo.storage.store_weights(commit, None if done is None else done.file)


def steps(repo: Repository, rev: Rev = "HEAD") -> dict[str, Any] | None:
    """What makes a version again that steps made: ``batches`` and ``rows`` from the full state
    ``start``, in about ``seconds``, its recovery included; None if no replay here has proven it.

    None for any other version, and where its recipe cannot be read here.
    """
    from mvc.recipes.weights import recovery

    commit = repo.find(rev)
    with suppress(MvcError):
        recipe = recipe_of(repo, commit) if RECIPE in repo.version(commit).attached else None
        if isinstance(recipe, StepRecipe):
            batches = [rows for each in segment(repo, commit).values() for rows in each.rows]
            proof = repo.storage.proofs([commit]).get(commit)
            return {
                "start": recipe.base.version,
                "batches": len(batches),
                "rows": sum(rows.count(" ") + 1 for rows in batches),
                "seconds": proof and recovery(repo, commit, proof.milliseconds / 1000),
            }
    return None


def calls(repo: Repository, rev: Rev = "HEAD") -> list[Call]:
    """What ``retrain`` would call by a version's recipe, in order; runs nothing.

    Empty if the version has no recipe. Raises DamagedData.
    """
    commit = repo.find(rev)
    return recipe_of(repo, commit).calls if RECIPE in repo.version(commit).attached else []


def code(repo: Repository, rev: Rev = "HEAD") -> dict[str, bytes]:
    """The source files that a version carries, by name; empty if it has none. Runs nothing."""
    commit = carrier_of(repo, repo.find(rev))
    names = (entry.path.removeprefix(ATTACHED) for entry in repo.manifest(commit).attached)
    return {name: attached_bytes(repo, commit, name) for name in names if name.startswith(FOLDER)}


def environment(repo: Repository, rev: Rev = "HEAD") -> Environment:
    """The environment in which a version was committed, to be compared with another one.

    Raises UnknownPath if the version does not carry it, DamagedData.
    """
    commit = carrier_of(repo, repo.find(rev))
    carried = repo.version(commit).attached
    if ENVIRONMENT not in carried:
        raise UnknownPath(
            f"{commit.short} does not carry the environment in which it was made",
            hint="repo.commit(..., attachments=mvc.describe_model(model)) records it",
        )
    used = model(repo, commit).packages if NAME in carried else ()
    return Environment.decode(attached_bytes(repo, commit, ENVIRONMENT), tuple(used))
