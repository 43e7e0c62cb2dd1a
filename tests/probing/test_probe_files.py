"""Runs saved on one machine and compared on another; files that nobody should trust."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import mvc
from mvc import limits
from mvc.errors import IoFailed, WrongUsage
from tests.probing.test_probe import Mlp, X, rows, seeded

__all__ = ["seeded"]


class Threaded(nn.Module):
    """Its bits depend on the number of threads, as those of a split sum do."""

    def forward(self, x):
        return x + 1e-6 * torch.get_num_threads()


def mlp(between: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(4)
    return Mlp(between or nn.ReLU())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def edit(file: Path, change) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("training", [True, False])
def test_a_saved_run_agrees_with_one_of_the_same_model(file: Path, training: bool) -> None:
    saved = mvc.probe(mlp(), X, training=training)
    saved.save(file)
    found = mvc.probe(mlp(), X, training=training, against=file)
    assert found.same and found.first == saved.second
    assert [row.cells() for row in found.rows] == [row.cells() for row in saved.rows]
    assert mvc.probe(mlp(), X, training=training, against=str(file)).same
    with pytest.raises(WrongUsage, match="mode"):
        mvc.probe(mlp(), X, training=not training, against=file)


@pytest.mark.parametrize("part", ["input", "output", "grad_input", "grad_output"])
def test_one_changed_hash_names_the_layer_and_the_direction(file: Path, part: str) -> None:
    mvc.probe(mlp(), X).save(file)
    edit(file, lambda run: run["calls"][1][part][0].__setitem__(3, "ab" * 32))
    found = mvc.probe(mlp(), X, against=file)
    first = found.difference
    assert (first.call.layer, first.part) == ("between", part)
    assert first.direction == ("backward" if part.startswith("grad") else "forward")
    states = {p: getattr(rows(found)["between"], p) for p in ("input", "output", "grad_input")}
    assert states == {p: "differs" if p == part else "same" for p in states}
    assert [cause.kind for cause in found.causes] == ["unknown"]


def test_changed_weights_gradients_and_results_are_named(file: Path) -> None:
    mvc.probe(mlp(), X).save(file)
    original = file.read_text()
    for index, part in enumerate(("weights", "gradient", "step")):
        edit(file, lambda run, i=index: run["weights"]["last.bias"].__setitem__(i, "ab" * 32))
        found = mvc.probe(mlp(), X, against=file)
        assert (found.difference.part, found.difference.name) == (part, "last.bias")
        file.write_text(original)
    for key, part in (("output", "model output"), ("loss", "loss"), ("inputs", "inputs")):
        edit(file, lambda run, k=key: run[k][0].__setitem__(3, "ab" * 32))
        found = mvc.probe(mlp(), X, against=file)
        assert found.difference.part == part
        file.write_text(original)


def test_thread_counts_seeds_and_kernels_of_the_other_machine(file: Path) -> None:
    mvc.probe(mlp(Threaded()), X, threads=2).save(file)
    found = mvc.probe(mlp(Threaded()), X, threads=1, against=file)
    assert found.difference.call.layer == "between"
    assert [cause.kind for cause in found.causes] == ["threads"]
    assert str(found.causes[0]) == "the number of threads: 2 there, 1 here"
    assert mvc.probe(mlp(Threaded()), X, threads=2, against=file).same

    mvc.probe(mlp(nn.Dropout()), X, seed=5).save(file)
    for seed in (6, None):
        found = mvc.probe(mlp(nn.Dropout()), X, seed=seed, against=file)
        assert [cause.kind for cause in found.causes] == ["seed"]
    both = mvc.probe(mlp(nn.Sequential(nn.Dropout(), Threaded())), X, seed=5, threads=2)
    found = mvc.probe(mlp(nn.Sequential(nn.Dropout(), Threaded())), X, against=both)
    assert [cause.kind for cause in found.causes] == ["seed", "threads"]

    class Kernel(nn.Module):
        def forward(self, x):
            return x + 1e-3 * torch.are_deterministic_algorithms_enabled()

    mvc.probe(mlp(Kernel()), X, deterministic=True).save(file)
    found = mvc.probe(mlp(Kernel()), X, against=file)
    assert [cause.kind for cause in found.causes] == ["kernel"]


def test_a_file_cannot_start_a_thousand_threads(file: Path, monkeypatch) -> None:
    mvc.probe(mlp(), X).save(file)

    def many(run) -> None:
        run["conditions"]["threads"] = 1000
        run["calls"][0]["output"][0][3] = "ab" * 32

    edit(file, many)
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    found = mvc.probe(mlp(), X, against=file)
    assert [cause.kind for cause in found.causes] == ["environment"]
    assert "threads: 1000 there, 1 here" in str(found.causes[0]) and 1000 not in asked


def test_a_run_without_a_seed_is_found_to_be_random_here(file: Path) -> None:
    mvc.probe(mlp(nn.Dropout()), X).save(file)
    found = mvc.probe(mlp(nn.Dropout()), X, against=file)
    assert [cause.kind for cause in found.causes] == ["randomness"]


def test_weights_inputs_and_environment_of_the_other_machine(file: Path) -> None:
    mvc.probe(mlp(), X).save(file)
    other = mlp()
    with torch.no_grad():
        other.last.bias += 1
    found = mvc.probe(other, X, against=file)
    assert [str(c) for c in found.causes] == ["the weights differ before the run: last.bias"]
    assert found.difference.part == "output"
    found = mvc.probe(mlp(), X + 1, against=file)
    assert [cause.kind for cause in found.causes] == ["inputs"]

    def older(run) -> None:
        run["environment"]["torch"] = "1.7.1"
        run["calls"][0]["output"][0][3] = "ab" * 32

    edit(file, older)
    found = mvc.probe(mlp(), X, against=file)
    assert [cause.kind for cause in found.causes] == ["environment"]
    assert "torch: 1.7.1 there" in str(found.causes[0])


def test_other_architectures_are_compared(file: Path) -> None:
    mvc.probe(mlp(nn.Sequential(nn.ReLU(), nn.Tanh())), X).save(file)
    found = mvc.probe(mlp(nn.Sequential(nn.ReLU())), X, against=file)
    assert found.difference.part == "calls"
    assert rows(found)["between.1"].input == "one run only"


def test_selected_layers_bring_their_tensors(file: Path) -> None:
    saved = mvc.probe(mlp(Threaded()), X, threads=2, only=["between"])
    saved.save(file)
    beside = Path(f"{file}.safetensors")
    assert set(load_file(beside)) == {id_.hex() for id_ in saved.second.tensors}
    found = mvc.probe(mlp(Threaded()), X, threads=1, against=file)
    assert [row.layer for row in found.rows] == ["between"]
    assert rows(found)["between"].distances["output"].max_abs == pytest.approx(1e-6, rel=0.2)
    with pytest.raises(WrongUsage, match="has only the layers between"):
        mvc.probe(mlp(Threaded()), X, against=file, only=["first"])
    whole = mvc.probe(mlp(), X)
    assert [r.layer for r in mvc.probe(mlp(), X, against=whole, only=["last"]).rows] == ["last"]

    tensors = {name: tensor + 1 for name, tensor in load_file(beside).items()}
    save_file(tensors, beside)
    with pytest.raises(WrongUsage, match="does not match its hash"):
        mvc.probe(mlp(Threaded()), X, against=file)
    beside.write_bytes(b"\xff" * 64)
    with pytest.raises(WrongUsage, match="safetensors file is damaged"):
        mvc.probe(mlp(Threaded()), X, against=file)
    beside.unlink()
    assert rows(mvc.probe(mlp(Threaded()), X, threads=1, against=file))["between"].distances == {}


def _set(*keys, value):
    def change(run) -> None:
        for key in keys[:-1]:
            run = run[key]
        run[keys[-1]] = value

    return change


HOSTILE = {
    "schema": _set("schema", value="mvc.probe-summary/2"),
    "training": _set("training", value=1),
    "no calls": _set("calls", value=None),
    "calls are an object": _set("calls", value={}),
    "call is a number": _set("calls", 0, value=3),
    "call twice": lambda run: run["calls"].append(run["calls"][0]),
    "long name": _set("calls", 0, "layer", value="x" * 2000),
    "name is a list": _set("calls", 0, "type", value=["x"]),
    "ends before it begins": _set("calls", 0, "ended", value=0),
    "negative": _set("calls", 0, "forward", value=-1),
    "huge": _set("calls", 0, "forward", value=1 << 60),
    "a truth for a number": _set("calls", 0, "call", value=True),
    "a fraction": _set("calls", 0, "call", value=1.5),
    "hash": _set("calls", 0, "output", 0, 3, value="zz" * 32),
    "short hash": _set("calls", 0, "output", 0, 3, value="ab"),
    "dtype": _set("calls", 0, "output", 0, 1, value="float31"),
    "shape": _set("calls", 0, "output", 0, 2, value=[1 << 52] * 3),
    "dimensions": _set("calls", 0, "output", 0, 2, value=[1] * 65),
    "length": _set("calls", 0, "output", 0, 2, value=[-1]),
    "print": _set("calls", 0, "output", 0, value=["", "float32"]),
    "threads": _set("conditions", "threads", value=10**9),
    "no threads": _set("conditions", "threads", value=None),
    "seed": _set("conditions", "seed", value=-5),
    "seed is text": _set("conditions", "seed", value="5"),
    "environment": _set("environment", value={"torch": 2}),
    "only": _set("only", value=[3]),
    "weights": _set("weights", "last.bias", value=["ab"]),
    "weight without a hash": _set("weights", "last.bias", value=[None, None, None]),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_summaries_are_refused_with_one_line(file: Path, change) -> None:
    mvc.probe(mlp(), X).save(file)
    edit(file, change)
    with pytest.raises(WrongUsage) as caught:
        mvc.probe(mlp(), X, against=file)
    assert "is not a summary of 'mvc probe --save': " in caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 400 + len(str(file))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80\x04.", b"\xff\xfe", b"null", b"[]", b'{"schema": NaN}', b"[" * 200_000,
        b'{"a":' * 200_000, b'{"schema": ' + b"9" * 10_000 + b"}", b'{"schema": "\x1b[31m"}',
    ],
)  # fmt: skip
def test_damaged_files_are_refused_with_one_line(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    with pytest.raises(WrongUsage, match="is not a summary of") as caught:
        mvc.probe(mlp(), X, against=file)
    assert "\n" not in caught.value.message and "\x1b" not in caught.value.message


def test_every_cut_of_a_file_is_refused(file: Path) -> None:
    mvc.probe(mlp(), X).save(file)
    data = file.read_bytes()
    for end in range(0, len(data), 997):
        file.write_bytes(data[:end])
        with pytest.raises(WrongUsage, match="it is not JSON"):
            mvc.probe(mlp(), X, against=file)


def test_huge_and_missing_files_are_refused_unread(file: Path) -> None:
    with file.open("wb") as out:
        out.truncate(limits.MAX_PROBE + 1)
    with pytest.raises(IoFailed, match="longer than"):
        mvc.probe(mlp(), X, against=file)
    with pytest.raises(IoFailed):
        mvc.probe(mlp(), X, against=file.with_name("none.json"))
    with pytest.raises(IoFailed):
        mvc.probe(mlp(), X, against=file.parent)


def test_names_with_control_characters_are_escaped(file: Path) -> None:
    model = nn.Sequential()
    model.add_module("\x1b[31mred\n", nn.Dropout())
    model.add_module("last", nn.Linear(6, 2))
    found = mvc.probe(model, X)
    found.save(file)
    again = mvc.probe(model, X, against=file)
    for text in (repr(found), found.verdict, repr(again)):
        assert "\x1b" not in text
    assert "\n" not in found.verdict and "red" in found.verdict
