"""What step recipes cost: bytes of a version, time beside a training, recovery.

    python -m tests.benchmarks.bench_steps [--only bytes|time|recovery] [--versions 300]
        [--mnist FOLDER] [--texts FILE] [--data NAME ...] [--root DIR]

Three data sets: scikit-learn's digits; the first 6,000 images of MNIST, or scikit-learn's table of
breast cancer; 6,000 descriptions of Debian packages, or scikit-learn's table of diabetes, whose
labels are numbers. Nets with dropout and batch norm, in one thread.

``bytes``: five trainings on each. *Proven*: another process made the version again. *Equal*: its
root is the one that was noted when it was trained; after ``gc`` the last version of each segment
that has no weights is made again, and compared, too. *A version*: its ``recipe.json``, and what
journal, commits and manifests take beyond those of the full states alone. These are the same
training recorded every 15th step without a recipe, with its data set. *Dropped*: the whole
repository, in kB, after proofs and ``gc``; *kept*: with the weights of all versions.

``time``: in turn without a recipe, with one, and with proofs beside the training, each in a process
of its own that uses two processors: one of the training, one of the proofs. Medians of the ratios.

``recovery``: the version before each full state, in a process that runs already; what starting that
process takes is printed beside it. Nothing here asserts a figure.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import mvc
from mvc.api import Dropped
from mvc.recipes.dataset import add_data
from mvc.recipes.replay import ReplayOptions, ReplayProcess, made_again
from mvc.state import StateFile
from tests.benchmarks import step_trainings
from tests.benchmarks.measuring import folder, head, process, row
from tests.benchmarks.step_trainings import NETS, TRAININGS

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from reproduce.data import load_data

FULL_EVERY = 15
BATCH = 32
SAMPLES = 6000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=["bytes", "time", "recovery"])
    parser.add_argument("--versions", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3, help="of time")
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--data", nargs="+", help="only these [all]")
    parser.add_argument("--trainings", nargs="+", default=list(TRAININGS), choices=list(TRAININGS))
    parser.add_argument("--root", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with folder(options.root) as place:
        data = [*_data_sets(place, options.mnist, options.texts)]
        data = [each for each in data if each.name in (options.data or [each.name])]
        if options.only in {None, "bytes"}:
            _bytes(place, data, options.trainings, options.versions)
        if options.only in {None, "time"}:
            _time(place, data, options.versions, options.rounds)
        if options.only in {None, "recovery"}:
            _recovery(place, data, options.versions)


# -- data and trainings --------------------------------------------------------------------------


class Data(NamedTuple):
    """A file of samples, and the net for it with its arguments."""

    name: str
    file: Path
    net: str
    arguments: Mapping[str, int]


def _data_sets(place: Path, mnist: Path | None, texts: Path | None) -> Iterator[Data]:
    digits = load_data()
    yield _written(place, "digits", digits.inputs / digits.brightest, digits.labels, "images", 8)
    if mnist is None:
        from sklearn.datasets import load_breast_cancer

        found = load_breast_cancer()
        yield _written(place, "breast cancer", _scaled(found.data), found.target, "table", 30, 2)
    else:
        images = load_data(mnist)
        yield _written(place, "MNIST", images.inputs[:SAMPLES] / 255, images.labels, "images", 28)
    if texts is None:
        from sklearn.datasets import load_diabetes

        found = load_diabetes()
        numbers = _scaled(found.target[:, None]).astype(np.float32)
        yield _written(place, "diabetes", found.data, numbers, "table", 10, 1)
    else:
        words = load_data(texts)
        yield _written(place, "texts", words.inputs[:SAMPLES], words.labels, "texts", 10_000)


def _scaled(values: Any) -> Any:
    return (values - values.mean(0)) / values.std(0)


def _written(place: Path, name: str, inputs: Any, labels: Any, net: str, *sizes: int) -> Data:
    file = place / f"{name.replace(' ', '-')}.npz"
    inputs = inputs if inputs.dtype == np.int32 else inputs.astype(np.float32)
    np.savez(file, x=inputs, y=labels[: len(inputs)])
    names = {"images": ["width"], "texts": ["words"], "table": ["width", "outputs"]}[net]
    return Data(name, file, net, dict(zip(names, sizes, strict=True)))


class Training(NamedTuple):
    model: Any
    optimizer: Any
    step: Any
    scheduler: Any
    data: Any

    @classmethod
    def of(cls, data: Data, kind: str) -> Training:
        torch.manual_seed(1)
        model = mvc.constructed(NETS[data.net], **data.arguments)
        (optimizer_of, arguments), name = TRAININGS[kind]
        optimizer, scheduler, step = optimizer_of(model.parameters(), **arguments), None, name
        step = getattr(step_trainings, name)
        if name == "clipped":
            step = functools.partial(step, norm=1.0)
        if name == "scheduled":
            scheduler = mvc.constructed(
                torch.optim.lr_scheduler.StepLR, optimizer, step_size=20, gamma=0.9
            )
            step = functools.partial(step, scheduler=scheduler)
        samples = mvc.constructed(step_trainings.samples, data.file)
        return cls(model, optimizer, step, scheduler, samples)

    def batches(self, count: int) -> Iterator[list[int]]:
        drawn = torch.Generator().manual_seed(2)
        for _ in range(count):
            yield torch.randint(len(self.data), (BATCH,), generator=drawn).tolist()

    def recorder(self, repo: mvc.Repository, way: str) -> mvc.Recorder:
        if way == "plain":
            return mvc.Recorder(repo, self.model, self.optimizer, scheduler=self.scheduler)
        return mvc.Recorder(
            repo, self.model, self.optimizer, recipe=self.step, data=self.data,
            scheduler=self.scheduler, full_every=FULL_EVERY, prove=way == "proof",
        )  # fmt: skip

    def train(self, recorder: mvc.Recorder, way: str, rows: list[int]) -> None:
        if way == "plain":
            batch = [tensor[rows] for tensor in self.data.tensors]
            loss = self.step(self.model, self.optimizer, batch)
            recorder.step(loss)
        else:
            recorder.train(rows)


def recorded(root: Path, data: Data, kind: str, way: str, versions: int) -> list[Any]:
    """The root of each version."""
    training, roots = Training.of(data, kind), []
    with mvc.Repository.init(root) as repo:
        with training.recorder(repo, way) as recorder:
            for rows in training.batches(versions):
                training.train(recorder, way, rows)
                roots.append(StateFile.of(dict(training.model.state_dict())).root)
        repo.storage.gc(grace=timedelta(0))
    return roots


# -- bytes ---------------------------------------------------------------------------------------


def _bytes(place: Path, data: list[Data], kinds: list[str], versions: int) -> None:
    print(f"{versions} versions of each training, a full state every {FULL_EVERY}; bytes")
    head(
        "data", "training", "net", "proven", "equal", "a version", "dropped", "kept", "full states"
    )
    for each in data:
        for kind in kinds:
            _bytes_of(place / "bytes" / each.name / kind, each, kind, versions)


def _bytes_of(place: Path, data: Data, kind: str, versions: int) -> None:
    ways = {way: place / way for way in ("proof", "recipe", "full")}
    roots = recorded(ways["proof"], data, kind, "proof", versions)
    recorded(ways["recipe"], data, kind, "recipe", versions)
    _full_states(ways["full"], data, kind, versions)
    between = versions - len(range(0, versions, FULL_EVERY))
    with mvc.Repository.open(ways["proof"]) as repo:
        proven, equal = len(repo.storage.proofs()), _equal(repo, roots)
        net = sum(tensor.nbytes for tensor in repo.checkout().values())
        recipes = sum(_recipe_bytes(repo))
    stored, noted = zip(*(_stored(root) for root in ways.values()), strict=True)
    version = (noted[0] - noted[2] + recipes) / between
    row(
        data.name, kind, f"{net:,}", f"{proven} of {versions - 1}", f"{equal} of {versions}",
        f"{version:,.0f}", *(f"{nbytes / 1000:,.0f}" for nbytes in stored),
    )  # fmt: skip


def _recipe_bytes(repo: mvc.Repository) -> Iterator[int]:
    """By version between two full states, the size of its recipe."""
    for entry in repo.log("main"):
        attached = {each.path: each.size for each in repo.manifest(entry.id).attached}
        if ".mvc/recipe.json" in attached and ".mvc/steps.json" not in attached:
            yield attached[".mvc/recipe.json"]


def _full_states(root: Path, data: Data, kind: str, versions: int) -> None:
    """The versions that are full states, recorded alone."""
    training = Training.of(data, kind)
    with mvc.Repository.init(root) as repo:
        add_data(repo, data.file)
        with training.recorder(repo, "plain") as recorder:
            for number, rows in enumerate(training.batches(versions)):
                batch = [tensor[rows] for tensor in training.data.tensors]
                training.step(training.model, training.optimizer, batch)
                if number % FULL_EVERY == 0:
                    recorder.step()
        repo.storage.gc(grace=timedelta(0))


def _stored(root: Path) -> tuple[int, int]:
    """Bytes of packs and journal (an index can be made again), and of what is no content there.

    That is the journal, commits and manifests.
    """
    with mvc.Repository.open(root) as repo:
        found = repo.storage.stats()
        noted = found.bytes["journal"] + found.bytes["metadata"]
        return found.stored_bytes - found.bytes["index"], noted


def _equal(repo: mvc.Repository, roots: list[Any]) -> int:
    """How many versions have the root that they had when they were trained."""
    made = [entry.id for entry in reversed(repo.log("main"))]
    equal = sum(_root(repo, each) == root for each, root in zip(made, roots, strict=True))
    with repo.storage.work_folder() as place, ReplayProcess(place) as worker:
        for number in range(FULL_EVERY - 1, len(made) - 1, FULL_EVERY):
            assert isinstance(repo.availability(made[number]), Dropped)
            options = ReplayOptions(trusted={made[number]})
            with made_again(repo, made[number], options, worker) as again:
                equal -= again.file.root != roots[number]
    return equal


def _root(repo: mvc.Repository, version: Any) -> Any:
    return repo.manifest(version).by_path["model.safetensors"].state.root


# -- time ----------------------------------------------------------------------------------------

WAYS = {"plain": "without a recipe", "recipe": "prove=False", "proof": "prove=True"}


class Took(NamedTuple):
    """Seconds until the last step returned, until all was closed, and of the processors."""

    steps: float
    closed: float
    processors: float


def _time(place: Path, data: list[Data], versions: int, rounds: int) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    print(f"\n{versions} versions, RMSprop, {len(cores)} processors, medians of {rounds} rounds; s")
    head("data", "recorder", "steps", "ratio", "closed", "ratio", "processors", "ratio")
    for each in data:
        took = dict[str, list[Took]]({way: [] for way in WAYS})
        for number in range(rounds):
            for way, found in took.items():
                found.append(_took(place / f"time/{each.name}/{way}-{number}", each, way, versions))
        for way, found in took.items():
            cells = [each.name, WAYS[way]]
            for part in range(3):
                ratios = [a[part] / b[part] for a, b in zip(found, took["plain"], strict=True)]
                cells.append(f"{statistics.median(t[part] for t in found):.2f}")
                cells.append(f"{statistics.median(ratios):.2f} x")
            row(*cells)


def _took(root: Path, data: Data, way: str, versions: int) -> Took:
    training = Training.of(data, "RMSprop")
    batches = [*training.batches(versions)]
    with mvc.Repository.init(root) as repo:
        with training.recorder(repo, way) as recorder:
            begun, used = time.perf_counter(), _processors()
            for rows in batches:
                training.train(recorder, way, rows)
            steps = time.perf_counter() - begun
        return Took(steps, time.perf_counter() - begun, _processors() - used)


def _processors() -> float:
    """Seconds of this process and of those that it started and that ended."""
    every = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in every)


# -- recovery ------------------------------------------------------------------------------------


def _recovery(place: Path, data: list[Data], versions: int) -> None:
    begun = statistics.median(
        process("-c", "import torch; torch.optim.SGD([torch.zeros(1)])").wall for _ in range(3)
    )
    print(f"\nthe start of a process with torch: {begun:.2f} s, not in what follows")
    print(f"\nthe version before each full state, {FULL_EVERY - 1} steps; medians, ms")
    head("data", "estimate", "measured", "ratio", "worst ratio")
    for each in data:
        root = place / "recovery" / each.name
        recorded(root, each, "RMSprop", "proof", versions)
        with mvc.Repository.open(root) as repo:
            took = _recoveries(repo)
        ratios = [measured / estimate for estimate, measured in took]
        middle = [f"{statistics.median(every) * 1000:.1f}" for every in zip(*took, strict=True)]
        row(each.name, *middle, f"{statistics.median(ratios):.2f}", f"{max(ratios):.2f}")


def _recoveries(repo: mvc.Repository) -> list[tuple[float, float]]:
    """Of each version: the estimate, and the seconds measured."""
    made, took = [entry.id for entry in reversed(repo.log("main"))], []
    with repo.storage.work_folder() as place, ReplayProcess(place) as worker:
        for version in made[FULL_EVERY - 1 :: FULL_EVERY]:
            found = repo.availability(version)
            if not isinstance(found, Dropped):
                continue
            assert found.base is not None
            estimate = repo.storage.cost(found.base).seconds + found.seconds
            options = ReplayOptions(trusted={version})
            begun = time.perf_counter()
            with made_again(repo, version, options, worker):
                took.append((estimate, time.perf_counter() - begun))
    return took[1:]  # the first one started the process


if __name__ == "__main__":
    main()
