"""Processes that work at once on one repository while another one takes its index away.

``python -m tests.crash.beside FOLDER SEED PROCESSES SECONDS [MUTATION]`` prints counters as
JSON. Each worker keeps the repository open, commits to a path of its own, deploys on targets
of its own, and looks at what it was acknowledged. One process checks and collects, one
rebuilds, deletes and exchanges the index. All goes in rounds, each with a new repository.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from datetime import timedelta
from pathlib import Path
from typing import Any

from mvc.api.repository import Repository
from mvc.errors import Busy, MvcError
from mvc.ids import CommitId
from mvc.testing import open_quietly
from tests.crash import treatments
from tests.crash.forks import Child, Send, fork, run
from tests.crash.ledger import (
    Deployment,
    Wrong,
    arrays,
    check_claims,
    check_live,
    check_version,
    expect_deployments,
)
from tests.crash.long_lived import make_foreign
from tests.crash.workers import prepare, warm_up_all

_ROUND = 40.0  # seconds with one repository
_GRACE = 240.0  # seconds for the last look of a round, after which a process counts as hanging
_FULL = 300  # deployments of a target before the next one is begun
_COMMITS = 3.0  # a second and process at most: versions are dear to check
_REBUILT = 0.2  # share of disturbances that are a rebuild
_BATCHES = (4, 16, 64, 512)


@dataclass
class Own:
    """What one worker was acknowledged; also written to a file, a line each."""

    name: str
    acks: Any
    commits: dict[CommitId, int] = field(default_factory=dict)
    targets: dict[str, list[Deployment]] = field(default_factory=dict)

    def tell(self, *line: Any) -> None:
        self.acks.write(json.dumps(line) + "\n")
        self.acks.flush()

    def committed(self, id_: CommitId, number: int) -> None:
        self.commits[id_] = number
        self.tell("commit", id_.hex(), number)

    def deployed(self, made: Deployment) -> None:
        self.targets.setdefault(made.target, []).append(made)
        told = [made.target, made.time_ns, made.sequence, made.commit.hex(), made.dated]
        self.tell("deploy", *told)

    def retracted(self, target: str, sequence: int) -> None:
        listed = self.targets[target]
        at = next(i for i, each in enumerate(listed) if each.sequence == sequence)
        listed[at] = changed(listed[at], retracted=True)
        self.tell("retract", target, sequence)

    @classmethod
    def read(cls, path: Path) -> Own:
        """What a file of acknowledgements says."""
        own = cls(path.name, open("/dev/null", "w"))  # noqa: SIM115
        for line in path.read_text().split("\n")[:-1]:
            kind, *told = json.loads(line)
            if kind == "commit":
                own.committed(CommitId.parse(told[0]), told[1])
            elif kind == "deploy":
                target, time_ns, sequence, id_, dated = told
                own.deployed(Deployment(target, time_ns, sequence, CommitId.parse(id_), dated))
            else:
                own.retracted(*told)
        return own


# -- processes -----------------------------------------------------------------------------


@dataclass
class Round:
    """``end``: when it is over, by the monotonic clock. A file tells all to stop earlier."""

    folder: Path
    foreign: Path
    seed: int
    end: float
    mutation: str | None

    @property
    def root(self) -> Path:
        return self.folder / "repo"

    def goes_on(self) -> bool:
        return time.monotonic() < self.end and not (self.folder / "stop").exists()

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}:{name}")

    def start(self, name: str, act: Callable[[Round, str], dict[str, int]]) -> Child:
        """A process that sends counters, or a kind of failure and what it is."""

        def body(send: Send) -> None:
            try:
                rng = self.rng(name)
                prepare(rng.choice(_BATCHES), self.mutation)
                send(act(self, name))
            except Wrong as wrong:
                send((wrong.kind, f"{name}: {wrong.message}\n{traceback.format_exc()}"))
            except MvcError:
                send(("alarm", f"{name}: {traceback.format_exc()}"))
            except BaseException:
                send(("foreign", f"{name}: {traceback.format_exc()}"))
            else:
                return
            (self.folder / "stop").touch()

        return fork(body)


def work(round_: Round, name: str) -> dict[str, int]:
    rng, count = round_.rng(name), Counter(commits=0, deployments=0, looks=0)
    begun = time.monotonic()
    with (round_.folder / f"acks-{name}").open("a") as acks:
        own = Own(name, acks)
        repo = open_quietly(round_.root)
        try:
            _commit(repo, own, rng)
            while round_.goes_on():
                due = len(own.commits) < _COMMITS * (time.monotonic() - begun)
                act = rng.choice((*(_commit,) * (2 * due), _deploy, _deploy, _deploy, _look))
                act(repo, own, rng)
                count["looks"] += act is _look
                if rng.random() < 0.05:
                    _retract(repo, own, rng)
                if rng.random() < 0.02:
                    repo.close()
                    repo = open_quietly(round_.root)
            _look(repo, own, rng)
        finally:
            with suppress(Exception):
                repo.close()
        count["commits"] = len(own.commits)
        count["deployments"] = sum(map(len, own.targets.values()))
    return dict(count)


def _commit(repo: Repository, own: Own, rng: random.Random) -> None:
    number = rng.randrange(10**6)
    made = repo.commit(arrays(number), path=f"{own.name}.safetensors")
    own.committed(made.id, number)


def _deploy(repo: Repository, own: Own, rng: random.Random) -> None:
    """Some of one's own versions on one's newest target; now, or at a time gone by."""
    target = list(own.targets)[-1] if own.targets else f"{own.name}-0"
    if len(own.targets.get(target, ())) >= _FULL:
        target = f"{own.name}-{len(own.targets)}"
    commit = rng.choice([*own.commits][-5:])
    dated = rng.random() < 0.2
    for _ in range(rng.choice((1, 1, 10, 40))):
        at = time.time_ns() - rng.randrange(1, 10**9) if dated else None
        made = repo.deploy(commit, target, at=at)
        own.deployed(Deployment(target, made.time_ns, made.sequence, commit, dated))


def _retract(repo: Repository, own: Own, rng: random.Random) -> None:
    target = rng.choice([*own.targets]) if own.targets else None
    if target is None or all(each.retracted for each in own.targets[target]):
        return
    newest = max((d for d in own.targets[target] if not d.retracted), key=lambda d: d.sequence)
    found = repo.retract(None, target).sequence
    if found != newest.sequence:
        raise Wrong("wrong", f"operation {found} was retracted on {target}, not {newest}")
    own.retracted(target, found)


def _look(repo: Repository, own: Own, rng: random.Random) -> None:
    for commit in rng.sample([*own.commits], min(2, len(own.commits))):
        _version(repo, own, commit)
    if own.targets:
        target = rng.choice([*own.targets])
        _target(repo, own, target, rng)


def _version(repo: Repository, own: Own, commit: CommitId) -> None:
    """The worker's own path in one of its versions, bit for bit."""
    path = f"{own.name}.safetensors"
    check_version(repo, commit, {path: own.commits[commit]}, others=True)


def _target(repo: Repository, own: Own, target: str, rng: random.Random) -> None:
    expected = sorted(own.targets[target], key=lambda d: (d.time_ns, d.sequence))
    expect_deployments(repo, target, expected)
    check_live(repo, target, expected, rng)


def oversee(round_: Round, name: str) -> dict[str, int]:
    """fsck again and again, gc now and then; nothing that they find is an answer."""
    rng, count = round_.rng(name), Counter(checks=0, collections=0)
    with open_quietly(round_.root) as repo:
        while round_.goes_on():
            report = repo.storage.fsck(full=rng.random() < 0.3)
            if not report.sound:
                raise Wrong("alarm", f"fsck: {report.problems}")
            count["checks"] += 1
            if rng.random() < 0.3:
                with suppress(Busy):
                    repo.storage.gc(grace=timedelta(0))
                    count["collections"] += 1
            time.sleep(rng.random() * 0.2)
    return dict(count)


def disturb(round_: Round, name: str) -> dict[str, int]:
    """The index is rebuilt, deleted, exchanged, from a process that does nothing else."""
    rng, count = round_.rng(name), Counter(disturbances=0)
    with open_quietly(round_.root) as repo:
        while round_.goes_on():
            if rng.random() < _REBUILT:
                with suppress(Busy):
                    repo.storage.rebuild_index()
            else:
                treatments.drawn(round_.root, round_.foreign, rng)
            count["disturbances"] += 1
            time.sleep(rng.choice((0, 0.01, 0.05, 0.2)) * rng.random())
    return dict(count)


def last_look(round_: Round, name: str) -> dict[str, int]:
    """Everything that anybody was acknowledged, in a fresh process."""
    check_claims(round_.root)
    rng = round_.rng(name)
    with open_quietly(round_.root) as repo:
        log = {entry.commit.id for entry in repo.log()}
        for path in sorted(round_.folder.glob("acks-*")):
            own = Own.read(path)
            own.name = path.name.removeprefix("acks-")
            if missing := set(own.commits) - log:
                raise Wrong("lost", f"{own.name}: {missing} are not in the log")
            for commit in own.commits:
                _version(repo, own, commit)
            for target in own.targets:
                _target(repo, own, target, rng)
        report = repo.storage.fsck(full=True)
        if not report.sound:
            raise Wrong("alarm", f"fsck: {report.problems}")
    return {}


# -- rounds --------------------------------------------------------------------------------


def one_round(round_: Round, processes: int) -> Counter[str]:
    """Counters of one repository's life; every failure is told on stderr."""
    run(lambda send: Repository.init(round_.root).close())
    children = {f"p{i}": round_.start(f"p{i}", work) for i in range(processes)}
    children["overseer"] = round_.start("overseer", oversee)
    children["disturber"] = round_.start("disturber", disturb)
    count: Counter[str] = Counter(rounds=1, lost=0, wrong=0, alarms=0, foreign=0)
    for name, child in children.items():
        count += _outcome(round_, name, child)
    count += _outcome(round_, "last", round_.start("last", last_look))
    return count


def _outcome(round_: Round, name: str, child: Child) -> Counter[str]:
    if not child.ended(max(0.0, round_.end - time.monotonic()) + _GRACE):
        child.kill()
    values, status = child.end()
    if values and isinstance(values[0], dict):
        return Counter(values[0])
    kind, message = values[0] if values else ("foreign", f"{name} ended with {status}")
    print(f"{kind}: {message}", file=sys.stderr)
    return Counter({"alarms" if kind == "alarm" else kind: 1})


def main(folder: Path, seed: str, processes: int, seconds: float, mutation: str | None) -> None:
    warm_up_all(folder)
    foreign = make_foreign(folder)
    counted: Counter[str] = Counter(rounds=0, lost=0, wrong=0, alarms=0, foreign=0)
    rng, over = random.Random(seed), time.monotonic() + seconds
    while (left := over - time.monotonic()) > 0:
        place = folder / f"round{counted['rounds']}"
        place.mkdir()
        end = time.monotonic() + min(left, _ROUND)
        round_ = Round(place, foreign, rng.getrandbits(32), end, mutation)
        counted.update(one_round(round_, processes))
        shutil.rmtree(place, ignore_errors=True)
        if mutation is not None and any(counted[k] for k in ("lost", "wrong", "alarms", "foreign")):
            break
    print(json.dumps(counted))


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]),
        sys.argv[5] if len(sys.argv) > 5 else None,
    )  # fmt: skip
