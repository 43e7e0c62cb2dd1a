"""``rework``: measured once, printed and drawn again from its JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reproduce.rework.render import mean_of
from reproduce.rework.schemes import checkpoints
from reproduce.rework.training import Training
from reproduce.rework.workloads import WORKLOADS
from tests.reproduce.child import RESULTS
from tests.reproduce.rework.small import experiment


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch):
    for name in ("mlr", "mf"):
        monkeypatch.setitem(WORKLOADS, name, replace(WORKLOADS[name], window=(4, 8)))


def cells(printed, title):
    """The row of a table that begins with this."""
    return next(
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in printed.splitlines()
        if line.startswith(f"| {title} ")
    )


def test_run_then_table_and_plot(call, tmp_path):
    pytest.importorskip("matplotlib")
    schemes = ("lc:x=2,huffman", "scar:0.05", "full:3")
    arguments = ("rework", "run", *schemes, "--models", "mlr,mf", "--trials", "2", "--threads", "1",
                 "--out", tmp_path)  # fmt: skip
    code, printed, error = call(*arguments)
    assert (code, error) == (0, "")
    assert "## MLR on digits, sgd\n" in printed
    assert "## MF on synthetic, sgd\n" in printed
    assert "7,850 parameters, 1,797 samples, batches of 100, rate 0.1, loss over 1,797" in printed
    assert "; 2 trials, failures after iteration 4 to 8, blocks of 16." in printed
    assert cells(printed, "lc:x=2,huffman")[-1] == "0"
    made = json.loads((tmp_path / "tables" / "rework.json").read_text())
    assert made["schema"] == "mvc.reproduce.rework/1"
    assert [line["scheme"] for line in made["groups"][0]["lines"]] == list(schemes)
    assert all(len(line["fractional"]) == 2 for line in made["groups"][1]["lines"])
    assert (tmp_path / "tables" / "rework.png").read_bytes().startswith(b"\x89PNG")
    assert call(*arguments)[1] == printed
    file = tmp_path / "tables" / "rework.json"
    assert call("table", file)[1] == printed
    code, drawn, _ = call("plot", file, "--out", tmp_path)
    assert code == 0
    assert "MF on synthetic, sgd" in Path(drawn.strip()).read_text()


def test_sizes_and_buckets(call, tmp_path):
    common = ("--models", "mlr", "--threads", "1", "--no-plot", "--out", tmp_path)
    code, printed, error = call("rework", "sizes", *common)
    assert (code, error) == (0, "")
    made = json.loads((tmp_path / "tables" / "sizes.json").read_text())
    lines = made["groups"][0]["lines"]
    assert [line["x"] for line in lines] == [1, 2, 3]
    for line in lines:
        # x bits of 32 for each weight, and the values of the buckets
        stated = line["x"] / 32 + (2 ** line["x"] - 1) / 7850
        assert line["E+P"] == pytest.approx([stated, stated])
        assert line["E"][0] > line["E+P"][0] > line["entropy"][0]
        assert line["E+P+H"][0] > line["entropy"][0]
    assert "E 15.00 %, E+P 5.74 %, E+P+H 5.00 %" in cells(printed, "x=2")[-1]
    assert call("rework", "sizes", *common)[1] == printed

    code, printed, _ = call("rework", "buckets", *common)
    made = json.loads((tmp_path / "tables" / "buckets.json").read_text())
    lines = made["groups"][0]["lines"]
    assert [line["m"] for line in lines] == [10, 20, 30, 40, 50, 60]
    for line in lines:
        assert 0 < len(line["errors"]) == len(line["counts"]) <= 10
        assert max(line["errors"]) > 0
    assert cells(printed, "m=10")[1] == f"{lines[0]['errors'][0]:.2g}"


def test_sizes_are_those_of_the_checkpoints(call, tmp_path):
    common = ("--models", "mlr", "--threads", "1", "--no-plot", "--out", tmp_path)
    call("rework", "sizes", *common)
    made = json.loads((tmp_path / "tables" / "sizes.json").read_text())
    measured = experiment()
    training = Training(measured, 0)
    schemes = [checkpoints(f"lc:x={x},huffman", training.state, 16) for x in (1, 2, 3)]
    sizes = [[], [], []]
    for number in range(1, 9):
        training.step()
        for scheme, each in zip(schemes, sizes, strict=True):
            each.append(scheme.save(number, training.state) / (4 * 7850))
    found = [line["E+P+H"] for line in made["groups"][0]["lines"]]
    for line, each in zip(found, sizes, strict=True):
        assert line == pytest.approx([sum(each) / len(each), max(each)])


def test_the_case_study(call, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    arguments = ("rework", "overhead", "lc:x=3", "--epochs", "8", "--out", tmp_path)
    code, printed, error = call(*arguments)
    assert (code, error) == (0, "")
    row = cells(printed, "lc:x=3")
    assert row[1] == "8" and row[-1] == "1"
    made = json.loads((tmp_path / "tables" / "overhead.json").read_text())
    (line,) = made["groups"][0]["lines"]
    assert 0 < line["thread"] < line["all"]
    assert 0 < line["grown"] < 0.2 * made["groups"][0]["setting"]["state"]
    assert line["rework"] < 7
    assert not (tmp_path / "overhead").exists()


def test_the_page_states_what_the_published_files_hold(call):
    files = sorted(RESULTS.glob("rework*.json"))
    kinds = ("", "-adam", "-alexnet", "-buckets", "-momentum", "-overhead", "-sizes", "-uniform")
    assert sorted(file.stem for file in files) == [f"rework{kind}" for kind in kinds]
    printed = "".join(call("table", file)[1] for file in files)
    page = (RESULTS.parent / "rework/README.md").read_text()
    stated = re.findall(r"-?\d+\.\d\d \[[^]]+\]|\d+\.\d\d / \d+\.\d\d %", page)
    assert len(stated) > 100
    assert not [each for each in stated if each not in printed]


def test_errors(call, tmp_path):
    for arguments, said in (
        (("run", "--models", "vgg"), "there is no model vgg"),
        (("run", "--models", "mf", "--optimizers", "lion"), "there is no optimizer lion"),
        (("run", "topn:x", "--models", "mf"), "topn:x: the number must be between 0 and 1"),
        (("run", "--models", "mf", "--trials", "0"), "trials is 0"),
        (("run", "--models", ""), "name at least one model"),
        (("overhead", "--epochs", "3"), "epochs is 3: it must be at least 7"),
    ):
        code, printed, error = call("rework", *arguments, "--out", tmp_path)
        assert code and not printed
        assert error.startswith(f"mvc: {said}")
    (tmp_path / "other.json").write_text('{"schema": "mvc.reproduce.rework/1"}')
    assert "is no report" in call("table", tmp_path / "other.json")[2]


def test_an_interval_is_about_the_mean():
    found = mean_of([1.0, 2.0, 3.0, 4.0, 5.0] * 6)
    assert found.value == 3
    assert 2.4 < found.low < 2.6 and 3.4 < found.high < 3.6
    assert str(mean_of([2, 2])) == "2.00 [2.00, 2.00]"


def test_the_page_says_how_far_the_coders_are_from_the_entropy():
    page = (RESULTS.parent / "rework/README.md").read_text(encoding="utf-8")
    groups = json.loads((RESULTS / "rework-sizes.json").read_text(encoding="utf-8"))["groups"]
    for group, name in zip(groups, ("MLR", "MF", "LeNet-5"), strict=True):
        line = group["lines"][2]
        entropy, ans, huffman = (line[key][0] for key in ("entropy", "ans", "E+P+H"))
        row = f"| {name} | {entropy:.3%} | {ans:.3%} | {ans / entropy - 1:+.1%} | {huffman:.3%} |"
        assert f"{row} {huffman / entropy:.2f} |".replace("%", " %") in page
