"""What requirements say of a preset is what was measured."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from mvc.requirements import ACCURACY_DROPS, SPEEDS, Requirements

RESULTS = Path(__file__).parents[3] / "examples/reproduce/results"


@pytest.mark.parametrize(("drop", "speed"), list(itertools.product(ACCURACY_DROPS, SPEEDS)))
def test_requirements_say_what_was_measured(drop, speed) -> None:
    needs = Requirements(lossy=True, accuracy_drop=drop, speed=speed)
    reports = [json.loads(file.read_text()) for file in RESULTS.glob("drift-bounds-*.json")]
    tables = [table for report in reports for table in report["bounds"]]
    lines = [line for t in tables for line in t["lines"] if line["name"] == needs.pipeline]
    assert needs.measured is not None
    assert f"in {sum(line['trainings'] for line in lines)} trainings" in needs.measured
    said = needs.measured.replace(" points lost", "")
    places = {"next": "on the next batch", "target": "on the last", "worst": "of the worst label"}
    for measure, place in places.items():
        lost = max(100 * line[measure]["highest"] for line in lines)
        assert f"{max(lost, 0):.2f} {place}" in said
        assert not any(line[measure]["twice"] for line in lines)
