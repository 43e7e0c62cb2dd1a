"""``kernels.c`` under the address and undefined-behaviour sanitizers, with mutated buffers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mvc.codecs import words
from tests.counters import count
from tests.seeds import draw

PROJECT = Path(__file__).parents[2]
SOURCE = Path(words.__file__).with_name("kernels.c")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
COMPILER = shlex.split(sysconfig.get_config_var("CC") or "cc")


def runtime() -> str:
    """The sanitizers' library, which a program that is not compiled with them must load first."""
    done = subprocess.run(
        [*COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True
    )
    return str(Path(done.stdout.strip()).resolve())


def compiled(folder: Path, source: str) -> Path:
    """The kernels of this source with sanitizers; skips the test where that is not possible."""
    text, out = folder / "kernels.c", folder / "_kernels.so"
    text.write_text(source)
    include = f"-I{sysconfig.get_path('include')}"
    command = [*COMPILER, "-O1", "-g", "-shared", "-fPIC", *SANITIZERS, include, text, "-o", out]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"there is no compiler: {error}")
    if done.returncode:
        pytest.skip(f"the compiler has no sanitizers: {done.stderr.splitlines()[-1]}")
    return out


def run(library: Path, calls: int, mutants: int) -> subprocess.CompletedProcess[str]:
    seed = draw("sanitized kernels").getrandbits(32)
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime(),
        "PYTHONMALLOC": "malloc",  # or small buffers would share blocks
        # The interpreter frees nothing at its end. What asks for too much is a MemoryError: of the
        # second reader, which believes the sizes of frames; of mvc it would end the run.
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [sys.executable, "-m", "tests.codecs.sanitized", library, seed, calls, mutants]
    return subprocess.run(
        [*map(str, command)], cwd=PROJECT, env=environment, capture_output=True, text=True
    )


def sound(folder: Path, calls: int, mutants: int) -> None:
    done = run(compiled(folder, SOURCE.read_text()), calls, mutants)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    count("compiled loops under sanitizers", **counted)
    assert counted["calls"] == calls
    assert min(counted["done"], counted["refused"]) > calls / 10
    assert 0 < counted["read"] < counted["mutants"]


def test_a_sample_of_calls_is_sound(tmp_path: Path) -> None:
    sound(tmp_path, 2_000, 100)


@pytest.mark.long
def test_100000_calls_are_sound(tmp_path: Path) -> None:
    sound(tmp_path, 100_000, 3_000)


@pytest.mark.parametrize(
    ("right", "wrong", "sign"),
    [
        ("at < full && next + 16 <= count", "at < full", "overflow"),
        ("out.len != words.len ||", "", "overflow"),
        ("(T)(block[i] << folded)", "(T)(block[i] << 40 * folded)", "shift exponent"),
    ],
    ids=["a load that reaches too far", "a size that is not checked", "a shift that is undefined"],
)
def test_the_sanitizers_see(right: str, wrong: str, sign: str, tmp_path: Path) -> None:
    source = SOURCE.read_text()
    assert right in source
    done = run(compiled(tmp_path, source.replace(right, wrong)), 5_000, 0)
    assert done.returncode != 0
    assert sign in done.stderr
