"""``python -m tests.store.index_flips FOLDER BITS``: an index with a flipped bit, opened so often.

Each time a process of its own opens it, since LMDB may crash: then that is seen, too. They are
forks of this process because it is small. Prints how many gave right answers, and how many an
error of mvc; any other end is an error here.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from mvc.errors import MvcError
from tests.crash.story import state_of
from tests.store.repositories import CheckedHistory


def main(root: Path, count: int) -> None:
    history = CheckedHistory(root, 6)
    history.index()
    sound = history.index_file.read_bytes()
    with history.open() as repo:
        expected = state_of(repo.handle)
    outcomes = {"right": 0, "refused": 0}
    rng = random.Random(11)
    for _ in range(count):
        bit = rng.randrange(8 * len(sound))
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        history.index_file.write_bytes(data)
        child = os.fork()
        if child == 0:
            os._exit(_ask(history, expected))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 1), f"bit {bit}: status {status}"
        outcomes["right" if status == 0 else "refused"] += 1
    print(json.dumps(outcomes))


def _ask(history: CheckedHistory, expected: object) -> int:
    """0: every answer is right; 1: an mvc error; 2: a wrong answer."""
    try:
        with history.open() as repo:
            if state_of(repo.handle) != expected or history.wrong(repo):
                return 2
            if repo.live("prod").commit != history.ids[-1]:
                return 2
    except MvcError:
        return 1
    except BaseException:
        return 3
    return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
