"""A process that commits in a loop and says so: ``child.py ROOT NAME COUNT``."""

from __future__ import annotations

import sys

from mvc.api.repository import Repository
from tests.crash.crowd import state_for


def main(root: str, name: str, count: int) -> None:
    with Repository.open(root) as repo:
        for step in range(count):
            made = repo.commit(state_for(name, step), path=f"{name}.safetensors", deploy=name)
            if step % 7 == 6:
                repo.handle.store.snapshot.index_tail(force=True)
            print(made.id, step, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
