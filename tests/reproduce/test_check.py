"""Pages agree with results; ``check`` finds what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduce.check import Claim, Stated, check
from tests.reproduce.conftest import Call

ROWS = """<!-- drift-mnist-4.26.json -->
| configuration | R | ratio |
|---|---|---|
| vsol | 148 | {} (3.681, 3.458, 3.663, 3.901) |
"""


def test_every_page_agrees_with_its_results() -> None:
    assert [str(each) for each in check()] == []


def problems(tmp_path: Path, text: str, *bound: Claim | Stated) -> list[str]:
    (tmp_path / "page.md").write_text(text)
    claims = [each for each in bound if isinstance(each, Claim)]
    stated = [each for each in bound if isinstance(each, Stated)]
    return [str(each) for each in check(claims, stated, ["page.md"], tmp_path)]


def test_a_row_is_one_that_the_file_prints(tmp_path: Path) -> None:
    assert problems(tmp_path, ROWS.format("3.676")) == []
    assert problems(tmp_path, ROWS.format("3.677")) == [
        "page.md:4: differs: | vsol | 148 | 3.677 (3.681, 3.458, 3.663, 3.901) |"
    ]
    assert problems(tmp_path, ROWS.replace("ratio", "ratios")) == [
        "page.md:2: not found: these columns in drift-mnist-4.26.json"
    ]
    assert problems(tmp_path, ROWS.replace("mnist-4.26", "nobody").format("1")) == [
        "page.md:2: not measured: drift-nobody.json"
    ]


IN = "<!-- in drift-mnist-4.26.json -->\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 127.80 MB, or 128 MB.", []),
        ("It takes 127.91 MB.", ["page.md:2: differs: 127.91"]),
        ("| all | |\n|---|--:|\n| 1.5 | 3.676 (3.681, 3.458) |", []),
        (
            "| all 9.5 | |\n|---|--:|\n| 1.5 | 3.676 (3.681, 4.172) |",
            ["page.md:4: differs: 3.676 (3.681, 4.172)"],
        ),
        ("It takes 128 MB.\n\n127.91 MB", ["page.md:4: no source: 127.91"]),
        ("\n128 MB.\n\n136.43 MB\n\n# Next\n\n127.91 MB", ["page.md:9: no source: 127.91"]),
    ],
)
def test_numbers_that_a_file_prints(tmp_path: Path, text: str, found: list[str]) -> None:
    assert [each.split(" in ")[0] for each in problems(tmp_path, IN + text)] == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 3.5 ms.", ["3.5"]),
        ("It takes 3 ms, 12 % of 1,234.", ["3", "12", "1,234"]),
        ("torch 2.13.0, section 4, `--rate 0.5`, [12 MB](a-1.5.md)", ["12"]),
        ("```\n3.5 ms\n```\n| 7.5 |\n|---|\n", ["7.5"]),
        ("<!-- not measured -->\n| 7.5 |\n|---|\n", []),
    ],
)
def test_figures_without_a_source(tmp_path: Path, text: str, found: list[str]) -> None:
    said = [each.partition("no source: ")[2].split(" in ")[0] for each in problems(tmp_path, text)]
    assert said == found


def test_a_claim_binds_the_numbers_of_a_phrase(tmp_path: Path) -> None:
    claim = Claim("page.md", "takes {} MB and {} s", lambda: [2.4499, 1234.4])
    assert problems(tmp_path, "It takes 2.4 MB\nand 1,234 s.", claim) == []
    assert problems(tmp_path, "It takes 2.5 MB and 1,234 s.", claim) == [
        "page.md:1: differs: 2.5 is 2.4499: takes {} MB and {} s"
    ]
    assert problems(tmp_path, "It takes little.", claim) == [
        "page.md:1: not found: takes {} MB and {} s"
    ]
    assert problems(tmp_path, "At most 16 MB.", Stated("page.md", "most 16 MB")) == []


def test_the_command_says_what_it_found(call: Call) -> None:
    code, out, _ = call("check")
    assert code in (0, 1)
    assert "problem" in out or "every figure" in out


def test_what_a_benchmark_prints_is_kept(call: Call, tmp_path: Path) -> None:
    code, _, error = call("benchmark", "bench_nothing", "--out", tmp_path)
    assert (code, "there is no benchmark bench_nothing" in error) == (3, True)
    code, out, _ = call("benchmark", "bench_files", "--out", tmp_path, "--", "--help")
    assert code == 0
    assert "python -m tests.benchmarks.bench_files --help" in out
    assert call("table", tmp_path / "tables" / "bench_files.json") == (0, out, "")


@pytest.mark.parametrize("name", ["", " ", "../house/x", "bench_lc/../bench_lc"])
def test_names_that_are_no_benchmarks(call: Call, tmp_path: Path, name: str) -> None:
    code, _, error = call("benchmark", name, "--out", tmp_path)
    assert (code, "there is no benchmark" in error) == (3, True)


def test_tables_of_files_that_hold_anything(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "hostile.json"
    for schema in (["x"], {"x": 1}, 1, None):
        file.write_text(json.dumps({"schema": schema}))
        code, _, error = call("table", file)
        assert (code, "is no report" in error) == (3, True)
    report = {
        "schema": "mvc.reproduce.benchmarks/1",
        "command": "a\x1b[31mb",
        "machine": "m",
        "printed": ["\x1b]0;x\x07", "\ud800", "a\tb"],
    }
    file.write_text(json.dumps(report))
    assert call("table", file) == (0, "`a?[31mb` (m)\n\n?]0;x?\n?\na\tb\n\n", "")
