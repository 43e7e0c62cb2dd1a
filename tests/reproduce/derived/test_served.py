"""Ten models through a server: bit for bit, and as few bytes as each approach says."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from mvc.errors import CannotRetrain, MvcError, NotInstalled, UnknownPath
from reproduce.derived import serving
from reproduce.derived.approaches import APPROACHES
from reproduce.derived.architectures import ARCHITECTURES
from reproduce.derived.flow import BASES
from reproduce.derived.measure import Measured
from reproduce.derived.served import FIGURES, measure_served
from reproduce.derived.sites import Site
from tests.reproduce.derived.tiny import TINY

UPDATE = 4 * 65_000  # bytes of the last layer
ROOM = 32 << 10  # what a model may take on the wire beside its records
NODES = [name for name in BASES if name.startswith("U3")]


@pytest.fixture(autouse=True)
def _openssl() -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")


def test_an_update_takes_its_changed_tensors_on_the_wire(models, tmp_path):
    """Every model comes back from the server, or measuring raises DamagedData."""
    run = measure_served(models, APPROACHES["update"], tmp_path)
    assert list(run) == list(BASES)
    assert all(tuple(cell) == FIGURES for cell in run.values())
    for name in NODES:
        cell = run[name]
        assert (cell["changed"], cell["tensors"]) == (UPDATE, 2)
        assert UPDATE <= cell["stored"] <= cell["wire"] <= 1.02 * cell["stored"] + ROOM
        assert list(cell["save"]) == ["persist", "push"]
        assert list(cell["recover"])[:2] == ["clone", "load"]
    assert all(run[name]["wire"] == 0 for name in ("U1", "U2"))
    whole = run["U1"]["stored"]
    assert whole <= run["U1"]["deployed"] <= 1.02 * whole + ROOM
    assert run["U2"]["deployed"] > UPDATE
    assert run["U3.1.1"]["deployed"] == 0
    owned = (tmp_path / "node-1.token").stat().st_mode & 0o777
    assert owned == 0o600


@pytest.mark.long
def test_a_recipe_takes_less_than_32_kib_on_the_wire(models, tmp_path):
    """All but the first, which also brings the images and the code; these travel once."""
    run = measure_served(models, APPROACHES["provenance"], tmp_path)
    first, *others = (run[name] for name in NODES)
    assert all(cell["wire"] < ROOM for cell in others)
    assert ROOM < first["wire"] <= 1.02 * first["stored"] + ROOM
    assert all(run[name]["recover"]["retrain"] > 0 for name in NODES)


@pytest.mark.parametrize("approach", ["full", "deltas"])
@pytest.mark.long
def test_other_approaches(models, tmp_path, approach):
    run = measure_served(models, APPROACHES[approach], tmp_path)
    for name in NODES:
        assert run[name]["stored"] < run[name]["wire"] <= 1.02 * run[name]["stored"] + ROOM
    assert (run["U3.1.1"]["stored"] > UPDATE) is (approach == "full")


def test_the_command_prints_what_it_measured(call, tmp_path, monkeypatch):
    """Also from its results, without a server."""
    monkeypatch.setitem(ARCHITECTURES, "tiny", TINY)
    taken = []

    def measured(models, approach, folder, progress):
        taken.append(approach.name)
        cell = dict.fromkeys(FIGURES, 1000) | {"save": {"persist": 0.1, "push": 0.2}}
        cell |= {"recover": {"clone": 0.3, "load": 0.4}, "deploy": {}}
        return {name: dict(cell) for name in BASES}

    measuring = Measured(measured, FIGURES, "served-")
    monkeypatch.setattr("reproduce.derived.commands.Served.measured", measuring)
    arguments = ("derived", "--server", "--out", tmp_path, "--architectures", "tiny",
                 "--relations", "frozen", "--approaches", "full,update", "--batches", "1",
                 "--batch-size", "4", "--size", "32", "--threads", "1", "--no-plot")  # fmt: skip
    code, printed, error = call(*arguments)
    assert (code, error, taken) == (0, "", ["full", "update"])
    assert "Bytes stored, and on the wire:" in printed
    assert "| - push " in printed and "| - processor" not in printed
    assert call(*arguments)[1] == printed and len(taken) == 2
    file = tmp_path / "tables" / "derived-server.json"
    assert call("table", file)[1] == printed
    assert json.loads(file.read_text())["groups"][0]["lines"][0]["cells"]["U2"]["wire"] == 1000


def test_without_openssl_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with (
        pytest.raises(NotInstalled, match="made by the program openssl, which is not installed"),
        serving.serving(tmp_path / "served"),
    ):
        pass


def test_a_site_raises_what_it_raises_there_and_says_when_it_ends():
    with Site("node-7") as site:
        assert site(sum, [1, 2]) == 3
        with pytest.raises(MvcError, match="there is no folder") as raised:
            site(refuse)
        assert (raised.type, raised.value.hint) == (UnknownPath, "make it")
        with pytest.raises(CannotRetrain, match="node-7 has ended with exit code 3"):
            site(end)


def refuse() -> None:
    raise UnknownPath("there is no folder", hint="make it")


def end() -> None:
    os._exit(3)
