from __future__ import annotations

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
    assert "r.html already exists" in history("report", "-o", "r.html", code=3).err
    found = history("report", "-o", "r.html", "-f", "--json").json
    assert found["bytes"] == (history.folder / "r.html").stat().st_size
    assert history("report", "-o", "-").out.startswith("<!doctype html>")
    history("report", "-o", "-", "--json", code=2)
    history("report")
    assert (history.folder / "report.html").exists()


def test_report_of_a_time_and_by_version(history) -> None:
    history("report", "--since", "2026-11-02", "--until", "2026-11-03")
    page = (history.folder / "report.html").read_text()
    assert "3 outside the chosen period" in page
    history("report", "--by", "version", "--until", "2026-11-03")
    page = (history.folder / "report.html").read_text()
    assert "version number" in page and "2 outside the chosen period" in page
    history("report", "--by", "weight", code=2)


def test_the_storage_curve_is_on_the_page(history) -> None:
    history("report")
    page = (history.folder / "report.html").read_text()
    assert 'aria-label="Recovery time against bytes"' in page
    assert "Each point is a layout that" in page and "bytes of all packs" in page
