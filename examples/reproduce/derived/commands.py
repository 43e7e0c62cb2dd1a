"""The commands: what the networks count to, and what the approaches cost, also with a server."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mvc.errors import WrongUsage

from ..data import load_data
from ..experiment import Report, Row, known, option
from ..render import SCHEMA
from ..workspace import Workspace, machine
from .approaches import APPROACHES, Approach
from .architectures import ARCHITECTURES, Architecture
from .flow import BASES, RELATIONS, Experiment, Settings, record
from .measure import LOCAL, Measured, Run, runs
from .served import FIGURES as SERVED
from .served import measure_served

__all__ = ["Approaches", "Networks", "Served"]

_SCHEMA = {"schema": SCHEMA.format("derived")}
_COMMAS = "NAMES"


@dataclass(frozen=True)
class Networks:
    """Print what the networks count to, beside the thesis's figures."""

    def cases(self) -> Sequence[Architecture]:
        return list(ARCHITECTURES.values())

    def run(self, case: Architecture, place: Workspace) -> Row:  # noqa: ARG002
        """Parameters, those of the last layer, tensors and bytes."""
        network = case.empty()
        parts = (network, network.get_submodule(case.last))
        state = network.state_dict().values()
        counts = [sum(each.numel() for each in part.parameters()) for part in parts]
        size = sum(value.nbytes for value in state)
        return {"architecture": case.name, "counts": [*counts, len(state), size]}

    def report(self, rows: Sequence[Row]) -> Report:
        return {**_SCHEMA, "name": "architectures", "networks": list(rows)}


class _Case(NamedTuple):
    name: str
    experiment: Experiment
    approach: Approach


@dataclass(frozen=True)
class Approaches:
    """Measure bytes, time to save and time to recover of each approach.

    Models are trained once and saved by every approach; each is recovered and compared.
    """

    name: ClassVar = "derived"
    measured: ClassVar[Measured] = LOCAL

    settings: Settings
    architectures: tuple[str, ...] = option(
        ("mobilenetv2", "resnet18"), f"{', '.join(ARCHITECTURES)}, with commas.", _COMMAS
    )
    relations: tuple[str, ...] = option(
        ("version", "fine-tuned"), f"{', '.join(RELATIONS)}, with commas.", _COMMAS
    )
    approaches: tuple[str, ...] = option(
        ("full", "by-value", "update", "deltas"),
        f"{', '.join(APPROACHES)}, with commas, or all.",
        _COMMAS,
    )
    repeats: int = option(1, "Runs, of which the figures are medians.", "N")
    data: Path | None = option(
        None, "A folder of IDX files. Default: scikit-learn's digits.", "FOLDER"
    )

    def cases(self) -> Sequence[_Case]:
        """Group by group, from the smallest to the largest network."""
        if self.repeats < 1:
            raise WrongUsage(f"repeats is {self.repeats}: it must be at least 1")
        names = APPROACHES if self.approaches == ("all",) else self.approaches
        approaches = [known("approach", APPROACHES, name) for name in dict.fromkeys(names)]
        experiments = list(self._experiments())
        if not experiments or not approaches:
            raise WrongUsage("name at least one architecture, one relation and one approach")
        cases = []
        for experiment in experiments:
            grafted = experiment.relation == "grafted"
            fitting = [each for each in approaches if not (each.retrains and grafted)]
            if not fitting:
                raise WrongUsage(
                    "provenance trains models again, and no training makes a grafted one",
                    hint="choose another relation, or name other approaches, too",
                )
            cases += [_Case(experiment.name, experiment, each) for each in fitting]
        return cases

    def _experiments(self) -> Iterator[Experiment]:
        data = load_data(self.data)
        for name in dict.fromkeys(self.architectures):
            architecture = known("architecture", ARCHITECTURES, name)
            for relation in dict.fromkeys(self.relations):
                yield Experiment.of(architecture, relation, data, self.settings)

    def run(self, case: _Case, place: Workspace) -> Row:
        """Medians by use case."""
        approach = case.approach
        models = place.opened(
            place.folder / "models" / case.name,
            lambda folder: record(case.experiment, folder.parent, place.progress),
        )
        measured = runs(models, approach, self.repeats, place, by=self.measured)
        cells = {name: _medians([run[name] for run in measured]) for name in BASES}
        line = {name: getattr(approach, name) for name in ("name", "title", "thesis", "about")}
        return {
            "setting": case.experiment.parameters,
            "line": {**line, "runs": len(measured), "cells": cells},
        }

    def report(self, rows: Sequence[Row]) -> Report:
        groups: list[dict[str, Any]] = []
        for row in rows:
            setting = row["setting"]
            if not groups or groups[-1]["setting"] != setting:
                names = {name: setting[name] for name in ("architecture", "relation")}
                groups.append({**names, "setting": setting, "lines": []})
            groups[-1]["lines"].append(row["line"])
        many = "one run" if self.repeats == 1 else f"medians of {self.repeats} runs"
        return {**_SCHEMA, "name": self.name, "groups": groups, "machine": f"{machine()}; {many}."}


@dataclass(frozen=True)
class Served(Approaches):
    """Measure the flow with a server and nodes that are processes of their own.

    The server has U1 and U2, and 'mvc serve' gives them out over https on this machine. Two nodes
    clone them, derive the others, and push; in the end all ten are recovered from the server
    alone. Bytes on the wire, until the server has a model, and until it is recovered. It needs
    the program openssl, which makes the server's certificate.
    """

    name: ClassVar = "derived-server"
    measured: ClassVar[Measured] = Measured(measure_served, SERVED, "served-")

    architectures: tuple[str, ...] = option(
        ("mobilenetv2",), f"{', '.join(ARCHITECTURES)}, with commas.", _COMMAS
    )
    approaches: tuple[str, ...] = option(
        ("full", "update", "deltas", "provenance"),
        f"{', '.join(APPROACHES)}, with commas, or all.",
        _COMMAS,
    )


def _medians(cells: Sequence[Run]) -> dict[str, Any]:
    """Of numbers, and of the seconds of each step."""
    return {
        name: {step: statistics.median(cell[name][step] for cell in cells) for step in value}
        if isinstance(value, dict)
        else round(statistics.median(cell[name] for cell in cells))
        for name, value in cells[0].items()
    }
