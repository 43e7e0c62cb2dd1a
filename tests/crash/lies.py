"""Stories with an index that lies: sound by every checksum, it lacks what the journal says.

Nobody can tell such an index from a good one without reading the journal, so an answer may be
wrong or refused. But nothing that was acknowledged may be lost: what cuts off bytes, deletes
them or names a predecessor asks the journal.

``python -m tests.crash.lies FOLDER SEED FIRST COUNT [MUTATION]`` prints counters as JSON;
what was lost is on stderr, with the story.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.store.index import keys
from tests.crash import treatments
from tests.crash.forks import run
from tests.crash.ledger import Wrong
from tests.crash.workers import Worker, warm_up_all

__all__ = ["LIES", "run_story"]

LIES: dict[str, bytes] = {
    "packs": keys.PACK,
    "refs": keys.REF,
    "commits": keys.COMMIT,
    "targets": keys.ORDER,
    "deployments": keys.DEPLOYED + keys.ORDER + keys.SUBJECT + keys.STATEMENT,
    "objects": keys.BLOB,
    "deltas": keys.EDGE,
    "operations": keys.OPERATION,
    "everything": bytes(range(256)),
}
"""Which tables of the index lack keys of the newest entries."""

Step = tuple[Any, ...]
_PATHS = ("model.safetensors", "other.safetensors")
_TARGETS = ("prod", "edge")


@dataclass
class _Told:
    """What was acknowledged. A refused step may have happened or not."""

    commits: dict[CommitId, tuple[str, int]] = field(default_factory=dict)
    deployments: set[tuple[str, int, CommitId]] = field(default_factory=set)


def draw_story(rng: random.Random) -> list[Step]:
    """Two processes commit, deploy and collect; in between a lie, seen by all or by new ones."""
    steps: list[Step] = [("commit", 0, 0, 1), ("commit", 0, 0, 2)]
    for _ in range(rng.randrange(6, 14)):
        who = rng.randrange(2)
        kind = rng.choice(("commit", "commit", "deploy", "deploy", "lie", "lie", "reopen", "gc",
                           "cut off", "repair"))  # fmt: skip
        if kind == "lie":
            steps.append((kind, rng.choice([*LIES]), rng.choice((1, 1, 2, 5))))
        elif kind == "commit":
            steps.append((kind, who, rng.randrange(2), rng.randrange(1000)))
        elif kind == "deploy":
            steps.append((kind, who, rng.randrange(2), rng.choice((1, 1, 3))))
        else:
            steps.append((kind, who))
    return steps


def run_story(folder: Path, steps: list[Step], mutation: str | None = None) -> int:
    """How many steps were refused. Raises Wrong if anything acknowledged is lost."""
    root, told, refused = folder / "repo", _Told(), 0
    folder.mkdir(parents=True)
    run(lambda send: Repository.init(root).close())
    workers = [Worker(root, batch=4, mutation=mutation) for _ in range(2)]
    try:
        for step in steps:
            try:
                _step(root, workers, told, step)
            except Wrong as wrong:
                if wrong.kind != "alarm":
                    raise
                refused += 1
        treatments.delete(root / treatments.INDEX)
        _last_look(root, told)
    finally:
        for worker in workers:
            worker.end()
        shutil.rmtree(folder, ignore_errors=True)
    return refused


def _step(root: Path, workers: list[Worker], told: _Told, step: Step) -> None:
    kind, *rest = step
    if kind == "lie":
        liar = Worker(root, batch=4)
        with suppress(Wrong):
            liar.call("lie", LIES[rest[0]], rest[1])
        liar.end()
        return
    worker = workers[rest[0]]
    if kind == "commit":
        path, number = _PATHS[rest[1]], rest[2]
        made, _ = worker.call("commit", path, number, None)
        told.commits[made] = (path, number)
    elif kind == "deploy":
        commit = [*told.commits][-1] if told.commits else None
        for _ in range(rest[2] if commit is not None else 0):
            (there,) = worker.call("deploy", commit, _TARGETS[rest[1]], 1, None)
            told.deployments.add((there.target, there.sequence, there.commit))
    elif kind == "cut off":
        _leave_garbage(root)
    else:
        worker.call(kind)


def _leave_garbage(root: Path) -> None:
    """As an interrupted commit leaves it: bytes behind the committed end of every pack."""
    for pack in (root / ".mvc" / "packs").glob("*.pack"):
        with pack.open("ab") as file:
            file.write(b"interrupted" * 20)


def _last_look(root: Path, told: _Told) -> None:
    """In a fresh process, with a new index."""
    worker = Worker(root)
    try:
        worker.call("claims")
        for commit, (path, number) in told.commits.items():
            worker.call("version", commit, {path: number})
        missing = told.deployments - worker.call("deployed")
        if missing:
            raise Wrong("lost", f"deployments are missing: {missing}")
        worker.call("fsck", True)
    except Wrong as wrong:
        raise Wrong("lost" if wrong.kind == "alarm" else wrong.kind, wrong.message) from wrong
    finally:
        worker.end()


def main(folder: Path, seed: str, first: int, count: int, mutation: str | None) -> None:
    warm_up_all(folder)
    counted: Counter[str] = Counter(stories=0, refused=0, lost=0, wrong=0, foreign=0)
    for number in range(first, first + count):
        steps = draw_story(random.Random(f"{seed}:{number}"))
        counted["stories"] += 1
        try:
            counted["refused"] += run_story(folder / f"story{number}", steps, mutation)
        except Wrong as wrong:
            counted[wrong.kind] += 1
            told = f"story {number} of seed {seed}: {wrong.kind}: {wrong.message}"
            print(f"{told}\n{json.dumps(steps)}", file=sys.stderr)
            if mutation is not None:
                break
    print(json.dumps(counted))


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]),
        sys.argv[5] if len(sys.argv) > 5 else None,
    )  # fmt: skip
