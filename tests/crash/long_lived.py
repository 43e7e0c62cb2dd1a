"""Stories of processes that keep a repository open while its index is taken from under them.

``python -m tests.crash.long_lived FOLDER SEED FIRST COUNT [MUTATION]`` runs the stories
number FIRST to FIRST + COUNT - 1 of a seed and prints counters as JSON. Of the first story
that fails the shortest form that still fails is on stderr. ``... FOLDER story JSON`` runs one
story again that was printed so.

A *story* is a list of steps, each plain values, so that any part of it is a story as well.
A step names a process by its number, a version by its place in the list of those there are.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mvc.api.repository import Repository
from mvc.ids import CommitId
from tests.crash import treatments
from tests.crash.forks import run
from tests.crash.ledger import Ledger, Wrong
from tests.crash.workers import Worker, warm_up_all

__all__ = ["F1", "Story", "draw_story", "run_story", "shortest"]

Step = tuple[Any, ...]

_PATHS = ("model.safetensors", "other.safetensors")
_TARGETS = ("prod", "edge")
_BATCHES = (4, 4, 4, 8, 8, 8, 16, 16, 16, 64, 64, 512)
_TWO_NAMES = 0.25  # share of stories in which each process has two names of the repository
_SLOTS = 3  # copies of the index that are kept aside
_SHRINK_SECONDS = 90.0


@dataclass(frozen=True)
class Story:
    """``batch``: entries that wait in memory before they are indexed. ``two_names``: each
    process has the repository open twice, by two names.
    """

    processes: int
    batch: int
    steps: tuple[Step, ...]
    two_names: bool = False

    def text(self) -> str:
        return json.dumps([self.processes, self.batch, self.steps, self.two_names])

    @classmethod
    def parse(cls, text: str) -> Story:
        processes, batch, steps, two_names = json.loads(text)
        return cls(processes, batch, tuple(tuple(step) for step in steps), two_names)


F1 = Story(
    2,
    512,
    (
        ("commit", 0, 0, 1, None),
        ("deploy", 1, -1, 0, 520, None),
        ("commit", 1, 0, 2, None),
        ("deploy", 1, -1, 0, 100, None),
        ("commit", 1, 0, 3, None),
        ("outside", "rebuild", 0),
        ("deploy", 0, -1, 0, 300, None),
        ("deploy", 1, -1, 0, 300, None),
        ("commit", 0, 0, 4, None),
        ("commit", 1, 0, 5, None),
    ),
)
"""How acknowledged versions were once lost: the index made anew beside open repositories."""


# -- drawing -------------------------------------------------------------------------------

_WORK = (("commit", 8), ("deploy", 8), ("dated", 2), ("retract", 2), ("branch", 1), ("tag", 1),
         ("switch", 1), ("undo", 2), ("gc", 1), ("repack", 1), ("forget", 1), ("fsck", 1),
         ("look", 4), ("reopen", 1))  # fmt: skip
_INDEX = (("rebuild", 4), ("rebuild inside", 4), ("repair", 1), ("repair inside", 1),
          ("sibling", 2),
          *((name, weight) for name, (_, weight) in treatments.TREATMENTS.items()))  # fmt: skip


def _one(rng: random.Random, choices: tuple[tuple[str, int], ...]) -> str:
    return rng.choices([name for name, _ in choices], [weight for _, weight in choices])[0]


def draw_story(rng: random.Random, number: int) -> Story:
    """Two to four processes; steps of work with steps on the index between them."""
    batch = rng.choice(_BATCHES)
    processes = rng.randrange(2, 5)
    steps: list[Step] = [("commit", 0, 0, 0, None)]
    for _ in range(rng.randrange(10, 32) if batch < 512 else rng.randrange(5, 10)):
        if rng.random() < 0.3:
            steps.append(_index_step(rng, processes))
            if rng.random() < 0.4:
                steps += _everybody_goes_on(rng, processes, batch)
        else:
            steps.append(_work_step(rng, processes, batch))
    return Story(processes, batch, tuple(steps), rng.random() < _TWO_NAMES)


def _everybody_goes_on(rng: random.Random, processes: int, batch: int) -> Iterator[Step]:
    """Each process extends the index that it believes in, then writes to a pack."""
    everybody = rng.sample(range(processes), processes)
    for who in everybody:
        yield "deploy", who, -1, rng.randrange(2), batch + rng.randrange(batch) // 4, None
    for who in everybody:
        yield "commit", who, 0, rng.randrange(1000), None


def _index_step(rng: random.Random, processes: int) -> Step:
    name = _one(rng, _INDEX)
    if name.endswith(" inside"):
        return name.removesuffix(" inside"), rng.randrange(processes)
    return "outside", name, rng.randrange(_SLOTS)


def _work_step(rng: random.Random, processes: int, batch: int) -> Step:
    name, who, which = _one(rng, _WORK), rng.randrange(processes), rng.choice((-1, -1, 0, 1, 7))
    if name == "commit":
        target = rng.choice((None, None, 0, 1))
        return name, who, rng.choice((0, 0, 1)), rng.randrange(1000), target
    if name in {"deploy", "dated"}:
        count = rng.choice((1, 1, batch // 3, batch // 2, batch + 1))
        ago = None if name == "deploy" else rng.randrange(1, 10**9)
        return "deploy", who, which, rng.randrange(2), max(1, min(count, 700)), ago
    if name in {"branch", "tag"}:
        return name, who, f"{name}{rng.randrange(2)}", which
    if name == "switch":
        return name, who, rng.randrange(4)
    if name == "retract":
        return name, who, rng.randrange(2)
    if name == "repack":
        return name, who, rng.choice((1, 2, 5))
    if name == "forget":
        return name, who, which
    if name == "fsck":
        return name, who, rng.random() < 0.5
    return (name, who)


# -- running -------------------------------------------------------------------------------


@dataclass
class Life:
    """A story that is being run. ``foreign``: the index of another repository."""

    folder: Path
    story: Story
    foreign: Path
    seed: int
    mutation: str | None
    ledger: Ledger = field(default_factory=Ledger)
    workers: list[Worker] = field(default_factory=list)
    steps: int = 0

    @property
    def root(self) -> Path:
        return self.folder / "repo"

    @property
    def alias(self) -> Path:
        """Another name of the folder that holds the repository leads to it."""
        return self.folder / "alias" / "repo"

    @property
    def index(self) -> Path:
        return self.root / treatments.INDEX

    def worker(self, who: int) -> Worker:
        return self.workers[who % len(self.workers)]

    def fresh(self) -> Worker:
        return Worker(
            self.root,
            batch=self.story.batch,
            alias=self.alias if self.story.two_names else None,
            mutation=self.mutation,
        )

    @contextmanager
    def once(self) -> Iterator[Worker]:
        """A process for a single call."""
        worker = self.fresh()
        try:
            yield worker
        finally:
            worker.end()


def run_story(
    folder: Path, story: Story, foreign: Path, seed: int, mutation: str | None = None
) -> int:
    """Runs a story in an empty folder and checks all; how many steps it had. Raises Wrong."""
    life = Life(folder, story, foreign, seed, mutation)
    folder.mkdir(parents=True)
    life.alias.parent.symlink_to(folder)
    run(lambda send: Repository.init(life.root).close())
    try:
        life.workers = [life.fresh() for _ in range(story.processes)]
        for step in story.steps:
            try:
                _STEPS[step[0]](life, *step[1:])
            except Wrong as wrong:
                message = f"step {life.steps} {step}: {wrong.message}"
                gone = _gone(life)
                raise Wrong("lost" if gone else wrong.kind, message + gone) from wrong
            life.steps += 1
        _end(life)
    finally:
        for worker in life.workers:
            worker.end()
        shutil.rmtree(folder, ignore_errors=True)
    return life.steps


def _end(life: Life) -> None:
    """Everything, in every process and in a fresh one; last without the index."""
    for who, worker in enumerate(life.workers):
        _looked(life, worker, f"process {who}")
    with life.once() as worker:
        _looked(life, worker, "a fresh process")
        worker.call("claims")
        worker.call("fsck", True)
    life.workers[0].call("fsck", True)
    treatments.delete(life.index)
    with life.once() as worker:
        _looked(life, worker, "a fresh process with a new index")


def _gone(life: Life) -> str:
    """Which acknowledged versions do not come back after a failure, not even by a new index."""
    for worker in life.workers:
        worker.end()
    treatments.delete(life.index)
    gone = []
    with life.once() as worker:
        for commit, (_, recipe) in life.ledger.commits.items():
            if commit in life.ledger.forgotten:
                continue
            try:
                worker.call("version", commit, recipe)
            except Wrong:
                gone.append(commit.short)
    return f"\ngone for good: {', '.join(gone)}" if gone else ""


def _looked(life: Life, worker: Worker, who: str) -> None:
    try:
        worker.call("check", life.ledger, life.seed, True)
    except Wrong as wrong:
        kind = "lost" if who.startswith("a fresh") and wrong.kind == "alarm" else wrong.kind
        raise Wrong(kind, f"{who} at the end: {wrong.message}") from wrong


# -- steps: each asks a process, and notes in the ledger what it says ---------------------------


def _version(life: Life, which: int) -> CommitId | None:
    commits = [commit for commit in life.ledger.commits if commit not in life.ledger.forgotten]
    return commits[which % len(commits) if which >= 0 else which] if commits else None


def _commit(life: Life, who: int, path: int, number: int, target: int | None) -> None:
    name = None if target is None else _TARGETS[target]
    made, deployed = life.worker(who).call("commit", _PATHS[path], number, name)
    life.ledger.committed(made, _PATHS[path], number)
    life.ledger.deployed([] if deployed is None else [deployed])


def _deploy(life: Life, who: int, which: int, target: int, count: int, ago: int | None) -> None:
    commit = _version(life, which)
    if commit is not None:
        told = life.worker(who).call("deploy", commit, _TARGETS[target], count, ago)
        life.ledger.deployed(told)


def _retract(life: Life, who: int, target: int) -> None:
    name = _TARGETS[target]
    expected = life.ledger.newest_standing(name)
    if expected is None:
        return
    sequence = life.worker(who).call("retract", name)
    if sequence != expected.sequence:
        raise Wrong("wrong", f"operation {sequence} was retracted, not {expected}")
    life.ledger.retracted(name, sequence)


def _branch(life: Life, who: int, name: str, which: int) -> None:
    commit = _version(life, which)
    if commit is not None and life.ledger.refs["HEAD"] != name:
        life.worker(who).call("branch", name, commit)
        life.ledger.refs[f"heads/{name}"] = commit


def _tag(life: Life, who: int, name: str, which: int) -> None:
    commit = _version(life, which)
    if commit is not None:
        life.worker(who).call("tag", name, commit)
        life.ledger.refs[f"tags/{name}"] = commit


def _switch(life: Life, who: int, which: int) -> None:
    names = sorted(n for n in life.ledger.refs if n.startswith("heads/"))
    if names:
        name = names[which % len(names)].removeprefix("heads/")
        life.worker(who).call("switch", name)
        life.ledger.refs["HEAD"] = name


def _undo(life: Life, who: int) -> None:
    life.ledger.undone(life.worker(who).call("undo"))


def _gc(life: Life, who: int) -> None:
    life.worker(who).call("gc")
    life.ledger.collected()


def _forget(life: Life, who: int, which: int) -> None:
    commit = _version(life, which)
    if commit is not None and life.ledger.may_be_forgotten(commit):
        life.worker(who).call("forget", commit)
        life.ledger.forgotten.add(commit)


def _outside(life: Life, what: str, number: int) -> None:
    """Something is done to the index by a process that ends, or with plain files."""
    place = treatments.Place.beside(life.root, life.foreign, number)
    rng = random.Random(f"{life.seed}:{life.steps}")
    if what in {"rebuild", "repair"}:
        with life.once() as worker:
            worker.call("command", "fsck", "--rebuild-index" if what == "rebuild" else "--repair")
    elif what == "sibling":
        _sibling(life, place)
    else:
        treatments.TREATMENTS[what][0](place, rng)


def _sibling(life: Life, place: treatments.Place) -> None:
    """The index of a copy of this repository that has gone another way; not further than
    this one, because that would be a journal that lacks operations.
    """
    commit = _version(life, 0)
    if commit is None:
        return
    copy = life.folder / "sibling"
    shutil.copytree(life.root, copy)
    worker = Worker(copy, batch=2, mutation=life.mutation)
    try:
        made, _ = worker.call("commit", _PATHS[0], 1500, None)
        told = worker.call("deploy", made, _TARGETS[0], 5, None)
    finally:
        worker.end()
    treatments.move_to(copy / treatments.INDEX, place.aside)
    shutil.rmtree(copy)
    _deploy(life, 0, 0, 0, 8, None)
    if told[-1].sequence < life.ledger.sequence:
        treatments.put_folder(life.index, place.aside, place.trash)


_STEPS: dict[str, Callable[..., None]] = {
    "commit": _commit,
    "deploy": _deploy,
    "retract": _retract,
    "branch": _branch,
    "tag": _tag,
    "switch": _switch,
    "undo": _undo,
    "gc": _gc,
    "repack": lambda life, who, interval: life.worker(who).call("repack", interval),
    "forget": _forget,
    "look": lambda life, who: life.worker(who).call(
        "check", life.ledger, life.seed + life.steps, False
    ),
    "fsck": lambda life, who, full: life.worker(who).call("fsck", full),
    "outside": _outside,
} | {
    verb: lambda life, who, verb=verb: life.worker(who).call(verb)
    for verb in ("reopen", "rebuild", "repair")
}


# -- many stories --------------------------------------------------------------------------


def make_foreign(folder: Path) -> Path:
    """The index of another repository, with versions, deployments and several runs."""

    def make(worker: Worker) -> None:
        made, _ = worker.call("commit", _PATHS[0], 1, None)
        for number in range(2, 8):
            worker.call("deploy", made, _TARGETS[0], 20, None)
            made, _ = worker.call("commit", _PATHS[0], number, _TARGETS[1])

    root = folder / "foreign"
    run(lambda send: Repository.init(root).close())
    worker = Worker(root, batch=16)
    try:
        make(worker)
    finally:
        worker.end()
    return root / treatments.INDEX


def shortest(
    story: Story, fails: Callable[[Story], Wrong | None], seconds: float
) -> tuple[Story, Wrong | None]:
    """A part of a failing story that fails as well and of which no step can be left out."""
    end, wrong, size = time.monotonic() + seconds, None, max(1, len(story.steps) // 2)
    while time.monotonic() < end:
        shorter = None
        for at in range(0, len(story.steps), size):
            candidate = replace(story, steps=story.steps[:at] + story.steps[at + size :])
            if (found := fails(candidate)) is not None:
                shorter, wrong = candidate, found
                break
            if time.monotonic() > end:
                return story, wrong
        if shorter is not None:
            story = shorter
        elif size == 1:
            break
        size = max(1, min(size // 2 if shorter is None else size, len(story.steps) // 2))
    return story, wrong


def run_stories(
    folder: Path, seed: str, first: int, count: int, mutation: str | None = None
) -> dict[str, int]:
    """Counters. With a mutation the first failure is enough, and is not shortened."""
    foreign = make_foreign(folder)
    counted: Counter[str] = Counter(stories=0, steps=0, lost=0, wrong=0, alarms=0, foreign=0)
    for number in range(first, first + count):
        rng = random.Random(f"{seed}:{number}")
        story, story_seed = draw_story(rng, number), rng.getrandbits(32)
        counted["stories"] += 1
        wrong, steps = _fails(folder / f"story{number}", story, foreign, story_seed, mutation)
        counted["steps"] += steps
        if wrong is None:
            continue
        first_failure = not any(counted[kind] for kind in _COUNTED.values())
        counted[_COUNTED[wrong.kind]] += 1
        print(f"story {number} of seed {seed}: {wrong.kind}: {wrong.message}", file=sys.stderr)
        if mutation is not None:
            break
        if first_failure:
            _tell_shortest(folder, story, foreign, story_seed)
    return dict(counted)


_COUNTED = {"lost": "lost", "wrong": "wrong", "alarm": "alarms", "foreign": "foreign"}


def _fails(
    folder: Path, story: Story, foreign: Path, seed: int, mutation: str | None
) -> tuple[Wrong | None, int]:
    try:
        return None, run_story(folder, story, foreign, seed, mutation)
    except Wrong as wrong:
        return wrong, 0


def _tell_shortest(folder: Path, story: Story, foreign: Path, seed: int) -> None:
    tries = iter(range(10**6))

    def fails(candidate: Story) -> Wrong | None:
        return _fails(folder / f"shorter{next(tries)}", candidate, foreign, seed, None)[0]

    least, wrong = shortest(story, fails, _SHRINK_SECONDS)
    print(f"shortest, seed {seed}: {least.text()}", file=sys.stderr)
    if wrong is not None:
        print(f"it fails with {wrong.kind}: {wrong.message}", file=sys.stderr)


def main(folder: Path, *arguments: str) -> None:
    warm_up_all(folder)
    if arguments[0] == "story":
        story = Story.parse(arguments[1])
        print(json.dumps({"steps": run_story(folder / "story", story, make_foreign(folder), 0)}))
        return
    seed, first, count, *mutation = arguments
    print(json.dumps(run_stories(folder, seed, int(first), int(count), *mutation)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
