"""Tables put together from figures: ratios, what is missing, curves of two networks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mvc.errors import BadModelFile, UnknownPath, WrongUsage
from mvc.pipelines.table import PRESETS
from reproduce.data import Dataset
from reproduce.drift.comparison import compared, curve_line, curve_settings, wanted
from reproduce.drift.render import markdown
from reproduce.drift.split import Experiment, Settings
from reproduce.drift.thesis import CURVES, MEASURED
from reproduce.render import SCHEMA, grid, picture, read_report
from reproduce.workspace import compact

LABELS = np.arange(6000) % 2
IMAGES = Dataset("i", "images", np.zeros((6000, 28, 28), np.uint8), LABELS, ("a", "b"))
TEXTS = Dataset("t", "texts", np.zeros((6000, 100), np.int32), LABELS, ("a", "b"))
CONV, LSTM = (Experiment.of(data, Settings(batches=60), 0) for data in (IMAGES, TEXTS))
OTHER = Experiment.of(IMAGES, Settings(batches=60), 1)


def figures(size, label=0):
    """Of a pipeline whose folder has this size."""
    return {
        "folder": size, "bytes": {"delta": size // 2, "full": size // 4}, "saved": 3,
        "save": 0.1, "save_max": 0.2, "load": 0.3, "load_max": 0.4, "learn": 0.5, "learn_max": 0.6,
        "accuracy": 0.9 - 0.001 * label, "target": 0.8, "lossless": 0.9, "lossless_target": 0.8,
    }  # fmt: skip


def table(number, sizes=None, experiments=(CONV,)):
    """A table whose folders have sizes by pipeline, 500 if not named; for several labels more."""
    rows = []
    for name, configuration in wanted(MEASURED[number]).items():
        text = PRESETS.get(configuration.pipeline, configuration.pipeline)
        if "brotli" in text:
            rows.append({"name": name, "missing": "no brotli here"})
            continue
        measured = {}
        for experiment in experiments:
            own = np.ravel((sizes or {}).get(text, 500)).tolist()
            role = "lstm" if experiment is LSTM else "conv"
            size = own[experiment.label % len(own)]
            measured.setdefault(role, []).append(figures(size, 2 * experiment.label))
        plain = dict.fromkeys(measured, (74, 0.74))
        rows.append({"name": name, "measured": measured, "plain": plain})
    return compared(MEASURED[number], experiments, rows)


def test_every_figure_has_one_for_each_label():
    sizes = {"zstd:1": [1000, 900], "xor | zstd:1": [200, 300]}
    made = table("4.9", sizes, (CONV, OTHER))
    line = made["lines"][1]
    cell = line["cells"]["conv"]
    assert cell["ratio"] == pytest.approx([5, 3])
    assert cell["to_zstd"] == cell["ratio"]
    assert cell["to_raw"] == cell["to_lossless"] == []
    assert cell["accuracy"] == pytest.approx([0, -0.2])
    means = [np.mean(cell[f"{kind}_bytes"]) for kind in ("delta", "full", "other")]
    assert means == [125, 62.5, 62.5]
    assert "| 4 (5, 3) |  3.824 | -0.100 (+0.000, -0.200) |" in markdown(made)
    assert line["stated"]["conv"]["ratio"] == 3.824
    assert made["learning"] == {"conv": (0.5, 0.6)}
    assert made["plain"] == {"conv": (74, 0.74)}


def test_both_networks_in_one_table():
    made = table("4.26", experiments=(CONV, LSTM))
    names = [line["name"] for line in made["lines"]]
    assert names[:2] == ["BL-GeneralCompr", "Flors20rSkisg0pFeTfDifrs28f"]
    assert {"BL-NoCompression", "BL-LosslessCompr", "lossless", "vsol-1-slow"} <= set(names)
    assert {"frontier-0", "frontier-0.1", "frontier-1", "frontier-1-slow"} <= set(names)
    stated = {line["name"]: line["stated"] for line in made["lines"]}
    assert stated["vsol-0-fast"]["conv"]["ratio"] == 29.944  # its row in the same table
    assert stated["vsol"]["lstm"]["ratio"] == 1.565  # its row in table 4.12
    assert stated["frontier-0"] == {}
    assert made["plain"] == {"conv": (74, 0.74), "lstm": (74, 0.74)}
    text = markdown(made)
    assert "## conv on i" in text
    assert "## lstm on t" in text
    assert "74 deltas of `vsol` decoded one after the other in plain numpy: 0.740 s" in text
    assert "46.197" in text
    assert "21.856" in text
    json.dumps(made)


def test_what_cannot_be_measured_is_said():
    made = table("4.8")
    missing = {line["name"]: line["missing"] for line in made["lines"] if line["missing"]}
    assert missing == {f"Browm{n}c": "no brotli here" for n in (1, 9, 10, 11)}
    text = markdown(made)
    assert "| Browm11c (no brotli here) |" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {12, 8, 5}  # figures, seconds, baselines
    pytest.importorskip("matplotlib")
    assert picture(kept(made), "png").startswith(b"\x89PNG")


def test_seconds_beside_their_shares():
    """Of a batch that takes 0.5 s to learn: mean and longest, ours and the thesis's."""
    text = markdown(table("4.9"))
    assert "One batch takes 0.500 / 0.600 s to learn (thesis, its conv: 0.033 / 0.074 s)." in text
    row = next(line for line in text.splitlines() if "0.100 / 0.200" in line and "Difrs28f" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    stated = MEASURED["4.9"].rows[-1].stated["conv"]
    assert cells[1:3] == ["0.100 / 0.200", "0.20"]
    assert cells[3] == f"{stated['save']:.3f} / {stated['save_max']:.3f}"
    assert cells[4] == f"{stated['save'] / 0.033:.2f}"
    assert cells[5] == "0.300 / 0.400"


def test_what_cannot_be_compared_is_said():
    text = markdown(table("4.9"))
    assert "TensorFlow 2.10" in text
    assert "another machine" in text


def test_our_lossy_presets_beside_the_better_one_of_the_thesis():
    sizes = {
        PRESETS["vsol-0-fast"]: 800,
        PRESETS["vsol-0-slow"]: 400,
        PRESETS["frontier-0"]: 100,
    }
    text = markdown(table("4.26", sizes))
    assert "- frontier-0: 0.250 x the bytes of deltas of vsol-0-slow, accuracy" in text


def test_a_preset_of_the_thesis_that_saved_no_delta():
    sizes = {PRESETS["vsol-0-fast"]: 1, PRESETS["vsol-0-slow"]: 1, PRESETS["frontier-0"]: 3000}
    text = markdown(table("4.26", sizes))
    assert "- frontier-0: 1.5 kB of deltas, vsol-0-fast none, accuracy" in text
    assert "frontier lines: bytes of deltas beside" in text


def test_small_figures_keep_their_digits():
    lines = markdown(table("4.9")).splitlines()
    row = next(line for line in lines if line.startswith("| Difrs148f"))
    assert "0.0003" in row
    assert "+0.000" in row
    assert "-0.000" not in row


def low(networks):
    """Curves of two labels that depend on the settings."""
    curves = {}
    for role, (data, settings) in networks.items():
        recurrent = data.kind == "texts" or settings.model == "rows"
        rising = [0, 1, 1] if recurrent and settings.peak != "0.6" else [0, 0, 1]
        curves[role] = [rising, [0, 0, 1]]
    return curves


def curves(number, data, settings):
    """A part of a report, as the command puts it together."""
    cells = curve_settings(number, data, settings)
    first = {role: Experiment.of(*side, 0) for role, side in cells[0].items()}
    networks = {
        role: {name: one.parameters[name] for name in ("data", "model", "epochs", "batch_size")}
        | {"others_offline": one.plan.others_offline}
        for role, one in first.items()
    }
    lines = [curve_line(number, at, each, low(each)) for at, each in enumerate(cells)]
    title = CURVES[number]["title"]
    part = {"number": number, "title": title, "labels": [0, 1], "networks": networks}
    return part | {"lines": lines}


def test_curves_of_two_networks():
    cells = curve_settings("4.5", (TEXTS, IMAGES), Settings(epochs=3))
    assert len(cells) == 9
    (conv, first), (lstm, second) = cells[0].values()
    assert (conv.name, first.peak, first.seen, first.batches) == ("i", "0.4", "0.0001", 150)
    assert (lstm.name, second.peak, second.seen) == ("t", "0.4", "0.001")
    part = curves("4.5", (TEXTS, IMAGES), Settings(epochs=3))
    # of four pairs two differ by 1/3; none where the peak of the texts is 0.6
    differences = [line["difference"] for line in part["lines"][:3]]
    assert differences == pytest.approx([1 / 6, 1 / 6, 0])
    assert [line["stated"] for line in part["lines"][:3]] == [0.107, 0.115, 0.095]
    text = markdown({"number": "4.5", "parts": [part]})
    assert "conv peak" in text
    assert "0.167" in text


@pytest.mark.parametrize("number", ["4.3", "4.4", "4.5"])
@pytest.mark.parametrize("data", [(IMAGES, TEXTS), (IMAGES,)], ids=["both", "images"])
def test_a_table_varies_one_thing_and_names_the_rest(number, data):
    cells = curve_settings(number, data, Settings(epochs=3))
    varied = {"4.3": "batches", "4.4": "seen", "4.5": "peak"}[number]
    for role in ("conv", "lstm"):
        sides = [cell[role] for cell in cells]
        settings = [each for _, each in sides]
        plans = [Experiment.of(*side, 0).plan for side in sides]
        assert len({plan.batch_size for plan in plans}) == 1
        assert len({plan.others_offline for plan in plans}) == 1
        assert len({getattr(each, varied) for each in settings}) > 1
        for name in {"batches", "seen", "peak", "epochs", "seed"} - {varied}:
            assert len({getattr(each, name) for each in settings}) == 1
    part = curves(number, data, Settings(epochs=3))
    text = markdown({"number": number, "parts": [part]})
    size = part["networks"]["conv"]["batch_size"]
    assert (
        f"- Table {number}, all rows: labels 0, 1; conv on i, 3 epochs, batches of {size}" in text
    )
    second = "lstm on t" if len(data) == 2 else "rows on i"
    assert f"; {second}, 3 epochs, batches of" in text


def test_fewer_batches_are_shared_among_the_rows_in_proportion():
    cells = curve_settings("4.3", (IMAGES, TEXTS), Settings(batches=30))
    assert [cell["conv"][1].batches for cell in cells] == [20, 25, 30, 32]


def test_what_each_setting_is_good_for_beside_the_thesis():
    parts = [curves(number, (IMAGES, TEXTS), Settings()) for number in ("4.3", "4.4", "4.5")]
    text = markdown({"number": "4.6", "parts": parts})
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
        curve_settings("4.4", data, Settings())


def test_curves_choose_their_networks():
    with pytest.raises(WrongUsage, match=r"table 4\.4 has its two networks"):
        curve_settings("4.4", (IMAGES,), Settings(model="conv"))


def test_settings_of_table_43():
    part = curves("4.3", (IMAGES, TEXTS), Settings())
    assert [line["conv"]["batches"] for line in part["lines"]] == [100, 125, 150, 160]
    assert {line[role]["seen"] for line in part["lines"] for role in ("conv", "lstm")} == {"0"}


def kept(report):
    return {"schema": SCHEMA.format("drift"), **report}


def test_a_table_is_read_from_its_json(tmp_path):
    part = curves("4.3", (IMAGES,), Settings())
    rows = [{"stream": "a", "mean s": 0.5, "thesis mean s": 0.033}]
    for made in (
        table("4.26", experiments=(CONV, LSTM)),
        {"number": "4.3", "parts": [part]},
        {"number": "4.7", "rows": rows},
    ):
        file = tmp_path / "table.json"
        file.write_bytes(compact(kept(made)))
        assert markdown(read_report(file)) == markdown(made)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "other"}', '{"schema": "mvc.reproduce.drift/1"}']
)
def test_what_is_no_table(call, tmp_path, text):
    file = tmp_path / "table.json"
    with pytest.raises(UnknownPath):
        read_report(file)
    file.write_text(text)
    code, printed, error = call("table", file)
    assert (code, printed) == (BadModelFile.exit_code, "")
    assert "table.json is no report" in error


def test_a_picture_is_drawn_from_json(call, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "made.json"
    file.write_bytes(compact(kept(table("4.20"))))
    svg = tmp_path / "tables" / "made.svg"
    assert call("plot", file, "--out", tmp_path) == (0, f"{svg}\n", "")
    first = svg.read_bytes()
    assert b"Flors20r32r" in first
    call("plot", file, "--out", tmp_path)
    assert svg.read_bytes() == first
    file.write_bytes(compact(kept({"number": "4.7", "rows": []})))
    assert "holds a table that has no picture" in call("plot", file, "--out", tmp_path)[2]


def test_grid():
    assert grid(("a", "n"), [("long", "1"), ("b", "22")]) == (
        "| a    |  n |\n| ---- | -: |\n| long |  1 |\n| b    | 22 |"
    )


def test_pipes_in_a_grid():
    assert grid(("a",), [("xor | raw",)]).splitlines()[2] == "| xor \\| raw |"
