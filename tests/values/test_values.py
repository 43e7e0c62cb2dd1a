"""What was acknowledged comes back, whatever the values: every line of stages on extremes.

A story is ten commits by one line, of two to five tensors that hold zeros, both ends of their
dtype's range, subnormals, infinities and NaNs with payloads, in one tensor, one commit and in
turn. Lossless versions have the bits that were committed, lossy ones those that the commit gave
back. The long form tells 2,500 stories in each of its four shards.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS, STAGES
from tests.counters import count
from tests.oracle.holding import held_against
from tests.seeds import draw
from tests.values.lines import LINES, drawn
from tests.values.stories import STEPS, Story

# A warning of numpy would be printed in somebody's training.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

_STORIES = 2500
_SHARDS = 4
_FSCK = 10  # one story of so many is checked by fsck, one of twice as many by the second reader
_MEMORY = Path("/dev/shm")  # a folder in memory: nothing here is about disks


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for one repository after the other, in memory where there is such a place."""
    if not _MEMORY.is_dir():
        yield tmp_path / "story"
        return
    with tempfile.TemporaryDirectory(prefix="mvc-values-", dir=_MEMORY) as folder:
        yield Path(folder) / "story"


def told(place: Path, line: str, seed: int, number: int, steps: int = STEPS) -> Story:
    """A story, checked; its repository is gone. ``seed`` repeats it."""
    story = Story(place, line, random.Random(seed))
    try:
        story.tell(steps)
        story.check(whole=number % _FSCK == 0)
        if number % (2 * _FSCK) == 0:
            held_against(place, edges=False)
    except BaseException:
        print(f"story of {line!r}, seed {seed}")
        raise
    finally:
        story.end()
    return story


def test_the_lines_are_all_there_is() -> None:
    named = {stage for line in LINES for stage in Pipeline.parse(line).text.split(" | ")}
    assert {stage.partition(":")[0] for stage in named} == set(STAGES)
    assert set(PRESETS) <= set(LINES)


@pytest.mark.parametrize("line", LINES)
def test_a_sample(place: Path, line: str) -> None:
    seed = draw("values").getrandbits(64)
    told(place, line, seed, number=LINES.index(line), steps=4)


@pytest.mark.long
@pytest.mark.parametrize("shard", range(_SHARDS))
def test_stories(place: Path, shard: int) -> None:
    seeds = draw("values")
    versions = refused = 0
    for number in range(_STORIES):
        line = LINES[number // 3 % len(LINES)] if number % 3 == 0 else drawn(seeds)
        story = told(place, line, seeds.getrandbits(64), number)
        versions, refused = versions + len(story.kept), refused + story.refused
    count("extreme values", stories=_STORIES, versions=versions, refused=refused, lost=0, wrong=0)
