"""The ways to keep a model (sections 5 to 7 of the thesis), each as mvc does it.

An approach saves a model as the version after its base and brings it back as a network that
runs. It measures its own steps, because it alone knows what belongs to which.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import mvc
import mvc.recipes as recipes
from mvc import CommitOptions, Environment, Repository, constructed, root_of
from mvc.errors import CannotRetrain, DamagedData, WrongUsage
from mvc.ids import CommitId

from ..data import read_arrays, write_arrays
from .architectures import Architecture
from .flow import Experiment, Settings, State

__all__ = ["APPROACHES", "Approach", "Model", "Recovered", "Saved", "Steps", "changed_tensors"]


@dataclass(frozen=True)
class Model:
    """A model of the flow, and what is known about it when it is saved.

    ``base`` is the version of the model that it was derived from, None for U1, and
    ``base_state`` its weights, which whoever trained has at hand; ``branch`` gets the new
    version, None for the current one. ``experiment`` can train the base once more into the same
    model.
    """

    use_case: str
    state: State
    base: CommitId | None
    base_state: State
    branch: str | None
    experiment: Experiment


@dataclass(frozen=True)
class Saved:
    """The version that was made, and the seconds of each step."""

    commit: CommitId
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Recovered:
    """The network with its weights, and the seconds of each step."""

    network: nn.Module
    seconds: Mapping[str, float]


class Steps:
    """Seconds of named steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Adds the time inside to the step."""
        begun = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun


@dataclass(frozen=True)
class StoredWeights:
    """Approaches that keep weights: a commit with a pipeline, in full or against its base.

    A tensor that is in the repository already is not stored again, also by a ``reset_point``:
    hence full snapshots are ``apart``. With ``by_value`` the base is recovered before, to find
    the tensors that differ (U_P). A version that is kept ``with_code`` has the source that builds
    the network, and recovering runs that.
    """

    name: str
    title: str
    thesis: str | None
    pipeline: str
    about: str
    apart: bool = False
    retrains: bool = False
    reset_point: bool = False
    by_value: bool = False
    with_code: bool = False

    def save(self, repo: Repository, model: Model) -> Saved:
        """Generates the update, if that is a step of its own, and persists it."""
        steps = Steps()
        changed = None
        if self.by_value and model.base is not None:
            with steps.step("generate update"):
                changed = changed_tensors(repo.checkout(model.base), model.state)
        with steps.step("persist"):
            build = model.experiment.architecture.build
            saved = repo.commit(
                model.state,
                message=model.use_case,
                pipeline=self.pipeline,
                attachments=mvc.describe_model(mvc.Architecture(build), model.state)
                if self.with_code
                else {"environment.json": Environment.current().encoded},
                options=CommitOptions(branch=model.branch, reset_point=self.reset_point),
            )
        if changed is not None and model.base is not None:
            (file,) = repo.diff(model.base, saved.id).files
            if set(changed) != {each.key for each in file.tensors if each.kind != "unchanged"}:
                raise DamagedData(f"{model.use_case}: values and hashes differ in other tensors")
        return Saved(saved.id, steps.seconds)

    def recover(self, repo: Repository, commit: CommitId, architecture: Architecture) -> Recovered:
        """Loads the weights, which proves each tensor; puts them into a network; proves that.

        Before, the environment is compared with the one of the commit: CannotRetrain if it is
        another one, because the network might compute something else here.
        """
        steps = Steps()
        state: State = {}
        if not self.with_code:
            with steps.step("load"):
                state = repo.checkout(commit)
        with steps.step("check environment"):
            _check_environment(repo, commit)
        if self.with_code:
            with steps.step("recover"):
                network = mvc.load_model(repo, commit, trust=True)
            return _checked(repo, commit, network, steps)
        return _recovered(repo, commit, architecture, state, steps)


@dataclass(frozen=True)
class Provenance:
    """M_Prov: U1 is stored, of all others how they were trained; recovering trains again.

    The images are one data set of the repository, stored with the first version that needs them.
    """

    name: str
    title: str
    about: str
    thesis: str | None = None
    apart: bool = False
    retrains: bool = True

    def save(self, repo: Repository, model: Model) -> Saved:
        """Trains the base under a recording, and gives the weights up."""
        if model.base is None:
            return _UPDATE.save(repo, model)
        folder = repo.root / "images"
        service = _recordable(model.experiment, folder)
        network = constructed(model.experiment.architecture.build)
        network.load_state_dict(model.base_state)
        steps = Steps()
        with (
            steps.step("persist"),
            mvc.record(
                repo,
                network,
                service=service,
                data={"images": folder},
                message=model.use_case,
                branch=model.branch,
                drop_weights=True,
            ) as run,
        ):
            run.train(use_case=model.use_case)
        assert run.result is not None
        if changed_tensors(model.state, network.state_dict()):
            raise WrongUsage(
                f"trained once more, {model.use_case} has other weights than those recorded",
                hint="the recording had other threads or another torch: name another folder",
            )
        with steps.step("delete weights"):
            repo.storage.gc(grace="0")
        persist = steps.seconds.pop("persist") - run.seconds - run.proof_seconds
        return Saved(run.result.id, {"train": run.seconds, "persist": persist, **steps.seconds})

    def recover(self, repo: Repository, commit: CommitId, architecture: Architecture) -> Recovered:
        """Trains the version again, and before it each base that is not stored; proves it."""
        if not recipes.calls(repo, commit):
            return _UPDATE.recover(repo, commit, architecture)
        steps = Steps()
        with steps.step("retrain"):
            own = [
                entry.id for entry in repo.log("HEAD", mvc.LogOptions(every=True))
            ]  # its bases are trained, too
            state = mvc.retrain(repo, commit, trust=own).state
        return _recovered(repo, commit, architecture, state, steps)


Approach = StoredWeights | Provenance
"""A way to save models and to recover them.

``thesis`` is what the thesis's figures for it are called, if it has any. ``apart``: each model is
kept in a repository of its own, without its base. ``retrains``: models are trained again, which
must be able to make them. ``save`` ends when no crash loses the model; ``recover`` raises
DamagedData if a version is not what was saved.
"""


def _recordable(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment, made so that a recipe can name it: its images are files of ``folder``."""
    data = experiment.data
    if not folder.exists():
        write_arrays(data, folder)
    return constructed(
        Experiment,
        constructed(Architecture, **vars(experiment.architecture)),
        experiment.relation,
        constructed(read_arrays, folder, data.name, data.classes, data.brightest),
        constructed(Settings, **vars(experiment.settings)),
    )


def _recovered(
    repo: Repository, commit: CommitId, architecture: Architecture, state: State, steps: Steps
) -> Recovered:
    """Puts the weights into a network, and proves that."""
    with steps.step("recover"):
        network = architecture.empty()
        network.load_state_dict(state, assign=True)
    return _checked(repo, commit, network, steps)


def _checked(repo: Repository, commit: CommitId, network: nn.Module, steps: Steps) -> Recovered:
    """Computes the root of the network once more."""
    with steps.step("check hash"):
        if root_of(network.state_dict()) != repo.version(commit).root:
            raise DamagedData(f"{commit.short}: the network is not the one that was saved")
    return Recovered(network, steps.seconds)


def _check_environment(repo: Repository, commit: CommitId) -> None:
    """Compares every field, as a replay does before it trains."""
    compared = recipes.environment(repo, commit).compare(Environment.current())
    if compared.verdict == "different":
        first, *_ = compared.differences
        raise CannotRetrain(
            f"{commit.short} was saved in another environment: {first.field}: {first.recorded}, "
            f"here {first.other}",
            hint=f"'mvc diff --environment {commit.short}' compares them; measure in one",
        )


def changed_tensors(old: State, new: State) -> list[str]:
    """Names of the tensors of ``new`` whose bits, shape or type are not those in ``old``."""
    return [key for key, value in new.items() if key not in old or not _equal(old[key], value)]


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether all bits are equal: unlike by value, NaN equals itself and 0.0 is not -0.0."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    left, right = (each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(left, right)


_COMPRESSED = "planes | zstd:huff"
_UPDATE = StoredWeights(
    *("update", "U'_P", "U", "none"), "changed tensors, uncompressed, found by hashes alone"
)

APPROACHES: dict[str, Approach] = {
    each.name: each
    for each in (
        StoredWeights(
            *("full", "B", "B", "none"),
            "every model in a repository of its own, uncompressed",
            apart=True,
        ),
        StoredWeights(
            *("full-code", "B with code", "B", "none"),
            "B, and with every model the source that builds its network, which here counts to its "
            "weights; recovering runs it",
            apart=True,
            with_code=True,
        ),
        StoredWeights(
            *("by-value", "U_P", "U", "none"),
            "changed tensors, uncompressed, found by recovering the base and comparing bits",
            by_value=True,
        ),
        _UPDATE,
        StoredWeights(
            *("full-zstd", "B, zstd", None, _COMPRESSED, "B with byte planes and zstd"),
            apart=True,
        ),
        StoredWeights(
            *("update-zstd", "U'_P, zstd", None, _COMPRESSED, "U'_P with byte planes and zstd"),
        ),
        StoredWeights(
            *("reset-points", "mvc, reset points", None, "lossless"),
            "every model a reset point of one repository: changed tensors in full and as deltas",
            reset_point=True,
        ),
        StoredWeights(
            *("deltas", "mvc", None, "lossless"),
            "mvc's default: changed tensors as compressed deltas where these are smaller",
        ),
        Provenance(
            *("provenance", "M_Prov"),
            "U1 uncompressed, of the others their training, which recovering runs again; the "
            "images are stored once, with U3.1.1",
        ),
    )
}
"""By name, in the order of tables."""
