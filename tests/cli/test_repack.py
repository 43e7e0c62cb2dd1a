from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from mvc.cli.verb import nbytes
from tests.cli.program import Mvc, run


@pytest.fixture
def series(mvc: Mvc) -> list[str]:
    """Nine versions; ids from the oldest on."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((60, 60)).astype(np.float32)
    ids = []
    for i in range(9):
        weight = weight + 1e-3 * random.standard_normal(weight.shape).astype(np.float32)
        ids.append(mvc.commit(i, w=weight))
    return ids


def test_plan_and_execution(mvc: Mvc, series: list[str]) -> None:
    out = mvc("repack", "-n", "--interval", 4).out
    assert "Plan: interval 4" in out
    assert f"add     2 reset points: {series[4][:10]} {series[8][:10]}" in out
    assert "planned" in out and "now" not in out
    assert mvc("stats", "--json").json["reset_points"] == 1
    out = mvc("repack", "--interval", 4).out
    assert "before" in out and "planned" in out and "now" in out
    assert mvc("stats", "--json").json["reset_points"] == 3
    assert "Nothing to do" in mvc("repack", "--interval", 4).out
    mvc("fsck", "--full")
    assert [c["id"] for c in mvc("log", "--json").json["commits"]] == series[::-1]


def test_json(mvc: Mvc, series: list[str]) -> None:
    found = mvc("repack", "--interval", 4, "--json").json
    assert found["schema"] == "mvc.repack/1"
    assert found["changed"] and not found["dry_run"]
    assert found["added"] == [series[4], series[8]]
    assert found["now"]["bytes"] == pytest.approx(found["planned"]["bytes"], rel=0.05)
    assert found["now"]["deltas_worst"] == found["planned"]["deltas_worst"] <= 2
    again = mvc("repack", "--interval", 4, "--json").json
    assert again["now"] is None and not again["changed"]


def test_reset_points_by_name(mvc: Mvc, series: list[str]) -> None:
    mvc("repack", "--add", "HEAD~3", "HEAD~1")
    assert mvc("stats", "--json").json["reset_points"] == 3
    found = mvc("repack", "--remove", "HEAD~3", "--remove", series[0], "--json").json
    assert found["removed"] == [series[0], series[5]]
    refused = mvc("repack", "--remove", "HEAD~1", code=3).err
    assert "no delta leads to it" in refused
    assert "hint:" in refused


def test_sizes_and_times(mvc: Mvc, series: list[str]) -> None:
    assert "the smallest needs about" in mvc("repack", "--max-size", "1kB", code=3).err
    mvc("repack", "--max-size", "1MiB")
    mvc("repack", "--max-recovery", "100")
    mvc("repack")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("7", 7), ("40MB", 40_000_000), ("40MiB", 40 << 20), ("1.5 gb", 1_500_000_000), ("2k", 2000)],
)
def test_written_sizes(text: str, wanted: int) -> None:
    assert nbytes(text) == wanted


def test_what_is_said_of_reset_points(mvc: Mvc, series: list[str]) -> None:
    out = mvc("repack", "--add", series[0], "-n").out.splitlines()
    assert out[1:3] == [f"kept    1 reset point: {series[0][:10]}", "Nothing to do"]
    out = mvc("repack", "--add", series[0], series[4]).out.splitlines()
    assert out[1] == f"kept    1 reset point: {series[0][:10]}"
    assert out[2] == f"add     1 reset point: {series[4][:10]}"
    mvc("forget", series[2], "-f")
    for option in ("--add", "--remove"):
        said = mvc("repack", option, series[2], code=3).err
        assert f"the state of version {series[2][:10]} was forgotten on 20" in said


def test_quiet(mvc: Mvc, series: list[str]) -> None:
    assert mvc("repack", "-q", "--interval", 3).out == ""
    assert mvc("stats", "--json").json["reset_points"] == 3
    assert "Plan: interval 2" in mvc("repack", "-q", "-n", "--interval", 2).out


# -- aims --------------------------------------------------------------------------------


AIMS = {
    "--interval": "2",
    "--max-recovery": "5",
    "--max-size": "1GB",
    "--add": "HEAD",
    "--remove": "HEAD",
    "--add-queried": "1",
}
NOTHING = ("0", "0.0", "", "False")


def test_two_aims_are_refused(mvc) -> None:
    mvc.commit(1)
    for first, second in combinations(AIMS, 2):
        said = mvc("repack", first, AIMS[first], second, AIMS[second], code=2).err
        assert f"{first[2:]} and {second[2:]} exclude each other" in said


@pytest.mark.parametrize("value", NOTHING, ids=repr)
def test_nothing_is_no_aim(mvc, capsys, value: str) -> None:
    mvc.commit(1)
    before = mvc("undo", "--list", "--json").out
    for aim in AIMS:
        assert run(["repack", aim, value]) in {2, 3}, aim
        said = capsys.readouterr().err.splitlines()
        assert said[0].startswith("mvc: ") and len(said) <= 2, (aim, said)
    assert mvc("undo", "--list", "--json").out == before
