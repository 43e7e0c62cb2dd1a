"""A random log of deployments, and what it says, by rules written down a second time.

Nothing here looks at how mvc answers. Live at a moment is read off a painted line: in the order
of time every deployment paints all that comes after it. Live now is found by asking of every
deployment whether another one beats it, and what lies behind it by striking it out and asking
again. The end of a stretch is found by asking about every later moment.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from mvc.api.repository import Repository
from mvc.errors import NoDeployment
from mvc.testing import FixedClock

START = 1_750_000_000_000_000_000
RECENT = 256


@dataclass(eq=False)
class Row:
    """One deployment of the log. ``back_to`` is the row that a rollback went back to."""

    target: str
    version: str
    time: int
    recorded: int
    number: int
    struck: bool = False
    back_to: Row | None = None

    @property
    def given(self) -> bool:
        return self.time != self.recorded

    def origin(self, now: int) -> Row:
        """Itself; of a rollback what it went back to, or what that went back to.

        What was given a time that is yet to come, because the clock was set back, does not count.
        """
        back = self.back_to
        return self if back is None or (back.given and back.time > now) else back.origin(now)


class Log:
    """The rows of every target, in the order they were recorded."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def of(self, target: str) -> list[Row]:
        return [row for row in self.rows if row.target == target]

    # -- at a moment, between two

    def line(self, target: str) -> tuple[list[int], list[Row]]:
        """Moments at which something else begins, and what begins there."""
        painted: dict[int, Row] = {}
        for row in self.of(target):
            if not row.struck:
                painted[row.time] = row  # recorded later: over what stood there
        starts = sorted(painted)
        return starts, [painted[start] for start in starts]

    def at(self, target: str, moment: int) -> tuple[Row, int | None] | None:
        """What was live, and until when."""
        starts, rows = self.line(target)
        i = bisect_right(starts, moment)
        if not i:
            return None
        return rows[i - 1], starts[i] if i < len(starts) else None

    def between(self, target: str, a: int, b: int) -> list[tuple[Row, int | None]]:
        """What one meets who asks at A, at B and at every moment between at which one begins."""
        met: list[tuple[Row, int | None]] = []
        for moment in [a, *(start for start in self.line(target)[0] if a < start <= b)]:
            if (found := self.at(target, moment)) is not None:
                met.append(found)
        return met

    # -- now

    def now(self, target: str, now: int, without: set[int] = frozenset()) -> Row | None:  # type: ignore[assignment]
        rows = self.of(target)
        alive = [r for r in rows if not r.struck and r.number not in without]
        order = [r for r in rows[-RECENT:] if r in alive and not r.given]
        if not order:
            past = [r for r in alive if r.time <= now]
            return self._unbeaten(past)
        return self._unbeaten([order[-1], *(r for r in alive if r.given and r.time <= now)])

    def _unbeaten(self, rows: list[Row]) -> Row | None:
        for row in rows:
            if not any((o.time, o.number) > (row.time, row.number) for o in rows):
                return row
        return None

    def now_until(self, target: str, now: int) -> int | None:
        """The first moment to come at which somebody who asks then is told something else."""
        live = self.now(target, now)
        for moment in sorted({row.time for row in self.of(target) if row.time > now}):
            if self.now(target, moment) is not live:
                return moment
        return None

    def behind(self, target: str, now: int, *also: Row) -> list[Row]:
        """What is live now, then what would be without it, and so on; ``also`` if struck."""
        struck = [row for row in also if row.struck]
        for row in struck:
            row.struck = False
        rows: list[Row] = []
        while (found := self.now(target, now, {row.number for row in rows})) is not None:
            rows.append(found)
        for row in struck:
            row.struck = True
        return rows

    # -- rollbacks

    def press(self, target: str, now: int) -> Row | None:
        """What a rollback goes back to."""
        live = self.now(target, now)
        if live is None:
            return None
        return self._next_after(target, now, live, {live.version} | self._left(target, now))

    def _next_after(self, target: str, now: int, here: Row, avoid: set[str]) -> Row | None:
        origin = here.origin(now)
        line = self.behind(target, now, origin)
        for row in line[line.index(origin) + 1 :] if origin in line else []:
            if row.version not in avoid:
                return row
        return None

    def _left(self, target: str, now: int) -> set[str]:
        """What the rollbacks up to now left, as far as each of them led on the way back."""
        left = set()
        for row, earlier in pairwise(self.behind(target, now)):
            own, other = row.origin(now), earlier.origin(now)
            places = [r for r in self.behind(target, now, own, other) if r in (own, other)]
            if own is row or places[:1] == [own]:
                break
            left.add(earlier.version)
        return left


class Story:
    """Does random things to a repository and to the log, and compares what rollbacks do."""

    TARGETS = ("prod", "edge/berlin", "p")

    def __init__(
        self, repo: Repository, clock: FixedClock, versions: list[str], random: Random
    ) -> None:
        self.repo, self.clock, self.versions = repo, clock, versions
        self.random = random
        self.log = Log()
        self.rollbacks = 0

    def moment(self, random: Random) -> int:
        """One near the others, often one of theirs."""
        if self.log.rows and random.random() < 0.4:
            return random.choice(self.log.rows).time + random.choice((-1, 0, 0, 0, 1))
        return START + random.randrange(-40, 400) * 10

    def step(self) -> None:
        random = self.random
        target = random.choice(self.TARGETS)
        self.clock.advance(random.choice((0, 1, 3, 7, 20, 20, 20)))
        kind = random.random()
        if kind < 0.08:  # the clock is set
            self.clock.advance(random.choice((-300, -60, -20, 40, 200)))
        if kind < 0.4:
            self._deploy(target, None)
        elif kind < 0.55:
            self._deploy(target, self.moment(random))
        elif kind < 0.75:
            self._roll_back(target)
        else:
            self._retract(target)

    def _deploy(self, target: str, at: int | None) -> None:
        version = self.random.choice(self.versions)
        done = self.repo.deploy(version, target, at=at)
        now = self.clock.time_ns
        row = Row(target, version, now if at is None else at, now, done.sequence)
        self.log.rows.append(row)

    def _retract(self, target: str) -> None:
        rows = [row for row in self.log.of(target) if not row.struck]
        if not rows:
            return
        row = self.random.choice(rows[-3:] if self.random.random() < 0.7 else rows)
        rows = [r for r in rows if (r.version, r.time) == (row.version, row.time)]
        rows[-1].struck = True
        done = self.repo.retract(row.version, target, at=row.time)
        assert done.sequence == rows[-1].number

    def _roll_back(self, target: str) -> None:
        if not self.log.of(target):
            return
        now = self.clock.time_ns
        live, right = self.log.now(target, now), self.log.press(target, now)
        try:
            done = self.repo.rollback(target)
        except NoDeployment:
            assert right is None
            return
        assert right is not None and live is not None
        assert (str(done.left), str(done.commit)) == (live.version, right.version)
        row = Row(target, right.version, now, now, done.sequence, back_to=right)
        self.log.rows.append(row)
        self.rollbacks += 1
