from __future__ import annotations

import sys

import pytest


@pytest.fixture
def history(mvc):
    for value in range(4):
        mvc.write(value)
        mvc(
            "commit", "model.safetensors", "-m", f"value {value}", "--metric", f"acc=0.{value}",
            "--date", f"2026-11-0{value + 1}T12:00Z", "--deploy", ("prod", "edge")[value % 2],
            "--at", f"2026-11-0{value + 1}T13:00Z",
        )  # fmt: skip
    return mvc


def test_report_replaces_its_own_page_and_another_file_only_if_told(history) -> None:
    assert history("report", "-o", "r.html").err.startswith("wrote r.html (")
    page = (history.folder / "r.html").read_text()
    assert page.startswith("<!doctype html>") and "value 3" in page
    history("report", "-o", "r.html")
    assert "r.html" not in history("status").out
    history("commit", ".", code=1)
    (history.folder / "r.html").write_text("<!doctype html><p>mine")
    assert "r.html" in history("status").out
    assert "r.html exists already" in history("report", "-o", "r.html", code=3).err
    found = history("report", "-o", "r.html", "-f", "--json").json
    assert found["bytes"] == (history.folder / "r.html").stat().st_size
    assert history("report", "-o", "-").out.startswith("<!doctype html>")
    history("report", "-o", "-", "--json", code=2)
    history("report")
    assert (history.folder / "report.html").exists()


def test_plot_in_a_terminal(history) -> None:
    lines = history(
        "report", "--text", "acc", "--bytes", "--distance", "--target", "prod"
    ).out.splitlines()
    assert lines[0].startswith("acc, highest 0.3, lowest 0, best ")
    assert [sum(line.count(mark) for line in lines[:7]) for mark in "*@"] == [3, 1]
    assert any(line.startswith("stored bytes, highest bar ") for line in lines)
    assert any(line.startswith("distance (L2), highest 1, lowest 1") for line in lines)
    assert [line[:5] for line in lines if "=" in line] == ["prod|"]
    assert lines[-1].split()[0] == "11-01" and " 2026-11-01 " in lines[-1]
    assert max(map(len, lines)) <= 80
    every = history("report", "--text").out
    assert every.startswith("acc, ") and "edge|" in every


def test_report_of_a_time_and_by_version(history) -> None:
    found = history("report", "--text", "--json", "--since", "2026-11-02", "--until", "2026-11-03")
    (curve,) = found.json["charts"][0]["curves"]
    assert [value for _, value in curve["points"]] == [0.1]
    found = history("report", "--text", "--json", "--by", "version")
    assert (found.json["low"], found.json["high"], found.json["by"]) == (1, 4, "version")
    history("report", "--by", "version", "--until", "2026-11-03")
    page = (history.folder / "report.html").read_text()
    assert "number of the version" in page and "2 outside of the chosen time" in page


def test_plot_as_a_picture(history, monkeypatch: pytest.MonkeyPatch) -> None:
    assert history("report", "acc", "-o", "p.svg").out == ""
    drawn = (history.folder / "p.svg").read_text()
    assert drawn.startswith("<svg ") and "prefers-color-scheme" in drawn
    history("report", "acc", "-o", "p.svg", code=3)
    history("report", "acc", "--bytes", "-o", "p.png", "-f")
    assert (history.folder / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "as .svg or .png" in history("report", "acc", "--svg", "-o", "p.gif", code=2).err
    assert "METRIC is for charts" in history("report", "acc", "-o", "p.html", code=2).err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    failed = history("report", "acc", "-o", "q.png", code=3)
    assert "a plot as .png needs matplotlib; .svg needs nothing" in failed.err
    assert "hint:" in failed.err


def test_plot_as_json_and_wrong_names(history) -> None:
    found = history("report", "--text", "acc", "--bytes", "--json").json
    assert [chart["title"] for chart in found["charts"]] == ["acc", "stored bytes", "live on"]
    (curve,) = found["charts"][0]["curves"]
    assert [value for _, value in curve["points"]] == [0.0, 0.1, 0.2, 0.3]
    assert found["charts"][0]["best"]["value"] == 0.3
    assert sorted(found["charts"][1]["kinds"]) == ["deltas", "full records", "manifests, headers"]
    spans = found["charts"][2]["spans"]["prod"]
    assert spans[0]["end_ns"] == spans[1]["start_ns"]
    assert "there is: acc" in history("report", "--text", "ac", code=3).err
    history("report", "--text", "acc", "--target", "nowhere", code=3)
