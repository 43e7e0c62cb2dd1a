"""What requirements say of a preset is what was measured."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from mvc.pipelines import ACCURACY_DROPS, SPEEDS, Requirements
from mvc.pipelines.table import PRESETS

RESULTS = Path(__file__).parents[3] / "examples/reproduce/results"


TABLES = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("drift-bounds-*.json"))]
Measured = dict[str, Any]


def measured(preset: str) -> list[Measured]:
    """What every training of the results says of a preset."""
    rows = [row for table in TABLES for row in table["trainings of the bounds"]]
    return [each for row in rows for each in row["presets"] if each["name"] == preset]


def exceeds(training: Measured, bound: float) -> bool:
    """On the next batch or the last one; or of a label, by an interval for all labels at once."""
    labels = training["labels"].values()
    wider = NormalDist().inv_cdf(1 - 0.025 / len(labels)) / 1.96
    return any(
        drop - factor * interval > bound
        for drop, interval, factor in (
            *((*training[name], 1.0) for name in ("next", "target")),
            *((*each, wider) for each in labels),
        )
    )


NEEDS = [
    Requirements(lossy=True, accuracy_drop=drop, speed=speed)
    for drop, speed in itertools.product(ACCURACY_DROPS, SPEEDS)
]


@pytest.mark.parametrize("needs", NEEDS, ids=str)
def test_requirements_say_what_was_measured(needs: Requirements) -> None:
    trainings = measured(needs.pipeline)
    exceeded = sum(exceeds(each, needs.accuracy_drop / 100) for each in trainings)
    assert needs.measured is not None
    assert needs.measured.startswith(f"in {exceeded} of mvc's {len(trainings)} trainings")
    places = {
        "next": " points on the next batch",
        "target": " on the last",
        "worst": " for the wor",
    }
    for measure, place in places.items():
        lost = max(100 * each[measure][0] for each in trainings)
        assert f"{max(lost, 0):.2f}{place}" in needs.measured
        lines = [line for table in TABLES for line in table["bounds"][0]["lines"]]
        assert not any(line[measure]["twice"] for line in lines if line["name"] == needs.pipeline)


@pytest.mark.parametrize("drop", ACCURACY_DROPS)
def test_what_evaluates_nothing_is_the_smallest_that_kept_the_bound(drop: float) -> None:
    """In 95 % of the trainings."""
    chosen = Requirements(lossy=True, accuracy_drop=drop).pipeline
    names = {line["name"] for table in TABLES for line in table["bounds"][0]["lines"]}
    for name in names:
        found = [exceeds(each, drop / 100) for each in measured(name)]
        if "guard" in PRESETS[name] or "dsed" in PRESETS[name]:
            continue
        if sum(found) > 0.05 * len(found):
            assert name != chosen
            continue
        for table in TABLES:
            size = {line["name"]: line["bytes"] for line in table["bounds"][0]["lines"]}
            assert size.get(chosen, 0) <= size.get(name, float("inf"))
