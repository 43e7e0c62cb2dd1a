"""Power loss at any moment of a repository's life (method: SQLite's crash tests, ALICE).

What a crash leaves is drawn at random; the index, which does not pass the seam, is
drawn from five states. The guards prove that the suite sees every flush that matters.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mvc.io.files import TEMPORARY
from mvc.store.journal.reader import JournalReader
from tests.counters import count
from tests.crash.images import Seen, check_crash, check_once, folder_in_memory
from tests.crash.stories import STORIES, maintaining
from tests.crash.story import Lost, Story
from tests.seeds import draw

FAST, LONG = 70, 4_200  # images a story
_FULL, _COLLECT = 10, 4  # one image in so many is checked by fsck --full, collected


def _points(story: Story, rng: random.Random, number: int) -> list[tuple[int, int]]:
    """(point, seed): every point in turn, marked ones more often; in rising order."""
    every = [*range(story.fs.crash_points() + 1), *story.marked]
    rng.shuffle(every)
    return sorted((every[i % len(every)], rng.getrandbits(32)) for i in range(number))


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("number", [FAST, pytest.param(LONG, marks=pytest.mark.long)])
def test_no_power_loss_takes_anything_away(name: str, tmp_path: Path, number: int) -> None:
    rng = draw("power loss")
    with folder_in_memory(tmp_path) as folder:
        story = STORIES[name](folder)
        seen = Seen(_FULL, _COLLECT)
        for i, (point, seed) in enumerate(_points(story, rng, number)):
            check_once(story, point, seed, folder / f"image{i}", seen)
        count(
            f"power loss, {name}",
            images=number,
            different=len(seen.found),
            max_points=story.fs.crash_points() + 1,
        )


def _named(op: str, name: str) -> Callable[[str, Path], bool]:
    return lambda called, path: called == op and path.name.endswith(name)


def _then(op: str, name: str) -> Callable[[str, Path], bool]:
    """While maintenance runs only."""
    plain = _named(op, name)
    return lambda called, path: maintaining.is_set() and plain(called, path)


def _new_journal(called: str, path: Path) -> bool:
    return called == "sync" and path.name.startswith(f"{TEMPORARY}journal-")


def _new_format(called: str, path: Path) -> bool:
    name = path.name
    return called == "sync" and name.startswith(TEMPORARY) and "journal" not in name


GUARDS: dict[str, tuple[str, Callable[[str, Path], bool]]] = {
    "flush of a pack": ("versions", _named("sync", ".pack")),
    "flush of the journal": ("versions", _named("sync", "journal")),
    "flush of the folder of packs": ("versions", _named("sync_dir", "packs")),
    "flush of the folder that holds .mvc": ("versions", _named("sync_dir", "repo")),
    "every flush of a file": ("versions", lambda called, path: called == "sync"),
    "every flush of a folder": ("versions", lambda called, path: called == "sync_dir"),
    "flush of the journal after a move of refs": ("references", _named("sync", "journal")),
    "flush of the packs that gc writes": ("collection", _then("sync", ".pack")),
    "flush of the folder of packs by gc": ("collection", _then("sync_dir", "packs")),
    "flush of the new journal": ("collection", _new_journal),
    "flush of the format with a new feature": ("collection", _new_format),
    "flush of the folder after the new journal's rename": ("collection", _then("sync_dir", ".mvc")),
}  # fmt: skip


@pytest.mark.parametrize("missing", GUARDS)
def test_the_suite_sees_a_missing(missing: str, tmp_path: Path) -> None:
    story_name, ignored = GUARDS[missing]
    with folder_in_memory(tmp_path) as folder:
        story, rng = STORIES[story_name](folder, ignored), draw("guards")
        points = [*range(story.fs.crash_points() + 1), *story.marked] * 15
        rng.shuffle(points)
        assert _somebody_notices(story, points, folder, rng)


def test_the_suite_sees_an_entry_behind_one_that_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torn by a power loss, the first one would look like damage, and nothing would open."""
    always = property(lambda self: 1 << 60, lambda self, value: None)
    monkeypatch.setattr(JournalReader, "durable", always, raising=False)
    story = STORIES["versions"](tmp_path)
    monkeypatch.undo()
    assert _somebody_notices(story, story.marked * 300, tmp_path, draw("guards"))


def test_the_suite_sees_a_commit_behind_a_rename_that_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss would bring the old journal back, and take the commit with the new one."""
    settled = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(JournalReader, "settled", settled, raising=False)
    story = STORIES["killed"](tmp_path)
    monkeypatch.undo()
    assert _somebody_notices(story, story.marked * 20, tmp_path, draw("guards"))


def _somebody_notices(story: Story, points: list[int], folder: Path, rng: random.Random) -> bool:
    for i, point in enumerate(points):
        seed = rng.getrandbits(32)
        try:
            check_crash(story, point, seed, folder / f"image{i}")
        except Lost:
            return True
    return False


def test_the_stories_pass_through_what_they_promise(tmp_path: Path) -> None:
    told = {name: tell(tmp_path / name) for name, tell in STORIES.items()}
    states = [state for state in told["versions"].states if state is not None]
    assert len(states[-1].commits) == 10
    assert {name for name, _ in states[-1].refs} == {"HEAD", "heads/main", "heads/side", "tags/v1"}
    assert [retracted for *_, retracted in states[-1].deployments].count(True) == 1
    assert len(told["versions"].indexes) == 3
    assert len(told["versions"].states) - len(told["versions"].acknowledged) == 1
    collected = [len(state.commits) for state in told["collection"].states if state is not None]
    assert collected == [0, 1, 2, 3, 4, 4, 4, 4, 2, 3, 3, 2, 3, 3, 3]
    operations = {
        recorded.entry.operation
        for story in told.values()
        for recorded in story.repo.handle.store.snapshot.entries()
    }
    print(sorted(operations))
