"""Power loss at any moment of a repository's life (method: SQLite's crash tests, ALICE).

What a crash leaves is drawn at random; the index, which does not pass the seam, is
drawn from five states. The guards prove that the suite sees every flush that matters.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mvc.store.view import View
from tests.crash.story import Lost, Story, check_crash, tell
from tests.seeds import draw


def _points(story: Story, rng: random.Random, count: int) -> list[tuple[int, int]]:
    """(point, seed): every point in turn, the race six times; in rising order."""
    every = [*range(story.fs.crash_points() + 1), *([story.race] * 5)]
    return sorted((every[i % len(every)], rng.getrandbits(32)) for i in range(count))


def _crash(folder: Path, rng: random.Random, count: int) -> None:
    story = tell(folder)
    for i, (point, seed) in enumerate(_points(story, rng, count)):
        check_crash(story, point, seed, folder / f"image{i}")


def test_no_power_loss_takes_anything_away(tmp_path: Path) -> None:
    _crash(tmp_path, draw("power loss"), 400)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(20))
def test_no_power_loss_takes_anything_away_in_20000(tmp_path: Path, round_: int) -> None:
    _crash(tmp_path, draw("power loss"), 1000)


def _named(op: str, name: str) -> Callable[[str, Path], bool]:
    return lambda called, path: called == op and path.name.endswith(name)


GUARDS = {
    "flush of a pack": _named("sync", ".pack"),
    "flush of the journal": _named("sync", "journal"),
    "flush of the folder of packs": _named("sync_dir", "packs"),
    "flush of the folder that holds .mvc": _named("sync_dir", "repo"),
    "every flush of a file": lambda called, path: called == "sync",
    "every flush of a folder": lambda called, path: called == "sync_dir",
}


@pytest.mark.parametrize("missing", GUARDS)
def test_the_suite_sees_a_missing(missing: str, tmp_path: Path) -> None:
    story, rng = tell(tmp_path, GUARDS[missing]), draw("guards")
    points = list(range(story.fs.crash_points() + 1)) * 15
    rng.shuffle(points)
    assert _somebody_notices(story, points, tmp_path, rng)


def test_the_suite_sees_an_entry_behind_one_that_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torn by a power loss, the first one would look like damage, and nothing would open."""
    always = property(lambda self: 1 << 60, lambda self, value: None)
    monkeypatch.setattr(View, "durable", always, raising=False)
    story = tell(tmp_path)
    monkeypatch.undo()
    assert _somebody_notices(story, [story.race] * 300, tmp_path, draw("guards"))


def _somebody_notices(story: Story, points: list[int], folder: Path, rng: random.Random) -> bool:
    for i, point in enumerate(points):
        seed = rng.getrandbits(32)
        try:
            check_crash(story, point, seed, folder / f"image{i}")
        except Lost:
            return True
    return False


def test_the_story_passes_through_what_it_promises(tmp_path: Path) -> None:
    story = tell(tmp_path)
    assert story.repo is not None
    states = [state for state in story.states if state is not None]
    assert len(states[-1].commits) == 10
    assert {name for name, _ in states[-1].refs} == {"HEAD", "heads/main", "heads/side", "tags/v1"}
    assert [retracted for *_, retracted in states[-1].deployments].count(True) == 1
    assert any(state.removed for state in states)
    assert len(story.indexes) == 3
    unacknowledged = len(story.states) - len(story.acknowledged)
    assert unacknowledged == 1
