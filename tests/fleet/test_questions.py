"""What did node N serve at T? Against a log that the test keeps.

Clocks are up to ten minutes off and jump, nodes are away, answers get lost, whole queues are put
back and sent again, reports come late and in no order among nodes, the target is rolled back, and
the remote collects meanwhile.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

import mvc
from mvc.errors import NoDeployment, RemoteUnreachable
from mvc.ids import CommitId
from mvc.remote.transport import Received, Slice
from mvc.remote.transports.folder import FolderTransport
from mvc.repo.statements.live import Deployed
from mvc.serving.reports import QUEUE, Reports
from mvc.testing.process import FixedClock
from tests.counters import count
from tests.histories import CheckedHistory
from tests.seeds import draw

START = 1_750_000_000_000_000_000
SECOND = 10**9
MINUTE = 60 * SECOND


class _LossyTransport(FolderTransport):
    """Half of the requests do not arrive, or their answers do not come back."""

    chance: random.Random

    def receive(self, given: Slice) -> Received:
        """As the remote does, if anything comes through."""
        fate = self.chance.random()
        if fate < 0.25:
            raise RemoteUnreachable("the request got lost")
        received = super().receive(given)
        if fate < 0.5:
            raise RemoteUnreachable("the answer got lost")
        return received


class _Node:
    """A node with a clock of its own; ``log`` is what it served when, by that clock."""

    def __init__(self, name: str, folder: Path, chance: random.Random) -> None:
        folder.mkdir()
        self.name, self.log = name, list[tuple[int, CommitId]]()
        self._clock, self._chance, self._queue = FixedClock(), chance, folder / QUEUE
        self.reports = Reports(folder, name, clock=self._clock)
        self._old = b""
        self._skew = 0
        self.jump()

    def jump(self) -> None:
        """Somebody sets the clock, up to ten minutes wrong."""
        self._skew = self._chance.randint(-10 * MINUTE, 10 * MINUTE)

    def swap(self, live: Deployed, now_ns: int) -> None:
        """Serves what is live, and notes it."""
        if self.log and self.log[-1][1] == live.commit:
            return
        self._clock.advance(now_ns + self._skew - self._clock.now_ns())
        at = self._clock.now_ns()
        for _ in range(self._chance.randint(1, 2)):  # an interrupted one says it again
            self.reports.served(live.commit, live.target, at)
        self.log.append((max(at, self.log[-1][0] + 1) if self.log else at, live.commit))

    def send(self, transport: _LossyTransport, now_ns: int) -> None:
        """Gives what waits, now and then with an old queue put back before."""
        self._clock.advance(now_ns + self._skew - self._clock.now_ns())
        if self.reports.waiting and not self._old:
            self._old = self._queue.read_bytes()
        try:
            self.reports.send(transport)
        except RemoteUnreachable:
            return
        if self._old and self._chance.random() < 0.3:
            kept = self._queue.read_bytes()
            self._queue.write_bytes(self._old)
            self._old = b""
            with suppress(RemoteUnreachable):
                self.reports.send(transport)
            self._queue.write_bytes(kept)

    def served(self, at: int | None) -> CommitId | None:
        """What it served at a moment, by its log."""
        return next((c for t, c in reversed(self.log) if at is None or t <= at), None)


def _lives(history: CheckedHistory, nodes: list[_Node], chance: random.Random, steps: int) -> None:
    """What happens to a fleet; in the end all reports have come."""
    repo, clock = history.repo, history.options["clock"]
    transport = _LossyTransport("server", repo.handle.store, repo.handle.config)
    transport.chance = chance
    for step in range(steps):
        clock.advance(chance.randint(1, 20 * 60) * SECOND)
        if chance.random() < 0.3:
            try:
                repo.rollback("prod")
            except NoDeployment:
                repo.deploy(history.ids[0], "prod")
        else:
            repo.deploy(chance.choice(history.ids), "prod")
        for node in chance.sample(nodes, len(nodes)):
            if chance.random() < 0.1:
                node.jump()
            if chance.random() < 0.6:
                now = clock.now_ns() + chance.randint(0, MINUTE)
                node.swap(repo.live("prod").deployment, now)
            if chance.random() < 0.3:
                node.send(transport, clock.now_ns())
        if step % 20 == 10:
            repo.storage.gc(grace="0")
    transport.chance = random.Random(1)
    while any(node.reports.waiting for node in nodes):
        for node in nodes:
            node.send(transport, clock.now_ns())


@pytest.mark.parametrize(
    ("count_of_nodes", "steps", "questions"),
    [(4, 12, 150), pytest.param(25, 80, 10_000, marks=pytest.mark.long)],
)
def test_what_a_node_served(
    count_of_nodes: int, steps: int, questions: int, tmp_path: Path
) -> None:
    chance = draw("fleet")
    history = CheckedHistory(tmp_path / "server", 6, clock=FixedClock(START))
    nodes = [_Node(str(n), tmp_path / str(n), chance) for n in range(count_of_nodes)]
    _lives(history, nodes, chance, steps)
    repo, wrong = history.repo, 0
    for node in nodes:
        made = repo.deployments(f"nodes/{node.name}/prod") if node.log else []
        assert [(d.time_ns, d.commit) for d in made] == node.log
    asked = [node for node in nodes if node.log]
    for _ in range(questions):
        node = chance.choice(asked)
        first, last = node.log[0][0], node.log[-1][0]
        edge = chance.choice(node.log)[0] + chance.randint(-1, 1)
        at = chance.choice([chance.randint(first - MINUTE, last + MINUTE), edge, None])
        try:
            answer = repo.live(f"nodes/{node.name}/prod", at=at).commit
        except NoDeployment:
            answer = None
        wrong += answer != node.served(at)
    count("questions what a node served", questions=questions, wrong=wrong)
    assert not wrong
    assert {s.node: s.commit for s in mvc.nodes(repo)} == {n.name: n.served(None) for n in asked}
    assert repo.storage.fsck(full=False).sound
    history.close()
