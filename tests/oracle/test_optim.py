"""The rules of docs/format.md, read from its tables, against those of mvc."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.codecs.optim import Prediction
from mvc.codecs.optim.rules import RULES
from tests.codecs.optim.test_prediction import bits, prediction
from tests.oracle import optim, reader
from tests.oracle.holding import check_steps
from tests.oracle.reader import Cursor
from tests.oracle.test_document import example
from tests.store.predicted import Run


def test_the_document_names_every_rule() -> None:
    named = {}
    for name, (arrays, numbers, _, said) in optim.rules().items():
        for suffix in {"decayed": ("", "f"), "signed": ("", "g")}.get(said, ("",)):
            named[name + suffix] = arrays, numbers, said == "signed"
    ours = {n: (r.arrays.split(), r.numbers.split(), r.signed) for n, r in RULES.items()}
    assert named == ours


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_the_document_predicts_the_same(rule: str, dtype: str) -> None:
    made = prediction(rule, dtype)
    arrays = [bits(i, 3_001, made.width).tobytes() + b"end" for i in range(1 + made.inputs)]
    signs = np.random.default_rng(3).integers(0, 2, 3_001, np.uint8) if made.signed else None
    assert (optim.signed(made.text), optim.width(made.text)) == (made.signed, made.width)
    out = bytearray(len(arrays[0]))
    views = [memoryview(a) for a in arrays]
    made.fill(views[0], views[1:], memoryview(out), signs)
    marked = None if signs is None else signs == 1
    assert out == optim.predict(made.text, arrays[0], arrays[1:], marked)


def test_the_example_of_the_document() -> None:
    coding = "optim:momentum.1:float32:0.5"
    base, other = (np.array(x, "<f4").tobytes() for x in ([2, 2, 2], [2, 0, -2]))
    width, delta = Cursor(example("payload-predicted")).single(
        12, "sub | zigzag | elide | planes | zstd:huff"
    )
    predicted = optim.predict(Prediction.parse(coding).text, base, [other])
    assert (
        reader.combine(predicted, delta, width, "sub", False)
        == np.array([1, 2, 3], "<f4").tobytes()
    )


@pytest.mark.parametrize("backwards", [False, True])
def test_a_run_in_a_repository(tmp_path: Path, backwards: bool):
    """Also where what predicts is published after what it predicts."""
    run = Run(tmp_path / "repo", steps=3)
    run.forger.publish(run.forger.record(run.full(0)))
    for version in (3, 2, 1) if backwards else (1, 2, 3):
        run.forger.publish(run.forger.record(run.step(version)[:: -1 if backwards else 1]))
    oracle = reader.Repository(run.finish() / ".mvc")
    for version in range(4):
        for member in "wmv":
            assert oracle.pieces[run.id(version, member), 0] == run.versions[version][member]
    assert check_steps(oracle) == 12


def test_graded_steps_of_a_repository(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    w, v = (rng.normal(0, s, (40, 50)).astype("f4") ** p for s, p in ((0.05, 1), (1e-2, 2)))
    group = {"lr": 1e-3, "alpha": 0.9, "eps": 1e-8, "centered": False, "momentum": 0, "params": [0]}
    with Repository.init(tmp_path) as repo:
        for step in range(4):
            state = {"step": np.float32(step), "square_avg": v}
            optimizer = {"state": {0: state}, "param_groups": [group]}
            repo.commit({"model": {"w": w}, "optimizer": optimizer}, message="a step")
            gradient = (rng.normal(0, 1e-3, w.shape) * (rng.random(w.shape) < 0.5)).astype("f4")
            v = np.float32(0.9) * v + (np.float32(0.1) * gradient) * gradient
            w = w - (np.float32(1e-3) * gradient) / (np.sqrt(v) + np.float32(1e-8))
    oracle = reader.Repository(tmp_path / ".mvc")
    assert check_steps(oracle) > 6
    edges = [edge for found in oracle.edges.values() for edge in found]
    assert any(member.coding.startswith("optim:root.1g") for _, _, member, _ in edges)
