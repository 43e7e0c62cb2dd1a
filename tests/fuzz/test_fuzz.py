"""T10: the corpus is replayed and mutated a little; the long suite is guided by coverage."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counters import count
from tests.fuzz.guided import MOST_MEMORY, checked
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import NAMES
from tests.hostile.bounded import ROOT, peak_memory
from tests.seeds import draw
from tests.variables import variable

CORPUS = Path(__file__).with_name("corpus")
FAST = 60  # mutated inputs a target in the fast suite
SECONDS = int(variable("MVC_FUZZ_SECONDS") or 180)


def test_every_target_is_named() -> None:
    files = {p.stem for p in Path(__file__).with_name("targets").glob("*.py")}
    assert files - {"__init__", "files"} == set(NAMES)
    assert {p.name for p in CORPUS.iterdir() if p.is_dir()} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus(name: str) -> None:
    """Sound seeds are taken; what once broke something, and neighbours of both, end cleanly."""
    target = importlib.import_module(f"tests.fuzz.targets.{name}")
    seeds = target.seeds()
    frozen = [p.read_bytes() for p in sorted((CORPUS / name).glob("*"))]
    rng = draw(name)
    memory = peak_memory() + MOST_MEMORY
    inputs = [*frozen, b"", *seeds]
    inputs += [mutate(rng.choice(seeds), rng.choice(seeds), rng) for _ in range(FAST)]
    for data in inputs:
        try:
            checked(target.run, data, memory)
        except BaseException:
            print(f"the input, in hex: {data[:4000].hex()}")
            raise
    count("fuzz, replay", inputs=len(inputs), broken=0)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_guided(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", name, str(SECONDS), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=SECONDS + 300,
        check=False,
    )
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    broken = {p.name: p.read_bytes()[:2000].hex() for p in tmp_path.glob("broken-*")}
    assert done.returncode == 0 and not broken, f"{text[-4000:]}\n{broken}"
    found = re.search(r"number_of_executed_units:\s*([0-9]+)", text)
    tried = int(found[1]) if found else int(done.stdout.split()[-1])
    count("fuzz, guided", inputs=tried, seconds=SECONDS, broken=0)


def test_the_rule_is_enforced() -> None:
    def broken(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        checked(broken, b"x")
    with pytest.raises(AssertionError, match="MiB"):
        checked(lambda data: None, b"", memory=1)
