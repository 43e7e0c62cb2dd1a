"""``derived``: measured once, printed and drawn again from its JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reproduce.derived.approaches import APPROACHES
from reproduce.derived.architectures import ARCHITECTURES
from reproduce.derived.flow import BASES, RELATIONS
from reproduce.derived.render import THESIS
from tests.reproduce.child import RESULTS
from tests.reproduce.derived.tiny import TINY


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "tiny", TINY)


SMALL = ("--architectures", "tiny", "--batches", "1", "--batch-size", "4", "--size", "32",
         "--threads", "1")  # fmt: skip


def test_run_then_table_and_plot(call, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ("derived", "run", "--out", tmp_path, "--relations", "fine-tuned", *SMALL)
    code, printed, error = call(*arguments)
    assert (code, error) == (0, "")
    assert "## Tiny, fine-tuned\n" in printed
    assert "From one U3 to the next 5 of 8 tensors change, 260,520 bytes." in printed
    assert re.search(r"\n\| - generate update +\| +\| +\d", printed)  # of U1 there is none
    made = json.loads((tmp_path / "tables" / "derived.json").read_text())
    assert made["schema"] == "mvc.reproduce.derived/1"
    lines = made["groups"][0]["lines"]
    assert [line["name"] for line in lines] == ["full", "by-value", "update", "deltas"]
    assert list(lines[0]["cells"]) == list(BASES)
    assert (tmp_path / "tables" / "derived.md").read_text() in printed
    assert (tmp_path / "tables" / "derived.png").read_bytes().startswith(b"\x89PNG")
    assert call(*arguments)[1] == printed  # from the results, seconds included
    file = tmp_path / "tables" / "derived.json"
    assert call("table", file)[1] == printed
    code, drawn, _ = call("plot", file, "--out", tmp_path)
    assert code == 0
    assert "Tiny, fine-tuned" in Path(drawn.strip()).read_text()


def test_medians_of_every_approach(call, tmp_path, monkeypatch):
    chosen = {name: APPROACHES[name] for name in ("update", "reset-points", "provenance")}
    monkeypatch.setattr("reproduce.derived.commands.APPROACHES", chosen)
    arguments = ("derived", "run", "--out", tmp_path, "--approaches", "all",
                 "--relations", "grafted", "--no-plot", *SMALL)  # fmt: skip
    code, printed, _ = call(*arguments, "--repeats", "3")
    assert code == 0
    assert "medians of 3 runs." in printed
    measured = [name for name, each in chosen.items() if f"\n| {each.title} " in printed]
    assert measured == ["update", "reset-points"]  # no training makes a grafted model
    results = {file.stem: json.loads(file.read_text())["runs"]
               for file in (tmp_path / "results").glob("tiny-grafted-*/*.json")}  # fmt: skip
    made = json.loads((tmp_path / "tables" / "derived.json").read_text())
    for line in made["groups"][0]["lines"]:
        loads = sorted(run["U2"]["recover"]["load"] for run in results[line["name"]])
        assert line["runs"] == len(loads) == 3
        assert line["cells"]["U2"]["recover"]["load"] == loads[1]
    assert not (tmp_path / "tables" / "derived.png").exists()


def test_help_names_every_choice(call):
    code, printed, _ = call("derived", "run", "--help")
    assert code == 0
    words = set(re.split(r"[\s,;]+", re.sub(r"-\s+", "-", printed).replace(".", "")))
    assert not ({*ARCHITECTURES} - {"tiny"} | {*RELATIONS} | {*APPROACHES}) - words


def test_architectures(call, tmp_path, monkeypatch):
    monkeypatch.delitem(ARCHITECTURES, "tiny")  # the thesis does not know it
    code, printed, _ = call("derived", "architectures", "--out", tmp_path)
    assert code == 0
    assert "| ResNet-152 (resnet152)    | 60,192,808 |  2,049,000 |     932 |" in printed


def test_the_thesis_says_what_an_update_saves():
    """96.5 %: the 95.6 % of its abstract and text is a digit swap."""
    full, update = (THESIS["storage"]["resnet152"]["fine-tuned"][each][2] for each in "BU")
    assert round(100 * (1 - update / full), 1) == 96.5
    full, update = (THESIS["storage"]["mobilenetv2"]["fine-tuned"][each][2] for each in "BU")
    assert round(100 * (1 - update / full), 1) == 63.7


@pytest.mark.parametrize(
    ("name", "rows", "bars"),
    [
        ("derived", 4 * 5, 11),
        ("derived-larger", 4 * 5, 11),
        ("derived-resnet152", 3 + 2, 11),
        ("derived-provenance", 2 + 2, 11),
        ("derived-server", 3 + 2, 14),
        ("derived-server-provenance", 1 + 2, 14),
    ],
)
def test_published_bytes_are_what_their_results_say(call, name, rows, bars):
    """results/ has the figures: whoever has them can print the page's tables."""
    code, printed, _ = call("table", RESULTS / f"{name}.json")
    assert code == 0
    page = (RESULTS.parent / "derived/README.md").read_text()
    stored = [line for line in printed.splitlines() if line.count("|") == bars]
    assert len(stored) >= rows
    assert not [line for line in stored if line not in page]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "--architectures", "vgg"), 2, "there is no architecture vgg"),
        (("run", "--relations", "extended"), 2, "there is no relation extended"),
        (("run", "--approaches", "zip"), 2, "there is no approach zip"),
        (("run", "--approaches", ","), 2, "name at least one architecture, one relation and one"),
        (
            ("run", "--approaches", "provenance", "--relations", "version,grafted"),
            2,
            "no training makes a grafted one",
        ),
        (("run", "--repeats", "0"), 2, "repeats is 0: it must be at least 1"),
        (("run", "--size", "16"), 2, "size is 16: it must be at least 32"),
        (("run", "--batch-size", "5000"), 2, "digits has 898 images for U2"),
        (("run", "--data", "nowhere"), 3, "there is no nowhere"),
        (("run", "--batches", "x"), 2, "'x' is not a valid integer"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_line(call, tmp_path, arguments, code, said):
    command, *rest = arguments
    ended, printed, error = call("derived", command, "--out", tmp_path, *rest)
    assert (ended, printed) == (code, "")
    assert said in error
    first, *hints = error.splitlines()
    assert first.startswith("mvc: ")
    assert [line[:6] for line in hints] in ([], ["hint: "])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"schema": "mvc.reproduce.derived/1"}'),
        '{"schema": "mvc.evaluation.other/1", "groups": [], "machine": ""}',
    ],
)
def test_a_file_that_is_no_report(call, tmp_path, text):
    file = tmp_path / "a.json"
    file.write_text(text)
    code, _, error = call("table", file)
    assert code != 0
    assert f"{file} is no report" in error


def test_what_determinism_costs(call, tmp_path, monkeypatch):
    monkeypatch.setitem(THESIS["epochs"], "tiny", [1.0, 2.0, 3.0])
    small = ("--architectures", "tiny", "--images", "8", "--batch-size", "4", "--size", "32")
    arguments = ("derived", "determinism", "--out", tmp_path, *small, "--pairs", "2", "--no-plot")
    code, printed, error = call(*arguments)
    assert (code, error) == (0, "")
    assert re.search(r"\n\| Tiny    \| .* \|   2.00 \| +\d of 3", printed)
    made = json.loads((tmp_path / "tables" / "derived-determinism.json").read_text())
    (row,) = made["determinism"]
    assert all(row["epoch"][mode]["forward"] > 0 for mode in ("any", "deterministic"))
    assert call("table", tmp_path / "tables" / "derived-determinism.json")[1] == printed
    code, _, error = call(*arguments, "--images", "3")
    assert code == 2
    assert "an epoch has at least one batch" in error


def test_every_model_is_kept_with_its_code(call, tmp_path):
    arguments = ("--relations", "frozen", "--approaches", "full,full-code", *SMALL)
    code, _, error = call("derived", "run", "--out", tmp_path, *arguments, "--no-plot")
    assert (code, error) == (0, "")
    made = json.loads((tmp_path / "tables" / "derived.json").read_text())
    plain, coded = (line["cells"] for line in made["groups"][0]["lines"])
    for name in BASES:  # the source of tests.reproduce.derived.tiny and what it imports
        assert coded[name]["stored"] > plain[name]["stored"] + 1000
