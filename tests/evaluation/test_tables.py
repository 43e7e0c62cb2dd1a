"""Tables put together from figures: ratios, what is missing, curves of two networks."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mvc.codecs.pipeline import PRESETS
from mvc.errors import NotInstalled, WrongUsage
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.drift.experiment import Settings
from mvc.evaluation.drift.measure import Accuracies, Measured
from mvc.evaluation.drift.render import (
    accuracy_curves,
    curves_markdown,
    grid,
    markdown,
    ratio_against_accuracy,
)
from mvc.evaluation.drift.tables import compare, compare_curves, improvements
from mvc.evaluation.drift.thesis import MEASURED

BASE = Measured(
    pipeline="", interval=1, versions=3, saved=3, reset_points=1, folder=1000,
    bytes={"delta": 600, "full": 300, "metadata": 50, "journal": 30, "index": 20},
    save=0.1, save_max=0.2, load=0.3, load_max=0.4, learn=0.5, learn_max=0.6,
    accuracy=0.9, target=0.8, lossless=0.9, lossless_target=0.8, next=(0.9,), last=(0.8,),
)  # fmt: skip


class Known:
    """Results that are known: the folder's bytes by pipeline, for one label."""

    def __init__(self, kind, label, sizes):
        parameters = {"label": label, "model": kind, "data": "d", "epochs": 1, "batches": 3,
                      "batch_size": 2}  # fmt: skip
        data = SimpleNamespace(kind="texts" if kind == "lstm" else "images")
        experiment = SimpleNamespace(data=data, parameters=parameters)
        self.stream = SimpleNamespace(experiment=experiment, versions=range(200))
        self._sizes = sizes

    def measured(self, configuration, tell=None):
        if tell is not None:
            tell("measuring", 1, 1)
        text = PRESETS.get(configuration.pipeline, configuration.pipeline)
        if "brotli" in text:
            raise NotInstalled("no brotli here")
        size = self._sizes.get(text, 500)
        label = self.stream.experiment.parameters["label"]
        return replace(
            BASE, pipeline=text, folder=size, bytes={"delta": size // 2, "full": size // 4},
            accuracy=0.9 - 0.001 * label,
        )  # fmt: skip

    def plain_seconds(self, deltas):
        return deltas / 100


def test_ratios_are_means_over_labels():
    runs = [
        Known("conv", 0, {"zstd:1": 1000, "xor | zstd:1": 200}),
        Known("conv", 2, {"zstd:1": 900, "xor | zstd:1": 300}),
    ]
    made = compare(MEASURED["4.9"], runs)
    line = made.lines[1]
    cell = line.cells["conv"]
    assert cell.ratio == pytest.approx((5 + 3) / 2)
    assert cell.to_zstd == cell.ratio
    assert cell.to_raw is cell.to_lossless is None
    assert cell.accuracy == pytest.approx(-0.1)
    assert cell.differences == pytest.approx((0, -0.2))
    assert (cell.delta_bytes, cell.full_bytes, cell.other_bytes) == (125, 62.5, 62.5)
    assert line.stated["conv"].ratio == 3.824
    assert made.learning == {"conv": (0.5, 0.6)}
    assert made.plain == {"conv": (74, 0.74)}


def test_both_networks_in_one_table():
    runs = [Known("conv", 0, {}), Known("lstm", 0, {})]
    said = []
    made = compare(MEASURED["4.26"], runs, lambda *words: said.append(words))
    names = [line.name for line in made.lines]
    assert names[:2] == ["BL-GeneralCompr", "Flors20rSkisg0pFeTfDifrs28f"]
    assert {"BL-NoCompression", "BL-LosslessCompr", "lossless", "vsol-1-slow"} <= set(names)
    assert {"frontier-0"} <= set(names)
    assert made.plain == {"conv": (74, 0.74), "lstm": (74, 0.74)}
    assert said[0][0] == f"1/{len(names)} BL-GeneralCompr: measuring"
    text = markdown(made)
    assert "## conv on d" in text
    assert "## lstm on d" in text
    assert "74 deltas of `vsol` decoded one after the other in plain numpy: 0.740 s" in text
    assert "46.197" in text
    assert "21.856" in text
    json.dumps(made.setting)


def test_what_cannot_be_measured_is_said():
    made = compare(MEASURED["4.8"], [Known("conv", 0, {})])
    missing = {line.name: line.missing for line in made.lines if line.missing}
    assert missing == {f"Browm{n}c": "no brotli here" for n in (1, 9, 10, 11)}
    text = markdown(made)
    assert "| Browm11c (no brotli here) |" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {15, 6}  # figures, baselines
    if pytest.importorskip("matplotlib"):
        assert ratio_against_accuracy(made).startswith(b"\x89PNG")


def test_what_cannot_be_compared_is_said():
    text = markdown(compare(MEASURED["4.9"], [Known("conv", 0, {})]))
    assert "TensorFlow 2.10" in text
    assert "another machine" in text


def test_our_lossy_presets_beside_the_better_one_of_the_thesis():
    sizes = {
        PRESETS["vsol-0-fast"]: 800,
        PRESETS["vsol-0-slow"]: 400,
        PRESETS["frontier-0"]: 100,
    }
    text = markdown(compare(MEASURED["4.26"], [Known("conv", 0, sizes)]))
    assert "- frontier-0: 0.250 x the bytes of deltas of vsol-0-slow, accuracy" in text


def test_a_preset_of_the_thesis_that_saved_no_delta():
    sizes = {PRESETS["vsol-0-fast"]: 1, PRESETS["vsol-0-slow"]: 1, PRESETS["frontier-0"]: 3000}
    text = markdown(compare(MEASURED["4.26"], [Known("conv", 0, sizes)]))
    assert "- frontier-0: 1.5 kB of deltas, vsol-0-fast none, accuracy" in text
    assert "frontier lines: bytes of deltas beside" in text


def test_small_figures_keep_their_digits():
    row = next(
        line
        for line in markdown(compare(MEASURED["4.9"], [Known("conv", 0, {})])).splitlines()
        if line.startswith("| Difrs148f")
    )
    assert "0.0003" in row
    assert "+0.000" in row
    assert "-0.000" not in row


IMAGES = Dataset("i", "images", np.zeros((4, 28, 28), np.uint8), np.zeros(4, np.int64), ("a",))
TEXTS = Dataset("t", "texts", np.zeros((4, 100), np.int32), np.zeros(4, np.int64), ("a",))


def trained(seen):
    """Stands in for trainings: curves of two labels that depend on the settings."""

    def run(data, settings):
        seen.append((data.name, settings))
        low = [0, 0, 1] if data.kind == "images" or settings.peak == "0.6" else [0, 1, 1]
        return [
            SimpleNamespace(lossless=lambda: Accuracies((0,), tuple(low))),
            SimpleNamespace(lossless=lambda: Accuracies((0,), (0, 0, 1))),
        ]

    return run


def test_curves_of_two_networks():
    seen = []
    settings = Settings(epochs=3, model="conv")
    made = compare_curves("4.5", (TEXTS, IMAGES), settings, trained(seen))
    assert len(made.lines) == 9
    assert len(seen) == 18
    assert seen[0] == ("i", replace(settings, model=None, peak="0.4", seen="0.0001", batches=150))
    assert seen[1] == ("t", replace(settings, model=None, peak="0.4", seen="0.001", batches=150))
    # of four pairs two differ by 1/3; none where the peak of the texts is 0.6
    assert [line.difference for line in made.lines[:3]] == pytest.approx([1 / 6, 1 / 6, 0])
    assert [line.stated for line in made.lines[:3]] == [0.107, 0.115, 0.095]
    text = curves_markdown([made])
    assert "conv peak" in text
    assert "0.167" in text
    assert improvements([made])[0][1:] == pytest.approx((0, 1 / 6, 0.095, 0.126))
    assert "share of the label in the last batch" in curves_markdown([made], summary=True)


@pytest.mark.parametrize("data", [(IMAGES,), (IMAGES, IMAGES), (TEXTS,)], ids=["i", "ii", "t"])
def test_curves_need_both(data):
    with pytest.raises(WrongUsage, match=r"table 4\.4 compares two networks"):
        compare_curves("4.4", data, Settings(), trained([]))


def test_settings_of_table_43():
    seen = []
    made = compare_curves("4.3", (IMAGES, TEXTS), Settings(), trained(seen))
    assert [line.conv["batches"] for line in made.lines] == [100, 125, 150, 160]
    assert {settings.seen for _, settings in seen} == {"0"}


def test_accuracy_curves():
    pytest.importorskip("matplotlib")
    assert accuracy_curves({"a": [0.1, 0.5], "b": [0.3, 0.3]}).startswith(b"\x89PNG")


def test_grid():
    assert grid(("a", "n"), [("long", "1"), ("b", "22")]) == (
        "| a    |  n |\n| ---- | -: |\n| long |  1 |\n| b    | 22 |"
    )


def test_pipes_in_a_grid():
    assert grid(("a",), [("xor | raw",)]).splitlines()[2] == "| xor \\| raw |"
