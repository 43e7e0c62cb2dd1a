"""Tables put together from figures: ratios, what is missing, curves of two networks."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.common.render import grid
from mvc.evaluation.drift.experiment import Experiment, Settings
from mvc.evaluation.drift.measure import Accuracies, Measured
from mvc.evaluation.drift.render import accuracy_curves, markdown, scatter
from mvc.evaluation.drift.session import draw
from mvc.evaluation.drift.tables import (
    CurveTable,
    Learning,
    compare,
    compare_curves,
    read_table,
    table_bytes,
)
from mvc.evaluation.drift.thesis import MEASURED

from mvc.codecs.pipeline import PRESETS
from mvc.errors import BadModelFile, NotInstalled, UnknownPath, WrongUsage
from mvc.io.files import FileSystem

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
        recipe = SimpleNamespace(recurrent=kind == "lstm")
        experiment = SimpleNamespace(recipe=recipe, parameters=parameters)
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


def test_every_figure_has_one_for_each_label():
    runs = [
        Known("conv", 0, {"zstd:1": 1000, "xor | zstd:1": 200}),
        Known("conv", 2, {"zstd:1": 900, "xor | zstd:1": 300}),
    ]
    made = compare(MEASURED["4.9"], runs)
    line = made.lines[1]
    cell = line.cells["conv"]
    assert cell.ratio == pytest.approx((5, 3))
    assert cell.mean("ratio") == pytest.approx((5 + 3) / 2)
    assert cell.to_zstd == cell.ratio
    assert cell.to_raw == cell.to_lossless == ()
    assert cell.mean("to_raw") is None
    assert cell.mean("accuracy") == pytest.approx(-0.1)
    assert cell.accuracy == pytest.approx((0, -0.2))
    means = [cell.mean(f"{kind}_bytes") for kind in ("delta", "full", "other")]
    assert means == [125, 62.5, 62.5]
    assert "| 4 (5, 3) |  3.824 | -0.100 (+0.000, -0.200) |" in markdown(made)
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
    assert {"frontier-0", "frontier-0.1", "frontier-1", "frontier-1-slow"} <= set(names)
    stated = {line.name: line.stated for line in made.lines}
    assert stated["vsol-0-fast"]["conv"].ratio == 29.944  # its row in the same table
    assert stated["vsol"]["lstm"].ratio == 1.565  # its row in table 4.12
    assert stated["frontier-0"] == {}
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
    assert {row.count("|") for row in rows} == {11, 8, 5}  # figures, seconds, baselines
    if pytest.importorskip("matplotlib"):
        assert scatter(made).startswith(b"\x89PNG")


def test_seconds_beside_their_shares():
    """Of a batch that takes 0.5 s to learn: mean and longest, ours and the thesis's."""
    text = markdown(compare(MEASURED["4.9"], [Known("conv", 0, {})]))
    assert "One batch takes 0.500 / 0.600 s to learn (thesis, its conv: 0.033 / 0.074 s)." in text
    row = next(line for line in text.splitlines() if "0.100 / 0.200" in line and "Difrs28f" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    stated = MEASURED["4.9"].rows[-1].stated["conv"]
    assert cells[1:3] == ["0.100 / 0.200", "0.20"]
    assert cells[3:5] == [
        f"{stated.save:.3f} / {stated.save_max:.3f}",
        f"{stated.save / 0.033:.2f}",
    ]
    assert cells[5] == "0.300 / 0.400"


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


LABELS = np.arange(6000) % 2
IMAGES = Dataset("i", "images", np.zeros((6000, 28, 28), np.uint8), LABELS, ("a", "b"))
TEXTS = Dataset("t", "texts", np.zeros((6000, 100), np.int32), LABELS, ("a", "b"))
FS = FileSystem()


def trained(seen):
    """Stands in for trainings: curves of two labels that depend on the settings."""

    def run(data, settings):
        seen.append((data.name, settings))
        recurrent = data.kind == "texts" or settings.model == "rows"
        low = [0, 1, 1] if recurrent and settings.peak != "0.6" else [0, 0, 1]
        curves = (tuple(low), (0, 0, 1))
        return [
            SimpleNamespace(
                lossless=lambda curve=curve: Accuracies((0,), curve),
                stream=SimpleNamespace(experiment=Experiment.of(data, settings, label)),
            )
            for label, curve in enumerate(curves)
        ]

    return run


def test_curves_of_two_networks():
    seen = []
    made = compare_curves("4.5", (TEXTS, IMAGES), Settings(epochs=3), trained(seen))
    assert len(made.lines) == 9
    assert len(seen) == 18
    first, second = seen[:2]
    assert (first[0], first[1].peak, first[1].seen, first[1].batches) == ("i", "0.4", "0.0001", 150)
    assert (second[0], second[1].peak, second[1].seen) == ("t", "0.4", "0.001")
    # of four pairs two differ by 1/3; none where the peak of the texts is 0.6
    assert [line.difference for line in made.lines[:3]] == pytest.approx([1 / 6, 1 / 6, 0])
    assert [line.stated for line in made.lines[:3]] == [0.107, 0.115, 0.095]
    text = markdown(CurveTable("4.5", (made,)))
    assert "conv peak" in text
    assert "0.167" in text


@pytest.mark.parametrize("number", ["4.3", "4.4", "4.5"])
@pytest.mark.parametrize("data", [(IMAGES, TEXTS), (IMAGES,)], ids=["both", "images"])
def test_a_table_varies_one_thing_and_names_the_rest(number, data):
    seen = []
    made = compare_curves(number, data, Settings(epochs=3), trained(seen))
    varied = {"4.3": "batches", "4.4": "seen", "4.5": "peak"}[number]
    for position in (0, 1):  # the networks by turns
        settings = [each for _, each in seen[position::2]]
        plans = [Experiment.of(data[position % len(data)], each, 0).plan for each in settings]
        assert len({plan.batch_size for plan in plans}) == 1
        assert len({plan.others_offline for plan in plans}) == 1
        assert len({getattr(each, varied) for each in settings}) > 1
        for name in {"batches", "seen", "peak", "epochs", "seed"} - {varied}:
            assert len({getattr(each, name) for each in settings}) == 1
    text = markdown(CurveTable(number, (made,)))
    size = made.networks["conv"]["batch_size"]
    assert (
        f"- Table {number}, all rows: labels 0, 1; conv on i, 3 epochs, batches of {size}" in text
    )
    second = "lstm on t" if len(data) == 2 else "rows on i"
    assert f"; {second}, 3 epochs, batches of" in text


def test_fewer_batches_are_shared_among_the_rows_in_proportion():
    seen = []
    compare_curves("4.3", (IMAGES, TEXTS), Settings(batches=30), trained(seen))
    assert [settings.batches for _, settings in seen[::2]] == [20, 25, 30, 32]


def test_what_each_setting_is_good_for_beside_the_thesis():
    parts = [
        compare_curves(number, (IMAGES, TEXTS), Settings(), trained([]))
        for number in ("4.3", "4.4", "4.5")
    ]
    text = markdown(CurveTable("4.6", tuple(parts)))
    rows = [line for line in text.splitlines() if line.startswith("| share") or "number" in line]
    stated = [[cell.strip() for cell in row.strip("|").split("|")][4:] for row in rows]
    assert stated == [
        ["0.115", "0.239", "208%"],
        ["0.122", "0.176", "144%"],
        ["0.102", "0.119", "117%"],
    ]
    assert "share of the label in the offline data" in rows[0]
    for number in ("4.3", "4.4", "4.5"):
        assert f"- Table {number}, all rows: labels 0, 1; conv on i, 10 epochs, batches of" in text


@pytest.mark.parametrize("data", [(IMAGES, IMAGES), (TEXTS,)], ids=["ii", "t"])
def test_curves_need_images_and_one_data_set_of_a_kind(data):
    with pytest.raises(WrongUsage, match=r"table 4\.4 compares two networks"):
        compare_curves("4.4", data, Settings(), trained([]))


def test_curves_choose_their_networks():
    with pytest.raises(WrongUsage, match=r"table 4\.4 has its two networks"):
        compare_curves("4.4", (IMAGES,), Settings(model="conv"), trained([]))


def test_settings_of_table_43():
    seen = []
    made = compare_curves("4.3", (IMAGES, TEXTS), Settings(), trained(seen))
    assert [line.conv["batches"] for line in made.lines] == [100, 125, 150, 160]
    assert {settings.seen for _, settings in seen} == {"0"}


def test_a_table_is_read_from_its_json(tmp_path):
    known = [Known("conv", 0, {}), Known("lstm", 0, {})]
    curves = compare_curves("4.3", (IMAGES,), Settings(), trained([]))
    learning = Learning("4.7", ({"stream": "a", "mean s": 0.5, "thesis mean s": 0.033},))
    for made in (compare(MEASURED["4.26"], known), CurveTable("4.3", (curves,)), learning):
        file = tmp_path / "table.json"
        file.write_bytes(table_bytes(made))
        again = read_table(FS, file)
        assert markdown(again) == markdown(made)
        assert table_bytes(again) == table_bytes(made)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "other"}', '{"schema": "mvc.evaluation.table/1"}']
)
def test_what_is_no_table(tmp_path, text):
    file = tmp_path / "table.json"
    with pytest.raises(UnknownPath):
        read_table(FS, file)
    file.write_text(text)
    with pytest.raises(BadModelFile, match=r"table\.json is no table"):
        read_table(FS, file)


def test_a_picture_is_drawn_from_json(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "made.json"
    file.write_bytes(table_bytes(compare(MEASURED["4.20"], [Known("conv", 0, {})])))
    picture = draw(FS, file, tmp_path)
    assert picture.name == "made.svg"
    first = picture.read_bytes()
    assert b"Flors20r32r" in first
    assert draw(FS, file, tmp_path).read_bytes() == first
    file.write_bytes(table_bytes(Learning("4.7", ())))
    with pytest.raises(WrongUsage, match=r"table 4\.7, which has no picture"):
        draw(FS, file, tmp_path)


def test_accuracy_curves():
    pytest.importorskip("matplotlib")
    assert accuracy_curves({"a": [0.1, 0.5], "b": [0.3, 0.3]}).startswith(b"\x89PNG")


def test_grid():
    assert grid(("a", "n"), [("long", "1"), ("b", "22")]) == (
        "| a    |  n |\n| ---- | -: |\n| long |  1 |\n| b    | 22 |"
    )


def test_pipes_in_a_grid():
    assert grid(("a",), [("xor | raw",)]).splitlines()[2] == "| xor \\| raw |"
