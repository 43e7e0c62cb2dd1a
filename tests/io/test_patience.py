"""What is waited for is said after 5, 10, 20 seconds, up to a limit."""

from __future__ import annotations

import time

import pytest

from mvc.io import patience
from mvc.io.patience import Patience, StillWaiting, speaking


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    return now


def test_words_and_the_limit(clock: list[float]) -> None:
    words: list[float] = []
    waiting = Patience(30, words.append)
    passed = []
    for _ in range(32):
        clock[0] += 1
        passed.append(waiting.is_over())
    assert words == [5, 10, 20]
    assert passed.index(True) == 29


def test_time_in_which_this_process_was_stopped_does_not_count(clock: list[float]) -> None:
    waiting = Patience(30, lambda _: None)
    clock[0] += 3600
    assert not waiting.is_over()


def test_a_shorter_wait_gets_no_word(clock: list[float]) -> None:
    words: list[float] = []
    waiting = Patience(30, words.append)
    for _ in range(3):
        waiting.renew()
        for _ in range(8):
            clock[0] += 1
            assert not waiting.is_over()
    assert words == [5]


def test_waiting_ends_when_it_comes(clock: list[float]) -> None:
    def arrived(seconds: float) -> bool:
        clock[0] += seconds
        return clock[0] >= when

    when = 107.5
    assert Patience(10, lambda _: None).await_(arrived)
    when = 200.0
    assert not Patience(10, lambda _: None).await_(arrived)


def test_a_block_that_takes_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_WORD", 0.0)
    monkeypatch.setattr(patience, "SLICE", 0.01)
    deadline = time.monotonic() + 60
    said = pytest.warns(StillWaiting, match=r"waiting for the tide \(0 s\)")
    with said as words, speaking("the tide"):
        while not words.list and time.monotonic() < deadline:
            time.sleep(0.01)
