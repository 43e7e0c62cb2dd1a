"""One process commits, each version on the one before; another gives their weights up at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from mvc.ids import CommitId
from tests.children import run
from tests.counters import count
from tests.crash import maintenance
from tests.crash.crowd import state_for
from tests.crash.forks import fork, warm_up
from tests.crash.images import folder_in_memory
from tests.crash.state import check_version, state_of
from tests.recipes import by_hand as recipes

COMMITS = 30


def again(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What a recipe makes."""
    return state_for("trained", arguments["step"])


def commit(root: Path) -> None:
    with Repository.open(root) as repo, (root.parent / "acks").open("a") as acks:
        base = repo.commit(again({"step": 0})).id
        for step in range(1, COMMITS):
            base = recipes.trained(repo, again, {"step": step}, base)
            acks.write(f"{base} {step}\n")
            acks.flush()


def give_up(root: Path) -> None:
    """The weights of every version with a recipe, the newest included; every third comes back."""
    number = 0
    while not (root.parent / "stop").exists():
        with Repository.open(root) as repo:
            found = state_of(repo.handle)
            new = [c for c in found.commits[1:] if c not in found.dropped][-3:]
            recipes.drop(repo, *new)
            maintenance.collect(repo.handle)
            for version in new:
                number += 1
                if number % 3 == 0:
                    recipes.store_again(repo, version, again)


def main(root: Path) -> None:
    import_module("mvc.recipes.weights")  # and torch, before anybody commits
    warm_up(root.parent / "warm")
    Repository.init(root).close()
    committing, giving_up = fork(lambda send: commit(root)), fork(lambda send: give_up(root))
    failed = {"committing": committing.end()[1]}
    (root.parent / "stop").touch()
    print(json.dumps(failed | {"giving_up": giving_up.end()[1]}))


def test_commits_beside_weights_that_are_given_up(tmp_path: Path) -> None:
    with folder_in_memory(tmp_path) as folder:
        root = folder / "repo"
        assert run("crash.test_given_up", root) == {"committing": 0, "giving_up": 0}
        told = {}
        for line in (folder / "acks").read_text().splitlines():
            id_, step = line.split()
            told[CommitId.parse(id_)] = int(step)
        with Repository.open(root) as repo:
            found = state_of(repo.handle)
            assert set(told) == set(found.commits[1:])
            for id_, step in told.items():
                check_version(repo, found, id_, {recipes.PATH: again({"step": step})})
            maintenance.collect(repo.handle)
            assert repo.storage.fsck(full=True).problems == ()
            count("commits beside given up weights", commits=len(told), dropped=len(found.dropped))
            assert found.dropped


if __name__ == "__main__":
    main(Path(sys.argv[1]))
