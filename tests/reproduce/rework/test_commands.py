"""``rework``: measured once, printed and drawn again from its JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reproduce.rework.render import mean_of
from reproduce.rework.schemes import checkpoints
from reproduce.rework.training import Experiment, Training
from reproduce.rework.workloads import WORKLOADS, Walk
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


def test_exponents_and_tables(call, tmp_path):
    common = ("--models", "mlr", "--threads", "1", "--out", tmp_path)
    code, printed, error = call("rework", "exponents", *common)
    assert (code, error) == (0, "")
    lines = json.loads((tmp_path / "tables" / "exponents.json").read_text())["groups"][0]["lines"]
    assert [line["iteration"] for line in lines] == [4, 8]
    for line in lines:
        assert line["exponents"] == sorted(line["exponents"], reverse=True)
        assert sum(line["kept"]) + line["zeros"] == 7850 >= sum(line["counts"])
        whole = [kept == count for kept, count in zip(line["kept"], line["counts"], strict=True)]
        assert whole[:3] == [True] * 3 and not any(line["kept"][4:])  # seven buckets
    assert "After iteration 8:" in printed and "kept by three bits" not in printed

    code, printed, error = call("rework", "tables", *common)
    lines = json.loads((tmp_path / "tables" / "tables.json").read_text())["groups"][0]["lines"]
    assert [line["x"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert line["rebuilt"] <= line["cached"] <= line["rebuilt"] * (1 + line["larger"])
        assert line["order"] <= line["table"] == 2 ** line["x"] / 2
        assert 0 < line["build"] < 0.5 <= line["reused"] < 1


def test_noise_of_a_walk(call, tmp_path, monkeypatch):
    monkeypatch.setitem(WORKLOADS, "walk", replace(WORKLOADS["walk"], window=(10, 20)))
    arguments = ("rework", "noise", "lc:x=2,huffman", "lc:x=8,huffman", "topn:0.05", "--models",
                 "walk", "--threads", "1", "--out", tmp_path)  # fmt: skip
    code, printed, error = call(*arguments)
    assert (code, error) == (0, "")
    assert "10,000 parameters, 4,000 samples, batches of 1, rate 0.02" in printed
    lines = json.loads((tmp_path / "tables" / "noise.json").read_text())["groups"][0]["lines"]
    two, eight, topn = (line["noise"] for line in lines)
    # An octave leaves at most a ninth of the squares of what was to be stored.
    assert 0 < eight < 1 / 9 < two < topn
    assert cells(printed, "lc:x=2,huffman")[2] == f"{two:.3g}"


def test_a_walk_has_the_noise_and_the_rate_that_it_states():
    workload = WORKLOADS["walk"]
    training = Training(Experiment(workload, Walk(), "sgd"), 1)
    rate = workload.rates["sgd"]
    for _ in range(3):
        before = training.state["weights"].astype(np.float64)
        training.step()
        noise = (training.state["weights"] - (1 - rate) * before) / rate
        assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1) < 0.05
        assert abs(np.corrcoef(noise, before)[0, 1]) < 0.05
    weights = training.state["weights"]
    assert training.loss() == pytest.approx(weights @ weights / 2, rel=0.02)


def test_a_failure_by_epochs(call, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ("rework", "failure", "lc:x=8", "--epochs", "7", "--out", tmp_path)
    code, printed, error = call(*arguments, "--threads", "1")
    assert (code, error) == (0, "")
    lines = json.loads((tmp_path / "tables" / "failure.json").read_text())["groups"][0]["lines"]
    (line,) = lines
    assert [len(line[name]) for name in ("undisturbed", "restored")] == [8, 2]
    assert line["restored"][0] == pytest.approx(line["undisturbed"][7], rel=0.05)
    assert line["restored"][1] < line["restored"][0]
    whole, full = cells(printed, "no failure"), cells(printed, "full checkpoints")
    assert full[8:10] == [whole[1], whole[2]]  # from the start again
    assert not (tmp_path / "failure").exists()
    file = tmp_path / "tables" / "failure.json"
    assert call("plot", file, "--out", tmp_path)[0] == 0


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
    kinds = (
        *("", "-adam", "-alexnet", "-buckets", "-buckets-fashion", "-equal", "-exponents"),
        *("-failure", "-fashion", "-momentum", "-noise", "-noise-fashion", "-overhead", "-sizes"),
        *("-fashion-alexnet", "-sizes-alexnet", "-sizes-fashion", "-tables", "-uniform"),
    )
    assert sorted(file.stem for file in files) == sorted(f"rework{kind}" for kind in kinds)
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
        (("noise", "scar:2", "--models", "walk"), "scar:2: the number must be between 0 and 1"),
        (("failure", "--epochs", "6"), "epochs is 6: it must be at least 7"),
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
