"""What an approach costs on the ten models, run by run.

Of a model: ``stored`` is by how many bytes everything below ``.mvc`` has grown, ``payload`` the
encoded weights among that; the rest is metadata. ``changed`` are bytes of the ``tensors`` that are
not those of the base, uncompressed (for U1 all). ``save`` and ``recover`` are seconds by step,
``processor`` those of the processor, all threads together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import mvc.recipes as recipes
from mvc import CommitOptions, Environment, Repository, root_of
from mvc.errors import BadModelFile, DamagedData
from mvc.ids import CommitId

from ..workspace import Progress, Workspace, bytes_in, named
from .approaches import Approach, Model, changed_tensors
from .flow import BASES, Experiment, Models

__all__ = ["FIGURES", "LOCAL", "Measured", "Run", "measure", "runs", "warm_up"]

Run = dict[str, dict[str, Any]]
"""Figures of one run by use case."""

FIGURES = ("stored", "payload", "changed", "tensors", "save", "recover", "processor")


class Measured(NamedTuple):
    """How a run is measured in an empty folder, and what its cells have. ``prefix``: of the names
    of its results.
    """

    run: Callable[[Models, Approach, Path, Progress], Run]
    figures: Sequence[str]
    prefix: str = ""


def measure(
    models: Models, approach: Approach, folder: Path, progress: Progress = lambda *_: None
) -> Run:
    """Saves the ten models in new repositories in ``folder``, then recovers and checks them all.

    A repository is opened anew for each model, so nothing of its base is in memory. Raises
    DamagedData if a single bit of a recovered network differs.
    """
    environment = warm_up(models.experiment, folder / "warm-up")
    places = {name: folder / (name if approach.apart else "all") for name in BASES}
    for place in set(places.values()):
        Repository.init(place).close()
    commits: dict[str, CommitId] = {}
    run: Run = {}
    for number, use_case in enumerate(BASES, start=1):
        commits[use_case], run[use_case] = _save(models, approach, places, use_case, commits)
        if use_case == "U1" or approach.apart:  # its repository has the environment since then
            run[use_case]["payload"] -= environment
        progress("saving", number, len(BASES))
    for number, (use_case, commit) in enumerate(commits.items(), start=1):
        seconds, spent = _recover(models, approach, places[use_case], use_case, commit)
        cell = run[use_case]
        cell["processor"]["recover"] = spent
        run[use_case] = {name: seconds if name == "recover" else cell[name] for name in FIGURES}
        progress("recovering", number, len(BASES))
    return run


LOCAL = Measured(measure, FIGURES)


def runs(
    models: Models, approach: Approach, count: int, place: Workspace, *, by: Measured = LOCAL
) -> list[Run]:
    """So many runs; those that ``place`` does not have yet are measured."""
    name = f"{models.experiment.name}/{by.prefix}{approach.name}"

    def more(result: dict[str, Any]) -> dict[str, Any] | None:
        known = result.get("runs", [])
        if len(known) >= count:
            return None
        progress = named(place.progress, f"{name} {len(known) + 1}")
        with place.empty(name) as folder:
            return {"runs": [*known, by.run(models, approach, folder, progress)]}

    measured: list[Run] = place.grown(name, more).get("runs", [])[:count]
    if not all(isinstance(run, dict) and _whole(run, by.figures) for run in measured):
        raise BadModelFile(f"{name} is no result", hint="delete it: it is made again")
    return measured


def _whole(run: Run, figures: Sequence[str]) -> bool:
    cells = (run.get(name) for name in BASES)
    return all(isinstance(cell, dict) and set(cell) == set(figures) for cell in cells)


def warm_up(experiment: Experiment, folder: Path) -> int:
    """What a process does once belongs to no model. Gives the bytes of a stored environment."""
    experiment.architecture.empty()
    Repository.init(folder).close()
    grown = []
    for number, pipeline in enumerate(("none", "none", "lossless")):
        _, before = _sizes(folder)
        with Repository.open(folder, discover=False) as repo:
            repo.commit(
                {"weight": torch.full((1 << 16,), float(number))},
                pipeline=pipeline,
                attachments={"environment.json": Environment.current().encoded} if number else {},
                options=CommitOptions(reset_point=True),
            )
            root_of(repo.checkout())
            if number:
                recipes.environment(repo).compare(Environment.current())
        grown.append(_sizes(folder)[1] - before)
    return grown[1] - grown[0]


def _save(
    models: Models,
    approach: Approach,
    places: Mapping[str, Path],
    use_case: str,
    commits: Mapping[str, CommitId],
) -> tuple[CommitId, dict[str, Any]]:
    """The version, and what is known of its figures. Nodes commit to branches of their own."""
    name, folder = BASES[use_case], places[use_case]
    base = None if name is None or approach.apart else commits[name]
    branch = f"node-{use_case[3]}" if base and use_case.startswith("U3") else None
    state = models.state(use_case)
    old = {} if name is None else models.state(name)
    changed = changed_tensors(old, state)
    with Repository.open(folder, discover=False) as repo:
        if branch and branch not in {ref.name for ref in repo.refs()}:
            repo.branch(branch, str(base))
    before, weights_before = _sizes(folder)
    with Repository.open(folder, discover=False) as repo:
        model = Model(use_case, state, base, old, branch, models.experiment)
        begun = time.process_time()
        saved = approach.save(repo, model)
        spent = time.process_time() - begun
    after, weights_after = _sizes(folder)
    return saved.commit, {
        "stored": after - before,
        "payload": weights_after - weights_before,
        "changed": sum(state[key].nbytes for key in changed),
        "tensors": len(changed),
        "save": saved.seconds,
        "processor": {"save": spent},
    }


def _sizes(folder: Path) -> tuple[int, int]:
    """Bytes of everything below ``.mvc``, and of full records and deltas among them."""
    with Repository.open(folder, discover=False) as repo:
        sizes = repo.storage.stats().bytes
    return bytes_in(folder / ".mvc"), sizes["full"] + sizes["delta"]


def _recover(
    models: Models, approach: Approach, folder: Path, use_case: str, commit: CommitId
) -> tuple[Mapping[str, float], float]:
    """Seconds of each step, and of the processor; DamagedData if the network is another one."""
    with Repository.open(folder, discover=False) as repo:
        begun = time.process_time()
        recovered = approach.recover(repo, commit, models.experiment.architecture)
        spent = time.process_time() - begun
    restored, saved = recovered.network.state_dict(), models.state(use_case)
    if list(restored) != list(saved) or changed_tensors(saved, restored):
        raise DamagedData(f"{use_case} is not what was saved")
    return recovered.seconds, spent
