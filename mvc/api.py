"""The public ``Repository``: the repository's verbs, and those that work on a live training.

``mvc.training`` is made of the class in ``mvc.repo.repository``, and the methods here are made of
``mvc.training``: hence two classes. Whatever opens a repository by its path opens ``public``,
which is the class of this module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from mvc.errors import UnknownPath, WrongUsage
from mvc.model.names import DEFAULT_STATE
from mvc.repo.arguments import checked
from mvc.repo.lookup import weights
from mvc.repo.repository import PathName, Rev, Time
from mvc.repo.repository import Repository as StoredRepository

if TYPE_CHECKING:
    import torch

    from mvc.ids import CommitId
    from mvc.provenance.dataset import DataSet, Given
    from mvc.provenance.environment import Environment
    from mvc.provenance.models import StoredModel
    from mvc.provenance.recipe import Call
    from mvc.provenance.recording import Run
    from mvc.provenance.replay import Retrained
    from mvc.repo.checkout.checkout import Restored
    from mvc.repo.commit.request import CommitOptions
    from mvc.repo.repack.repack import Repacked
    from mvc.training.recorder import Recorder
    from mvc.training.resume import Loaded, Resumed
    from mvc.training.watch import WatchOptions
    from mvc.types import Progress

__all__ = ["Repository"]


@checked
class Repository(StoredRepository):
    """An open repository; close it, or use it as a context manager.

    Safe across threads and after a fork. Raises subclasses of ``mvc.MvcError``.
    """

    def watch(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        **options: Unpack[WatchOptions],
    ) -> Recorder:
        """Records a version after every step of the optimizer, without a line in the loop.

        Raises WrongUsage for a scheduler or scaler, which change after the optimizer's step.
        """
        from mvc.training.watch import watch

        return watch(self, model, optimizer, **options)

    def resume(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        rev: Rev | None = None,
        at: Time | None = None,
        target: str | None = None,
        path: str = DEFAULT_STATE,
    ) -> Resumed:
        """Sets model, optimizer, scheduler, scaler and random generators back to a version.

        The version is named as for ``checkout``; ``path`` is the model's in it. Raises
        CannotResume with the reason, before anything is changed.
        """
        from mvc.training.checks import check_objects
        from mvc.training.resume import resume

        check_objects(model, optimizer, scheduler, scaler)
        return resume(
            self,
            model,
            optimizer,
            scheduler=scheduler,
            scaler=scaler,
            rev=self.find(rev, at=at, target=target),
            name=path,
        )

    def load(
        self,
        model: torch.nn.Module,
        rev: Rev | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        path: str | None = None,
        strict: bool = True,
    ) -> Loaded:
        """Puts a version's weights into a live module, in place; returns what did not fit.

        The version is named as for ``checkout``. Parameters keep their devices. Raises
        DoesNotFit, before anything is changed, where shapes or dtypes differ, and with
        ``strict`` where a key is missing or unexpected.
        """
        from mvc.training.resume import load

        return load(model, self.checkout(rev, at=at, target=target, path=path), strict=strict)

    def load_model(
        self,
        rev: Rev | None = None,
        *,
        trust: bool | Sequence[Rev] = False,
        at: Time | None = None,
        target: str | None = None,
    ) -> torch.nn.Module:
        """Builds a version's model by the code that it carries, with its weights, and returns it.

        The version is named as for ``checkout``. This runs the stored code, and so needs
        ``trust=True``, or a list with the version in it; ``code`` and ``stored_model`` show first
        what would run. Raises UnknownPath if the version carries no code, NotTrusted, CannotBuild,
        DoesNotFit.
        """
        from mvc.provenance.models import build, code_of, read_model

        commit = self.find(rev, at=at, target=target)
        stored = read_model(self.context, commit)
        code = code_of(self.context, commit, stored)

        def weights() -> Any:
            return self.checkout(commit, path=stored.weights)

        trusted = commit in self._trusted(trust, [commit])
        return build(stored, code, weights, version=commit.short, trust=trusted)

    def export_model(
        self,
        output: PathName,
        rev: Rev | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Restored:
        """Writes a version's files, its code and a ``load.py`` into a folder; runs nothing.

        The version is named as for ``checkout``; ``force`` replaces files that stand there.
        Raises UnknownPath if the version carries no code, WouldOverwrite, DamagedData.
        """
        from mvc.provenance.export import export_model

        commit = self.find(rev, at=at, target=target)
        return export_model(self, commit, Path(output), force=force, progress=progress)

    def stored_model(self, rev: Rev = "HEAD") -> StoredModel:
        """How a version's model is built, as ``load_model`` would; runs nothing.

        Raises UnknownPath if the version carries no code, DamagedData.
        """
        from mvc.provenance.models import read_model

        return read_model(self.context, self.find(rev))

    def code(self, rev: Rev = "HEAD") -> dict[str, bytes]:
        """The source files that a version carries, by name; empty if it has none. Runs nothing."""
        from mvc.provenance.stored_code import FOLDER
        from mvc.repo import attached

        commit = self.find(rev)
        names = [name for name in attached.names(self.context, commit) if name.startswith(FOLDER)]
        return {name: attached.read(self.context, commit, name) for name in names}

    def calls(self, rev: Rev = "HEAD") -> list[Call]:
        """What ``retrain`` would call by a version's recipe, in order; runs nothing.

        Empty if the version has no recipe. Raises DamagedData.
        """
        from mvc.provenance.recipe import RECIPE, recipe_of

        commit = self.find(rev)
        carries = RECIPE in self.version(commit).attached
        return recipe_of(self.context, commit).calls if carries else []

    def environment(self, rev: Rev = "HEAD") -> Environment:
        """The environment in which a version was committed, to be compared with another one.

        Raises UnknownPath if the version does not carry it, DamagedData.
        """
        from mvc.provenance.environment import NAME, Environment
        from mvc.provenance.models import used_packages
        from mvc.repo import attached

        commit = self.find(rev)
        if NAME not in self.version(commit).attached:
            raise UnknownPath(
                f"{commit.short} does not carry the environment in which it was made",
                hint="repo.commit(model=...) records it, and CommitOptions(environment=True)",
            )
        used = used_packages(self.context, commit)
        return Environment.decode(attached.read(self.context, commit, NAME), used)

    def provenance(
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
    ) -> Run:
        """Records a training so that it can be run again: ``with repo.provenance(...) as run``.

        In the block ``run.train(**arguments)`` calls ``service``, a function of a module
        (``service(model, optimizer=..., data=..., **arguments)``) or an object with a method
        ``train(model, **arguments)``; at the end of the block the model is committed with its
        recipe. ``data`` is a file or folder, or several by the names of their data sets. Objects
        among the arguments are made by ``mvc.made``. With ``verify`` the recipe is proven by one
        replay in another process, which is ended after ``timeout`` seconds; ``drop_weights`` then
        gives up the weights, which is refused if a data set is only referred to. By default they
        are given up where ``store.storage_weight`` is set and the proven recipe is cheaper.
        docs/provenance.md says what can be recorded. Raises CannotRecord before training.
        """
        from mvc.provenance.recording import Run, RunOptions

        options = RunOptions(
            path, message, metrics, params, deploy, branch, deterministic, verify, drop_weights,
            timeout,
        )  # fmt: skip
        return Run(self, model, optimizer, service, data, options)

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
        from mvc.provenance.replay import ReplayOptions
        from mvc.provenance.weights import prove

        commit = self.find(rev)
        trusted = self._trusted(trust, [commit])
        options = ReplayOptions(trusted, anyway, threads, timeout, progress)
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
        from mvc.provenance.replay import ReplayOptions
        from mvc.provenance.weights import readable

        commit = self.find(rev)
        trusted = self._trusted(trust, [commit])
        options = ReplayOptions(trusted, anyway, timeout=timeout, progress=progress)
        return readable(self.context, commit, options)

    def repack(
        self,
        *,
        interval: int | None = None,
        max_recovery: float | None = None,
        max_size: int | None = None,
        add: Sequence[Rev] | None = None,
        remove: Sequence[Rev] | None = None,
        add_queried: int | None = None,
        super_step: int | None = None,
        drop_weights: Sequence[Rev] | None = None,
        outside_data: bool = False,
        trust: bool | Sequence[Rev] = False,
        anyway: bool = False,
        timeout: float | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Repacked:
        """Stores the same versions with other reset points and deltas; see ``mvc.repo.repack``.

        At most one aim is given, of ``interval`` to ``drop_weights``; without one the settings
        count. ``add_queried`` adds that many versions, those that were asked for most often. With
        ``dry_run`` only the plan is made.

        ``drop_weights`` gives up the weights of versions whose recipe a replay has proven here;
        with ``trust`` those that are not proven yet are trained again for it. All that a recipe
        needs is read and hashed before (DamagedData); data sets by reference are refused without
        ``outside_data`` (CannotRetrain), because mvc does not hold them. Of versions to
        ``add`` that gave up their weights, these are made again and stored, which needs ``trust``
        unless other versions still have them. ``trust``, ``anyway`` and ``timeout`` as for
        ``retrain``: True trusts the versions of this call. With the setting
        ``store.storage_weight``, weights whose proven recipe is cheaper are given up, too.
        """
        from mvc.repo.repack.goal import check_aims

        aims: dict[str, Any] = {
            "interval": interval, "max_recovery": max_recovery, "max_size": max_size, "add": add,
            "remove": remove, "add_queried": add_queried, "super_step": super_step,
        }  # fmt: skip
        given = check_aims(**aims, drop_weights=drop_weights)
        if drop_weights is not None:
            if dry_run:
                raise WrongUsage("drop_weights cannot be tried: it takes no dry_run")
            from mvc.provenance.replay import ReplayOptions
            from mvc.provenance.weights import drop
            from mvc.repo.repack.repack import unchanged

            dropped = [self.find(rev) for rev in drop_weights]
            done = unchanged(self.context)  # first: of a damaged repository nothing is given up
            trusted = self._trusted(trust, dropped)
            options = ReplayOptions(trusted, anyway, timeout=timeout, progress=progress)
            drop(self.context, dropped, options, outside_data=outside_data)
            return done
        added = [self.find(rev) for rev in add or ()]
        for commit in () if dry_run else added:
            if weights.dropped(self.context, commit) is not None:
                from mvc.provenance.replay import ReplayOptions
                from mvc.provenance.weights import store_again

                trusted = self._trusted(trust, added)
                options = ReplayOptions(trusted, anyway, timeout=timeout, progress=progress)
                store_again(self.context, commit, options)
        weighs = self.config.get("store.storage_weight") is not None
        if not given and weighs and any(mark.where for _, mark in self.context.fresh().weights()):
            return self._cheapest(dry_run=dry_run, progress=progress)
        return super().repack(**aims, dry_run=dry_run, progress=progress)

    def _trusted(
        self, trust: bool | Sequence[Rev], named: Sequence[CommitId]
    ) -> frozenset[CommitId]:
        """The versions whose stored code may run: with True those of this call, else a list's."""
        if isinstance(trust, Collection):
            return frozenset(self.find(rev) for rev in trust)
        return frozenset(named if trust is True else ())

    def _cheapest(self, *, dry_run: bool, progress: Progress | None) -> Repacked:
        """Weights that are given up go first: the layout of the rest does not rely on them."""
        from mvc.provenance.weights import all_proven, drop
        from mvc.repo.repack.repack import goal_of, repack

        goal = goal_of(self.context, proven=all_proven(self.context))
        if dry_run or not goal.proven:
            return repack(self.context, goal, dry_run=dry_run, progress=progress)
        plan = repack(self.context, goal, dry_run=True, progress=progress).plan
        if not plan.given_up:
            return repack(self.context, goal_of(self.context), progress=progress)
        drop(self.context, plan.given_up)
        done = repack(self.context, goal_of(self.context), progress=progress)
        return replace(done, plan=replace(done.plan, given_up=plan.given_up, prices=plan.prices))

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
        from mvc.provenance import dataset

        return dataset.add(
            self.context, source, name, reference=reference, message=message, progress=progress
        )

    def data_sets(self) -> list[DataSet]:
        """The newest version of every data set, by name."""
        from mvc.provenance import dataset

        return dataset.data_sets(self.context)

    def data_set(self, name: str) -> DataSet:
        """The newest version of a data set. Raises UnknownPath."""
        from mvc.provenance import dataset

        return dataset.data_set(self.context, name)

    def _carried(
        self, model: Any, state: Any, path: str, options: CommitOptions
    ) -> tuple[Any, dict[str, bytes]]:
        if model is None and not options.environment:
            return state, {}
        from mvc.provenance import environment, models

        carried: dict[str, bytes] = {}
        fs = self.context.store.fs
        if model is not None:
            live = models.live_model(model)
            if state is None and live is not None:
                state = live.state_dict()
            if not isinstance(state, Mapping):
                raise WrongUsage(
                    "model says how a state is built, and none is given",
                    hint="pass model.state_dict() as the first argument, or the live model",
                )
            carried |= models.attachments(model, state, path, fs)
        if options.environment is not False:
            carried[environment.NAME] = environment.capture(fs, with_torch=False).encoded
        return state, carried


StoredRepository.public = Repository
