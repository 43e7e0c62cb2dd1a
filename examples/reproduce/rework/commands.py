"""The commands: trials of schemes, what LC's stages do, and the case study by epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from mvc.errors import WrongUsage
from mvc.pipelines.pipeline import Pipeline

from ..data import load_data
from ..experiment import Report, Row, argument, known, option
from ..render import SCHEMA
from ..workspace import Workspace, digest, machine
from .breakdown import bucket_errors, exponents, sizes
from .failure import FAILURE, failure
from .noise import noise
from .overhead import overhead
from .ratings import load_ratings
from .schemes import DEFAULT, checkpoints
from .tables import tables
from .training import Experiment, Training
from .trials import trials
from .workloads import WORKLOADS, Images, Scores, Source, Walk

__all__ = [
    *("Buckets", "Exponents", "Failure", "Noise", "Overhead", "Sizes", "Tables", "Trainings"),
    "Trials",
]

_CASE_BATCH = 50
_CASE_RATE = 0.5
_RATINGS = "A CSV file with userId, movieId, rating. Default: synthetic ratings."


@dataclass(frozen=True)
class Trainings:
    """Which networks are trained with which optimizers and data."""

    models: tuple[str, ...] = option(
        ("mlr", "mf", "lenet"), "mlr, mf, lenet, alexnet, walk, with commas.", "NAMES"
    )
    optimizers: tuple[str, ...] = option(("sgd",), "sgd, momentum, adam, with commas.", "NAMES")
    data: Path | None = option(
        None, "A folder of IDX files. Default: scikit-learn's digits, grown to 28 x 28.", "FOLDER"
    )
    ratings: Path | None = option(None, _RATINGS, "FILE")

    def experiments(self) -> list[Experiment]:
        """Each once. Raises WrongUsage for unknown names, and if there is none."""
        if not self.models or not self.optimizers:
            raise WrongUsage("name at least one model and one optimizer")
        workloads = [known("model", WORKLOADS, name) for name in dict.fromkeys(self.models)]
        sources: dict[str, Source] = {}
        for kind in dict.fromkeys(workload.kind for workload in workloads):
            if kind == "images":
                sources[kind] = Images(load_data(self.data))
            elif kind == "ratings":
                sources[kind] = Scores(load_ratings(self.ratings))
            else:
                sources[kind] = Walk()
        return [
            Experiment(workload, sources[workload.kind], optimizer)
            for workload in workloads
            for optimizer in dict.fromkeys(self.optimizers)
        ]


def _row(experiment: Experiment, lines: Iterable[Mapping[str, Any]], **more: Any) -> Row:
    """An experiment's parameters, and what was measured line by line."""
    state = Training(experiment, 0).state
    setting = {
        **experiment.parameters,
        "parameters": state["weights"].size,
        "state": sum(values.nbytes for values in state.values()),
        **more,
    }
    return {"setting": setting, "lines": list(lines)}


def _checked(experiments: Sequence[Experiment], schemes: Sequence[str]) -> Sequence[Experiment]:
    for experiment in experiments:
        for scheme in schemes:
            checkpoints(scheme, {}, experiment.workload.block)
    return experiments


def _report(kind: str, rows: Sequence[Row]) -> Report:
    schema = SCHEMA.format("rework")
    return {"schema": schema, "name": kind, "kind": kind, "groups": list(rows),
            "machine": f"{machine()}."}  # fmt: skip


@dataclass(frozen=True)
class Trials:
    """Measure iterations that are done again, by SCHEME.

    A SCHEME is a pipeline (lc:x=3,huffman), scar:SHARE, scar-round:SHARE, topn:SHARE,
    topn-coded:SHARE or full:ITERATIONS. A pipeline in place of SHARE (topn:lc:x=3) gives every
    checkpoint as many bytes as that pipeline takes. Behind a scheme may stand @exact or @zeroed
    for the optimizer's moments. Default: eight of them.
    """

    trainings: Trainings
    schemes: tuple[str, ...] = argument(DEFAULT, "[SCHEME]...")
    trials: int = option(5, "Trainings, each with one failure. The paper has 50.", "N")

    def cases(self) -> Sequence[Experiment]:
        if self.trials < 1:
            raise WrongUsage(f"trials is {self.trials}: it must be at least 1")
        return _checked(self.trainings.experiments(), self.schemes)

    def run(self, case: Experiment, place: Workspace) -> Row:
        columns = trials(case, tuple(dict.fromkeys(self.schemes)), self.trials, place)
        lines = ({"scheme": scheme, **figures} for scheme, figures in columns.items())
        return _row(case, lines, trials=self.trials)

    def report(self, rows: Sequence[Row]) -> Report:
        return _report("rework", rows)


@dataclass(frozen=True)
class _Breakdown:
    """Lines that one training of each experiment gives, measured once."""

    trainings: Trainings
    kind: ClassVar[str]

    def measure(self, case: Experiment) -> Iterable[Mapping[str, Any]]:
        raise NotImplementedError

    @property
    def key(self) -> str:
        """The name of the result."""
        return self.kind

    def cases(self) -> Sequence[Experiment]:
        return self.trainings.experiments()

    def run(self, case: Experiment, place: Workspace) -> Row:
        result = place.once(f"{case.name}/{self.key}", lambda: {"lines": list(self.measure(case))})
        return _row(case, result["lines"])

    def report(self, rows: Sequence[Row]) -> Report:
        return _report(self.kind, rows)


class Sizes(_Breakdown):
    """Measure what each stage and each coder of LC saves."""

    kind = "sizes"

    def measure(self, case: Experiment) -> Iterable[Mapping[str, Any]]:
        return sizes(case)


class Tables(_Breakdown):
    """Measure what a cache of Huffman codes would save."""

    kind = "tables"

    def measure(self, case: Experiment) -> Iterable[Mapping[str, Any]]:
        return tables(case)


class Buckets(_Breakdown):
    """Measure the loss without each bucket of a change."""

    kind = "buckets"

    def measure(self, case: Experiment) -> Iterable[Mapping[str, Any]]:
        return bucket_errors(case)


class Exponents(_Breakdown):
    """Count changes by exponent, in the last convolution if there is one."""

    kind = "exponents"

    def measure(self, case: Experiment) -> Iterable[Mapping[str, Any]]:
        return exponents(case)


@dataclass(frozen=True)
class Noise(_Breakdown):
    """Measure what each SCHEME leaves out, beside the noise of SGD.

    SCHEME is as for run.
    """

    schemes: tuple[str, ...] = argument(DEFAULT[:-1], "[SCHEME]...")
    kind = "noise"

    @property
    def key(self) -> str:
        return f"{self.kind}-{digest(self.schemes, 8)}"

    def cases(self) -> Sequence[Experiment]:
        return _checked(super().cases(), self.schemes)

    def measure(self, case: Experiment) -> Iterable[Mapping[str, Any]]:
        return noise(case, self.schemes)


@dataclass(frozen=True)
class _Case:
    """A matrix factorisation whose epochs are recorded, with each pipeline."""

    pipelines: tuple[str, ...] = argument(("lc:x=3", "lc"), "[PIPELINE]...")
    ratings: Path | None = option(None, _RATINGS, "FILE")
    epochs: int = option(10, "Recorded.", "N")
    kind: ClassVar[str]

    def cases(self) -> Sequence[str]:
        if self.epochs < FAILURE:
            raise WrongUsage(f"epochs is {self.epochs}: it must be at least {FAILURE}")
        for pipeline in self.pipelines:
            Pipeline.parse(pipeline)
        return list(dict.fromkeys(self.pipelines))

    def report(self, rows: Sequence[Row]) -> Report:
        return _report(self.kind, [_row(self._experiment(), rows)])

    def _experiment(self) -> Experiment:
        workload = replace(WORKLOADS["mf"], batch_size=_CASE_BATCH, rates={"sgd": _CASE_RATE})
        return Experiment(workload, Scores(load_ratings(self.ratings)), "sgd")


class Overhead(_Case):
    """Measure what recording every epoch of a matrix factorisation costs; always anew."""

    kind = "overhead"

    def run(self, case: str, place: Workspace) -> Row:
        folder = place.folder / "overhead"
        return dict(overhead(self._experiment(), case, self.epochs, folder, place.progress))


class Failure(_Case):
    """Measure the loss by epoch of a matrix factorisation that is restored after epoch 7."""

    kind = "failure"

    def run(self, case: str, place: Workspace) -> Row:
        folder = place.folder / "failure"
        return dict(failure(self._experiment(), case, self.epochs, folder, place.progress))
