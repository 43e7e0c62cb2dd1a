"""What was live, against a log that is kept and asked in another way (``tests.repo.live.log``)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import NoDeployment, UnknownTarget
from mvc.repo.statements.live import Live
from mvc.testing import FixedClock, UnsyncedFS
from tests.repo.live.log import START, Row, Story
from tests.seeds import draw


def told(live: Live) -> tuple[int, int, int | None]:
    return live.deployment.sequence, live.since_ns, live.until_ns


def right(found: tuple[Row, int | None]) -> tuple[int, int, int | None]:
    row, until = found
    return row.number, row.time, until


def ask_at(story: Story, target: str, moment: int) -> None:
    found = story.log.at(target, moment)
    try:
        live = story.repo.live(target, at=moment)
    except (NoDeployment, UnknownTarget):
        assert found is None
        return
    assert found is not None and told(live) == right(found)
    assert live.since_ns <= moment and (live.until_ns is None or moment < live.until_ns)
    assert str(live.commit) == str(live.version.id) == found[0].version


def ask_between(story: Story, target: str, a: int, b: int) -> None:
    a, b = sorted((a, b))
    if not story.log.of(target):
        return
    found = story.repo.live_between(a, b, target)
    assert [told(live) for live in found] == [right(f) for f in story.log.between(target, a, b)]
    for first, second in pairwise(found):
        assert first.until_ns == second.since_ns


def ask_now(story: Story) -> None:
    for target in story.TARGETS:
        now = story.clock.time_ns
        row = story.log.now(target, now)
        try:
            live = story.repo.live(target)
        except (NoDeployment, UnknownTarget):
            assert row is None
            continue
        assert row is not None
        assert told(live) == right((row, story.log.now_until(target, now)))


@pytest.mark.parametrize(
    ("steps", "questions", "recent", "part"),
    [
        (60, 300, 256, 0),
        (60, 300, 5, 1),
        *(pytest.param(300, 20_000, 256, part, marks=pytest.mark.long) for part in range(2, 5)),
        pytest.param(300, 20_000, 12, 5, marks=pytest.mark.long),
    ],
)
def test_like_a_log_kept_in_another_way(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    questions: int,
    recent: int,
    part: int,
) -> None:
    monkeypatch.setattr("mvc.repo.statements.live.RECENT", recent)
    monkeypatch.setattr("tests.repo.live.log.RECENT", recent)
    clock = FixedClock(START)
    with Repository.init(tmp_path, clock=clock, fs=UnsyncedFS()) as repo:
        versions = [str(repo.commit({"w": np.full(1, i)}).id) for i in range(9)]
        story, asking = Story(repo, clock, versions, draw("story")), draw("questions")
        each = questions // steps
        for _ in range(steps):
            story.step()
            ask_now(story)
            for _ in range(each // 2):
                target = asking.choice(story.TARGETS)
                ask_at(story, target, story.moment(asking))
                ask_between(story, target, story.moment(asking), story.moment(asking))
        assert story.rollbacks > 9 or steps < 300
