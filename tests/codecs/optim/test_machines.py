"""The same bits on processors without vector instructions, and where subnormals are lost."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from mvc.codecs.optim.rules import RULES
from tests.codecs.optim.test_prediction import filled, prediction

FLUSHED = """
import tempfile, threading, torch, mvc
from mvc.codecs.floats import flushes
from tests.codecs.optim.test_machines import digest
from tests.repo.commit.test_runs import Training, check, predicted
torch.set_flush_denormal(True)
if not flushes():
    print("unknown")
else:
    training, folder = Training(), tempfile.mkdtemp()
    with mvc.Repository.init(folder) as repo:
        versions = training.commit(repo, 4)
        torch.set_flush_denormal(False)  # threads that mvc has begun stay as they are
        versions += training.commit(repo, 3)
        torch.set_flush_denormal(True)
        counts = [predicted(repo, version) > 0 for version in versions]
        check(folder, versions, training.states)
    print(digest(), counts[1:] == [True] * 6, flushes())
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


def test_a_thread_that_rounds_subnormal_numbers_predicts_the_same_bits() -> None:
    found = ran(FLUSHED)
    if found.stdout.startswith("unknown"):
        pytest.skip("this processor does not flush")
    assert found.stdout.split() == [digest(), "True", "True"], found.stderr
