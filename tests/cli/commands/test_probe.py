from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from mvc.api.repository import Repository

NET = """
import torch
from torch import nn

print("noise on stdout")


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def inputs():
    return torch.ones(3, 4)


def target():
    return torch.tensor([0, 1, 1])


def loss(output, target):
    return nn.functional.cross_entropy(output, target)


def optimizer(parameters):
    return torch.optim.Adam(parameters)


def both():
    return nn.Linear(4, 4), torch.ones(1, 4)


def broken():
    raise KeyError("no such thing\\nand more")


def leaving():
    raise SystemExit("bye")


def wrong_shape():
    return nn.Linear(5, 5)


def number():
    return 3


made = nn.Linear(4, 4)
"""


@pytest.fixture
def script(mvc, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    (mvc.folder / "net.py").write_text(NET)
    yield mvc
    torch.set_num_threads(threads)


def test_differs_and_agrees_with_a_seed(script) -> None:
    result = script("probe", "net.py", code=1)
    assert result.out.splitlines() == [
        "layer  type     fwd  bwd  inp      out      grad_inp  grad_out  grad_par",
        "0      Linear     0    2  same     same               differs   differs",
        "1      Dropout    1    1  same     differs  differs   differs",
        "2      Linear     2    0  differs  differs  differs   differs   differs",
        "differs first in the forward pass: the output of 1 (Dropout, forward index 1)",
        "likely cause: random numbers without a seed: two runs with seed 0 agree at this point",
    ]
    assert "hint: seed all generators" in result.err and "noise on stdout" in result.err
    result = script("probe", "net.py", "--seed", 1)
    assert result.out.splitlines()[-1] == "same: 3 calls of layers, forward, backward, one step"
    result = script("probe", "net.py", "--eval")
    assert result.out.splitlines()[-1] == "same: 3 calls of layers, forward"
    assert "bwd" not in result.out


def test_a_model_without_inputs_is_told_both_ways_to_give_them(script) -> None:
    (script.folder / "bare.py").write_text("import torch\n\nmodel = torch.nn.Linear(4, 4)\n")
    refused = script("probe", "bare.py", code=2)
    assert "no inputs were given for the model" in refused.err
    assert "define inputs() in the model's file" in refused.err
    assert "--input 1x3x224x224" in refused.err
    script("probe", "bare.py", "--input", "1x4", "--eval")


def test_json(script) -> None:
    found = script("probe", "net.py", "--json", "--only", "1,2", code=1).json
    assert found["schema"] == "mvc.probe/1"
    assert (found["same"], found["training"]) == (False, True)
    assert found["first_difference"]["call"]["layer"] == "1"
    assert found["first_difference"]["direction"] == "forward"
    assert [cause["kind"] for cause in found["causes"]] == ["randomness"]
    assert [layer["layer"] for layer in found["layers"]] == ["1", "2"]
    assert found["layers"][0]["distances"]["output"]["max_abs"] > 0
    assert found["conditions"] == {"seed": None, "threads": 1, "deterministic": False}
    same = script("probe", "net.py", "--json", "--seed", 1, "--threads", 2, "--deterministic").json
    assert same["same"] and same["first_difference"] is None and same["causes"] == []
    assert same["conditions"] == {"seed": 1, "threads": 2, "deterministic": True}


def test_against_a_saved_run(script) -> None:
    result = script("probe", "net.py", "--seed", 1, "--save", "run.json")
    assert "wrote the run to run.json" in result.err
    assert json.loads((script.folder / "run.json").read_text())["conditions"]["seed"] == 1
    script("probe", "net.py", "--seed", 1, "--against", "run.json")
    other = script("probe", "net.py", "--seed", 2, "--against", "run.json", code=1)
    assert "likely cause: the weights differ before the run: 0.weight" in other.out
    script("probe", "net.py", "--seed", 1, "--save", "run.json", code=3)
    script("probe", "net.py", "--seed", 1, "--save", "run.json", "-f")
    refused = script("probe", "net.py", "--eval", "--against", "run.json", code=2)
    assert "the saved run is in training mode" in refused.err
    (script.folder / "run.json").write_text("{")
    refused = script("probe", "net.py", "--against", "run.json", code=2)
    assert refused.err.splitlines()[-2].startswith("mvc: run.json is not a summary of")


@pytest.mark.parametrize("name", ["both", "made"])
def test_names_functions_and_modules(script, name: str) -> None:
    script("probe", f"net.py:{name}", "--eval")


def test_a_random_input(script) -> None:
    found = script("probe", "net.py", "--input", "5x4", "--eval", "--json").json
    assert found["same"]


def test_weights_of_a_version(script) -> None:
    torch.manual_seed(8)
    model = torch.nn.Linear(4, 4)
    with Repository.open(script.folder) as repo:
        repo.commit(model.state_dict(), message="weights")
    # Made without a seed: only the version's weights can make two programs agree.
    script("probe", "net.py:both", "--rev", "HEAD", "--save", "run.json")
    script("probe", "net.py:both", "--rev", "HEAD", "--against", "run.json")
    script("probe", "net.py:both", "--against", "run.json", code=1)
    assert "does not fit" in script("probe", "net.py", "--rev", "HEAD", code=3).err
    script("probe", "net.py:both", "--rev", "nowhere", code=3)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["net.py:none"], 2, "net.py has no none"),
        (["net.py:broken"], 2, "net.py:broken failed: KeyError: 'no such thing"),
        (["net.py:leaving"], 2, "net.py:leaving failed: SystemExit: bye"),
        (["net.py:wrong_shape"], 2, "net.py:wrong_shape failed: RuntimeError: mat1 and mat2"),
        (["net.py:number"], 2, "the model is of type int"),
        (["none.py"], 3, "there is no file none.py"),
        (["no.such.package:model"], 3, "there is no file no.such.package"),
        (["net.py", "--input", "3xx"], 2, "'3xx' is not a shape; write 1x3x224x224"),
        (["net.py", "--seed", "-1"], 2, "--seed"),
        (["net.py", "--threads", "0"], 2, "--threads"),
        (["net.py", "--only", "none,7"], 2, "no layer that runs has the name none, 7"),
        ([], 2, "missing argument"),
    ],
)
def test_wrong_usage_is_one_line(script, arguments: list[str], code: int, message: str) -> None:
    result = script("probe", *arguments, code=code)
    assert message in result.err
    assert len([line for line in result.err.splitlines() if line.startswith("mvc:")]) == 1


def test_a_script_that_cannot_be_read_as_python(script) -> None:
    Path("bad.py").write_text("def model(:\n")
    assert "bad.py failed: SyntaxError" in script("probe", "bad.py", code=2).err
    Path("needs.py").write_text("import not_there_at_all\n")
    assert "ModuleNotFoundError" in script("probe", "needs.py", code=2).err


def test_a_script_finds_what_lies_beside_it(script) -> None:
    folder = script.folder / "deep"
    folder.mkdir()
    (folder / "probed_beside.py").write_text("from torch import nn\nmade = nn.Linear(4, 4)\n")
    (folder / "net.py").write_text(
        "import torch\nfrom probed_beside import made\ndef model(): return made, torch.ones(1, 4)\n"
    )
    script("probe", "deep/net.py")
    assert not list(folder.glob("*.json"))
