from __future__ import annotations

from itertools import combinations

import pytest

from tests.cli.program import run

AIMS = {
    "--interval": "2",
    "--max-recovery": "5",
    "--max-size": "1GB",
    "--add": "HEAD",
    "--remove": "HEAD",
    "--add-queried": "1",
    "--super-step": "2",
    "--drop-weights": "HEAD",
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


@pytest.mark.parametrize("aim", AIMS)
def test_a_curve_has_no_aim(mvc, aim: str) -> None:
    mvc.commit(1)
    for value in (AIMS[aim], "0"):
        said = mvc("repack", "--curve", aim, value, code=2).err
        assert "--curve changes nothing and goes with no other aim" in said
