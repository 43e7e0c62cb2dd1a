"""``repo.recipes``: how versions were trained, and training them again (MMlib, provenance).

A version may carry its code, the environment in which it was made, the data sets that it was
trained with, and the call that trained it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from mvc.api.absent import entered, fetching
from mvc.api.namespace import Namespace
from mvc.errors import UnknownPath, need_torch
from mvc.ids import CommitId
from mvc.names import DEFAULT_STATE
from mvc.repo.lookup.revisions import Rev
from mvc.types import PathName, Progress

if TYPE_CHECKING:
    import torch

    from mvc.api.repository import Repository
    from mvc.models.environment import Environment
    from mvc.models.models import StoredModel
    from mvc.recipes.dataset import DataSet, Given
    from mvc.recipes.recipe import Call
    from mvc.recipes.recording import Run
    from mvc.recipes.replay import ReplayOptions, Retrained


def trusted_versions(
    repo: Repository, trust: bool | Sequence[Rev], named: Sequence[CommitId]
) -> frozenset[CommitId]:
    """The versions whose stored code may run: with True those of this call, else a list's."""
    if isinstance(trust, Collection):
        return frozenset(repo.find(rev) for rev in trust)
    return frozenset(named if trust is True else ())


def replay_options(
    repo: Repository,
    trust: bool | Sequence[Rev],
    named: Sequence[CommitId],
    *,
    anyway: bool,
    timeout: float | None,
    progress: Progress | None,
    threads: int | None = None,
) -> ReplayOptions:
    """How versions are made again; ``trust`` as in ``trusted_versions``."""
    from mvc.recipes.replay import ReplayOptions

    trusted = trusted_versions(repo, trust, named)
    return ReplayOptions(
        trusted, anyway=anyway, threads=threads, timeout=timeout, progress=progress
    )


@fetching
class Recipes(Namespace):
    """How versions were made; ``repo.recipes``."""

    def record(
        self,
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
        """Records a training so that it can be run again: ``with repo.recipes.record(...) as run``.

        In the block ``run.train(**arguments)`` calls ``service``, a function of a module
        (``service(model, optimizer=..., data=..., **arguments)``) or an object with a method
        ``train(model, **arguments)``; at the end of the block the model is committed with its
        recipe. ``data`` is a file or folder, or several by the names of their data sets. Objects
        among the arguments are made by ``mvc.made``. With ``verify`` the recipe is proven by one
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
        return Run(self._repo, model, optimizer, service=service, data=data, options=options)

    def retrain(
        self,
        rev: Rev | None = None,
        *,
        trust: bool | Sequence[Rev] = False,
        anyway: bool = False,
        threads: int | None = None,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> Retrained:
        """Trains a version again by its recipe in another process; returns the verified state.

        This runs the code that the version carries, and so needs ``trust=True``. Bases that are not
        stored are trained first, if they are trusted, too: then ``trust`` is a list of all these
        versions. ``anyway`` begins although the environment differs in what the bits depend on;
        ``threads``, in place of the recorded number, is such a difference. ``timeout``: seconds
        after which the replay of a version is ended. ``progress`` is called with steps done, steps
        in total and a text. Raises UnknownPath for a version without a recipe,
        NotTrusted, CannotRetrain before anything runs, and RetrainingDiffers if other weights
        come out.
        """
        from mvc.recipes.weights import prove

        commit = self._repo.find(rev)
        options = replay_options(
            self._repo, trust, [commit],
            anyway=anyway, threads=threads, timeout=timeout, progress=progress,
        )  # fmt: skip
        return prove(self.context, commit, options)

    def retraining(
        self,
        rev: Rev | None = None,
        *,
        trust: bool | Sequence[Rev] = False,
        anyway: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> AbstractContextManager[Retrained | None]:
        """While the block runs, a version that gave up its weights can be read like any other.

        It is trained again first, as by ``retrain``; nothing is if its weights are stored.
        """
        from mvc.recipes.weights import readable

        commit = self._repo.find(rev)
        options = replay_options(
            self._repo, trust, [commit], anyway=anyway, timeout=timeout, progress=progress
        )
        return entered(self.context, lambda: readable(self.context, commit, options))

    def calls(self, rev: Rev = "HEAD") -> list[Call]:
        """What ``retrain`` would call by a version's recipe, in order; runs nothing.

        Empty if the version has no recipe. Raises DamagedData.
        """
        from mvc.names import RECIPE
        from mvc.recipes.recipe import recipe_of

        commit = self._repo.find(rev)
        carries = RECIPE in self._repo.version(commit).attached
        return recipe_of(self.context, commit).calls if carries else []

    def code(self, rev: Rev = "HEAD") -> dict[str, bytes]:
        """The source files that a version carries, by name; empty if it has none. Runs nothing."""
        from mvc.models.stored_code import FOLDER
        from mvc.repo import attached

        commit = self._repo.find(rev)
        names = [name for name in attached.names(self.context, commit) if name.startswith(FOLDER)]
        return {name: attached.read(self.context, commit, name) for name in names}

    def patch(self, rev: Rev = "HEAD") -> bytes:
        """What the code differed by from its git commit when a version was made, as of git.

        Raises UnknownPath if the version does not carry it.
        """
        from mvc.repo import attached
        from mvc.repo.worktree.git_code import PATCH

        return attached.read(self.context, self._repo.find(rev), PATCH)

    def model(self, rev: Rev = "HEAD") -> StoredModel:
        """How a version's model is built, as ``load_model`` would; runs nothing.

        Raises UnknownPath if the version carries no code, DamagedData.
        """
        from mvc.models.models import read_model

        return read_model(self.context, self._repo.find(rev))

    def environment(self, rev: Rev = "HEAD") -> Environment:
        """The environment in which a version was committed, to be compared with another one.

        Raises UnknownPath if the version does not carry it, DamagedData.
        """
        from mvc.models.environment import NAME, Environment
        from mvc.models.models import used_packages
        from mvc.repo import attached

        commit = self._repo.find(rev)
        if NAME not in self._repo.version(commit).attached:
            raise UnknownPath(
                f"{commit.short} does not carry the environment in which it was made",
                hint="repo.commit(model=...) records it, and CommitOptions(environment=True)",
            )
        used = used_packages(self.context, commit)
        return Environment.decode(attached.read(self.context, commit, NAME), used)

    def add_data(
        self,
        source: PathName,
        *,
        name: str | None = None,
        reference: bool = False,
        message: str = "",
        progress: Progress | None = None,
    ) -> DataSet:
        """Stores a file or a folder as a data set, under the tag ``data/NAME``.

        ``name`` is by default that of the file or folder. With ``reference`` only its place and
        the hash of each file are kept; a URL can only be referred to. Nothing is stored if the
        data set has not changed. Raises InvalidName, UnknownPath, WrongUsage.
        """
        from mvc.recipes import dataset

        return dataset.add(
            self.context, source, name, reference=reference, message=message, progress=progress
        )

    def data_sets(self) -> list[DataSet]:
        """The newest version of every data set, by name."""
        from mvc.recipes import dataset

        return dataset.data_sets(self.context)

    def data_set(self, name: str) -> DataSet:
        """The newest version of a data set. Raises UnknownPath."""
        from mvc.recipes import dataset

        return dataset.data_set(self.context, name)
