"""The same bits on processors without vector instructions, and none where subnormals are lost."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from mvc.codecs.optim.rules import RULES
from tests.codecs.optim.test_prediction import filled, prediction

FLUSHED = """
import numpy as np, torch
from mvc.codecs.optim import Prediction, choose_predictions
from mvc.errors import MvcError
if not torch.set_flush_denormal(True):
    print("unknown")
else:
    ones = np.ones(8, "f4")
    try:
        Prediction("decay.1", "float32", (0.9,)).fill(ones.data.cast("B"), [], ones.data.cast("B"))
    except MvcError as error:
        print(error, choose_predictions(
            ["sgd"], [{"lr": 0.1, "momentum": 0.9, "dampening": 0.0}],
            {"momentum_buffer": ones}, {"momentum_buffer": ones},
        ))
"""


def digest() -> str:
    whole = hashlib.sha256()
    for rule in RULES:
        for dtype in ("float32", "float64"):
            whole.update(filled(prediction(rule, dtype), 2_003))
    return whole.hexdigest()


def ran(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )


OF_NUMPY = "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512_SKX"
"""Names of vector instructions in several versions of numpy; what one does not know it ignores."""


@pytest.mark.parametrize(
    "without", [OF_NUMPY, f"X86_V3 AVX2 FMA3 {OF_NUMPY}"], ids=["avx512", "all"]
)
def test_other_processors_predict_the_same_bits(without: str) -> None:
    code = "from tests.codecs.optim.test_machines import digest; print(digest())"
    other = ran(code, NPY_DISABLE_CPU_FEATURES=without)
    assert other.stdout.strip() == digest(), other.stderr


def test_a_thread_that_loses_subnormal_numbers_refuses() -> None:
    found = ran(FLUSHED)
    if found.stdout.startswith("unknown"):
        pytest.skip("this processor does not flush")
    assert "set_flush_denormal(False)" in found.stdout and found.stdout.rstrip().endswith("{}")
