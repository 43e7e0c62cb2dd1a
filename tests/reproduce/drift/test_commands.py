"""``drift``: every table by its command, errors as one line, nothing twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mvc.pipelines.table import PRESETS
from reproduce.drift.bounds import Bounds
from reproduce.drift.commands import NUMBERS, Drifts
from reproduce.drift.split import Settings
from tests.reproduce import child

TINY = ("--batches", "12", "--epochs", "1", "--offline", "0.1", "--threads", "1")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


def test_it_is_a_program():
    done = child.run("examples/reproduce", "drift", "--help")
    for command in ("split", "train", "run", "table", "accuracy", "delay", "times"):
        assert f"\n  {command} " in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_split(call, tmp_path):
    code, printed, _ = call("drift", "split", "--labels", "3", "--out", tmp_path)
    (split,) = json.loads((tmp_path / "tables" / "split.json").read_text())["splits"]
    assert code == 0
    assert (split["label"], split["drifting_online"], split["most_batches"]) == (3, 120, 87)
    assert sum(split["per_batch"]) == 120
    assert "drifting_online   120\n" in printed


def test_train(call, out):
    code, printed, _ = call("drift", "train", "--labels", "0", "--out", out, *TINY)
    assert code == 0
    titles, _, row = ([cell.strip() for cell in line.split("|")] for line in printed.splitlines())
    found = dict(zip(titles, row, strict=True))
    assert found["training"].startswith("small-digits-0-")
    # 1,797 digits, less a tenth that is trained with before, less 11 of the 12 batches of 8
    assert found["held out"] == str(1797 - 179 - 11 * 8)
    assert 0 < int(found["of the label"]) < 182
    for column in ("offline", "online"):  # a share of 1,530 samples, not of 8
        right = float(found[column]) * 1530
        assert abs(right - round(right)) < 0.1 and float(found[column]) * 8 % 1
    assert len(list((out / "streams").iterdir())) == 1


def test_a_lossless_table(call, out):
    pytest.importorskip("matplotlib")
    code, printed, _ = call("drift", "table", "4.9", "--labels", "0,1", "--out", out, *TINY)
    assert code == 0
    assert "# Table 4.9: reset points" in printed
    assert "Labels 0, 1; 1 epochs offline, then 12 batches of 8." in printed
    made = json.loads((out / "tables" / "4.9-small.json").read_text())
    rows = {line["name"]: line for line in made["lines"]}
    assert list(rows) == ["BL-GeneralCompr", "Difrs148f", "Difrs28f"]
    assert rows["Difrs148f"]["pipeline"] == "xor | zstd:1"
    assert rows["Difrs148f"]["stated"]["conv"]["ratio"] == 3.824
    cell = rows["Difrs148f"]["cells"]["conv"]
    assert (cell["accuracy"], cell["saved"]) == ([0, 0], [12, 12])
    assert rows["BL-GeneralCompr"]["cells"]["conv"]["ratio"] == [1, 1]
    assert (out / "tables" / "4.9-small.md").read_text() in printed
    assert call("table", out / "tables" / "4.9-small.json")[1] == printed
    assert (out / "tables" / "4.9-small.png").read_bytes().startswith(b"\x89PNG")


def test_a_lossy_table(call, out):
    arguments = ("drift", "table", "4.20", "--no-plot", "--labels", "0", "--out", out, *TINY)
    code, printed, _ = call(*arguments)
    assert code == 0
    made = json.loads((out / "tables" / "4.20-small.json").read_text())
    cells = {line["name"]: line["cells"]["conv"] for line in made["lines"]}
    ratios = [cells[f"Flors{bits}r32r"]["ratio"][0] for bits in (16, 20, 21, 22, 23)]
    assert ratios == sorted(ratios)
    assert ratios[0] > 1
    assert not (out / "tables" / "4.20-small.png").exists()
    assert call(*arguments)[1] == printed  # from the results, seconds included


def test_the_final_table(call, out):
    """Table 4.26: the thesis's rows, both baselines more, and every preset for deployed weights."""
    arguments = ("drift", "table", "4.26", "--no-plot", "--labels", "0", "--out", out, *TINY)
    code, printed, _ = call(*arguments)
    assert code == 0
    made = json.loads((out / "tables" / "4.26-small.json").read_text())
    lines = {line["name"]: line for line in made["lines"]}
    assert {name for name in PRESETS if name not in ("none", "lc")} < set(lines)
    for line in lines.values():
        (save,), (longest,) = (line["cells"]["conv"][name] for name in ("save", "save_max"))
        assert 0 < save <= longest
    assert "| frontier-1-slow" in printed
    assert "| configuration " in printed
    assert "x learning" in printed


def test_pipelines_of_ones_own(call, out):
    code, printed, _ = call(
        "drift", "run", "vsol-0-slow", "frontier-0", "xor | raw", "--interval", "5", "--no-plot",
        "--labels", "0", "--out", out, *TINY,
    )  # fmt: skip
    assert code == 0
    assert "- vsol-0-slow: `xor | lsb:20 | dsed:0 | planes:all | zstd:1`" in printed
    assert "x the bytes of deltas of vsol-0-slow" in printed
    made = json.loads((out / "tables" / "own-small.json").read_text())
    assert [line["interval"] for line in made["lines"]] == [1, 5, 5, 5]


def test_several_intervals(call, out):
    """Figure 4.5: the farther apart reset points are, the fewer bytes."""
    pytest.importorskip("matplotlib")
    code, printed, _ = call(
        "drift", "run", "xor | zstd:1", "--interval", "2,4,28", "--labels", "0", "--out", out, *TINY
    )
    assert code == 0
    made = json.loads((out / "tables" / "intervals-small.json").read_text())
    lines = {line["interval"]: line for line in made["lines"]}
    assert list(lines) == [1, 2, 4, 28]
    full = [line["cells"]["conv"]["full_bytes"][0] for line in lines.values()]
    assert full == sorted(full, reverse=True)
    assert lines[28]["stated"]["conv"]["ratio"] == 3.487
    assert "| xor \\| zstd:1, R=28 " in printed
    assert (out / "tables" / "intervals-small.png").read_bytes().startswith(b"\x89PNG")


def test_pipelines_that_go_by_the_data(call, out):
    pytest.importorskip("river")
    code, printed, _ = call(
        "drift", "run", "drift:adwin | xor | zstd:1", "--no-plot", "--labels", "0", "--out", out,
        *TINY,
    )  # fmt: skip
    assert code == 0
    assert "| drift:adwin \\| xor \\| zstd:1 |" in printed
    made = json.loads((out / "tables" / "own-small.json").read_text())
    assert 1 <= made["lines"][1]["cells"]["conv"]["saved"][0] < 12
    assert not list((out / "results").rglob("*.repository"))


def test_curves_of_the_digits(call, out):
    """Tables 4.3 to 4.6 on what ships: the same streams serve several tables."""
    arguments = ("--labels", "0", "--out", out, *TINY)
    code, printed, _ = call("drift", "table", "4.6", *arguments)
    assert code == 0
    assert "| share of the label in the offline data |" in printed
    assert "- Table 4.3, all rows: labels 0; small on digits, 1 epochs, batches of 8, " in printed
    assert "; rows on digits, 1 epochs, batches of 8, " in printed
    code, printed, _ = call("drift", "table", "4.4", *arguments)
    assert code == 0
    assert "| small batches | small seen | rows batches | rows seen |" in printed
    assert call("table", out / "tables" / "4.4.json")[1] == printed


@pytest.mark.parametrize("name", ["4.6", "mnist-4.26", "texts-4.26"])
def test_published_tables_are_what_their_results_say(call, name):
    """results/ has the figures: whoever has them can print the page's tables."""
    code, printed, _ = call("table", child.RESULTS / f"drift-{name}.json")
    assert code == 0
    page = (child.RESULTS.parent / "drift/README.md").read_text()
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) >= 5
    assert not [row for row in rows if row not in page]


def test_the_published_picture_shows_the_published_results(call, out):
    pytest.importorskip("matplotlib")
    code, printed, _ = call("plot", child.RESULTS / "drift-mnist-4.26.json", "--out", out)
    assert code == 0
    images = child.RESULTS.parent / "images"
    drawn, published = (
        set(re.findall(r"<!-- (.*) -->|>([^<>]+)</text>", file.read_text()))
        for file in (Path(printed.strip()), images / "drift-mnist-4.26.svg")
    )
    assert drawn == published
    assert ("", "25  frontier-0.1") in drawn


def test_accuracy(call, out):
    pytest.importorskip("matplotlib")
    code, printed, _ = call("drift", "accuracy", "--labels", "0", "--out", out, *TINY)
    assert code == 0
    assert "| small-digits-0-" in printed
    assert (out / "tables" / "drift.png").read_bytes().startswith(b"\x89PNG")


def test_learning_time(call, out):
    code, printed, _ = call("drift", "table", "4.7", "--labels", "0", "--out", out, *TINY)
    assert code == 0
    assert "0.033" in printed
    (row,) = json.loads((out / "tables" / "4.7.json").read_text())["rows"]
    assert (row["thesis mean s"], row["thesis longest s"]) == (0.033, 0.074)


def test_times(call, out):
    """Each preset beside learning; measured once, scored never."""
    arguments = ("times", "vsol-0-fast", "vsol-1-slow", "--labels", "0", "--out", out, *TINY)
    code, printed, _ = call("drift", *arguments)
    assert code == 0
    file = out / "tables" / "times-digits.json"
    fast, slow = json.loads(file.read_text())["times"]
    assert (fast["pipeline"], fast["storing"]["saved"]) == ("vsol-0-fast", 12)
    assert slow["storing"]["saved"] < 12
    assert fast["learning"] == slow["learning"]
    seconds = [fast["learning"]["learn"], slow["storing"]["save"], slow["storing"]["load"]]
    for mean, longest in seconds:
        assert 0 < mean <= longest
    assert fast["storing"]["others"] >= 0
    assert fast["stated"] == {"ratio": 29.944, "accuracy": -0.02, "save": 0.028, "save_max": 0.046,
                              "load": 0.931, "learn": [0.033, 0.074]}  # fmt: skip
    assert "| 0.028 / 0.046 |       0.85 |" in printed
    assert call("drift", *arguments)[1] == call("table", file)[1] == printed


def test_numbers():
    assert tuple(f"4.{n}" for n in range(3, 27)) == NUMBERS


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("table", "4.2"), 2, "there is no table 4.2: it must be from 4.3 to 4.26"),
        (("table", "4.3", "--model", "small"), 2, "table 4.3 has its two networks"),
        (("table", "4.6", "--model", "small"), 2, "table 4.3 has its two networks"),
        (("split", "--labels", "a"), 2, "labels is 'a'"),
        (("split", "--labels", "12"), 2, "label is 12: it must be from 0 to 9"),
        (("split", "--peak", "2"), 2, "peak is 2: it must be from 0 to 1"),
        (("split", "--model", "conv2"), 2, "there is no model conv2"),
        (("split", "--data", "nowhere"), 3, "there is no nowhere"),
        (("run", "zip:9"), 3, "zip"),
        (("run", "vsol", "--interval", "0"), 2, "interval is 0: it must be at least 1"),
        (("run",), 2, "missing argument"),
        (("times", "zip:9"), 3, "zip"),
        (("train", "--threads", "0"), 2, "0 is not in the range"),
        (("train", "--threads", "9999999"), 2, "9999999 is not in the range"),
        (("train", "--seed", "-5"), 2, "seed is -5: it must be from 0 to 4294967295"),
        (("train", "--seed", "9" * 20), 2, f"seed is {'9' * 20}: it must be from 0 to"),
        (("split", "--seed", "-5"), 2, "seed is -5: it must be from 0 to 4294967295"),
        (("split", "--labels", ""), 2, "labels must be named, each once"),
        (("split", "--labels", "0,0"), 2, "labels must be named, each once"),
        (("split", "--model", "conv"), 2, "the model conv takes images of 28 x 28, not 8 x 8"),
        (("split", "--batches", "5000"), 2, "hint: take fewer batches or a lower peak"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_line(call, tmp_path, arguments, code, said):
    command, *rest = arguments
    extra = ("--out", tmp_path, *(() if command == "split" else TINY))
    ended, printed, error = call("drift", command, *extra, *rest)
    assert (ended, printed) == (code, "")
    assert said in error
    first, *hints = error.splitlines()
    assert first.startswith("mvc: ")
    assert [line[:6] for line in hints] in ([], ["hint: "])
    assert not (tmp_path / "streams").exists()


def test_interrupted(call, monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduce.drift.commands.record", interrupt)
    code, _, error = call("drift", "train", "--out", tmp_path)
    assert code == 130
    assert error.lstrip() == "mvc: interrupted\nhint: call it again to go on\n"


@pytest.mark.parametrize("command", ["table", "plot"])
def test_a_file_that_is_not_there(call, command):
    assert "there is no nowhere.json" in call(command, "nowhere.json")[2]
    assert "missing argument 'FILE'" in call(command)[2]


def test_bounds(call, out):
    names = ("frontier-1", "frontier-1-guarded", "vsol-1-fast", "vsol-1-fast+guard")
    shown = ("--labels", "0", "--seeds", "2", "--out", out, *TINY)
    code, printed, _ = call("drift", "bounds", *names, *shown)
    assert code == 0
    assert "small on digits" in printed
    made = json.loads((out / "tables" / "bounds-digits.json").read_text())
    (table,) = made["bounds"]
    lines = {line["name"]: line for line in table["lines"]}
    assert list(lines) == list(names)
    broken = any(lines["vsol-1-fast"][m]["broken"] for m in ("next", "target", "worst"))
    assert broken or lines["vsol-1-fast"]["of_vsol"] >= 1
    for line in lines.values():
        assert (line["bound"], line["trainings"], line["saved"]) == (0.01, 1, 12)
        for measure in ("next", "target", "worst"):
            found = line[measure]
            assert found["twice"] <= found["broken"] <= 1 - found["kept"]
            assert found["kept"] == (found["drop"] <= 0.01)
        assert line["worst"]["drop"] >= line["next"]["drop"]
        assert line["at_once"] in (0, 1)
    (training,) = made["trainings of the bounds"]
    assert training["presets"][3]["pipeline"].count("guard:0.01") == 1


@pytest.mark.parametrize(("drop", "at_once"), [(0.0142, 0), (0.0144, 1)])
def test_the_worst_of_ten_labels_has_an_interval_for_all_at_once(drop, at_once):
    """2.807 in place of 1.960 standard errors."""
    labels = {str(label): [0.0, 0.01] for label in range(9)} | {"9": [drop, 0.01]}
    line = {"name": "frontier-0", "bound": 0.0, "saved": 1, "bytes": 1, "labels": labels}
    line |= {measure: [drop, 0.01] for measure in ("next", "target", "worst")}
    row = {"data": "d", "model": "m", "seed": 2, "label": 0, "presets": [line]}
    made = Bounds(Drifts(Settings()), presets=("frontier-0",)).report([row])
    (line,) = made["bounds"][0]["lines"]
    assert (line["worst"]["broken"], line["at_once"]) == (1, at_once)


def test_bounds_of_presets_without_one(call, out):
    code, _, error = call("drift", "bounds", "lossless", "--out", out, *TINY)
    assert code == 2
    assert "lossless is no preset with a bound" in error
