"""gc leaves every object a record of its own, where others look for what they build on.

A delta leads to its base only if an operation before it, or the same one, holds a record of the
base itself: to be led to from later versions alone is not enough.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.maintenance import gc
from mvc.maintenance.forget import choose, forget

Arrays = dict[str, np.ndarray]


def state(step: int) -> Arrays:
    """Differs from the others in a few elements: a delta is small whatever it starts from."""
    array = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)
    array[step] += 1
    return {"w": array}


def chain_before_a_reset_point(repo: Repository) -> None:
    """The first version has the only full record but for that of the last one."""
    for step in range(3):
        repo.commit(state(step))
    repo.commit(state(3), reset_point=True)


def same_tensor_again_at_a_reset_point(repo: Repository) -> None:
    """What the third version builds on is stored in full, but later."""
    for step in range(3):
        repo.commit(state(step))
    repo.commit(state(1), reset_point=True)


def siblings(repo: Repository) -> None:
    """Two versions build on the first one; the later one is in full as well."""
    first = repo.commit(state(0)).id
    repo.commit(state(1))
    repo.branch("side", first.hex())
    repo.switch("side", force=True)
    repo.commit(state(2), reset_point=True)


HISTORIES = [chain_before_a_reset_point, same_tensor_again_at_a_reset_point, siblings]


@pytest.mark.parametrize("make", HISTORIES, ids=lambda make: make.__name__)
def test_what_builds_on_a_forgotten_state_is_found(
    make: Callable[[Repository], None], tmp_path: Path
) -> None:
    with Repository.init(tmp_path) as repo:
        make(repo)
        commits = [c.id for r in repo.context.store.snapshot.entries() for c in r.entry.commits]
        states = {id_: repo.checkout(id_) for id_ in commits[1:]}
        forget(repo.context, choose(repo.context, commits[:1]))
        for _ in range(2):
            gc.collect(repo.context, grace=timedelta(0))
            for id_, kept in states.items():
                assert repo.checkout(id_)["w"].tobytes() == kept["w"].tobytes()
            assert repo.storage.fsck(full=True).problems == ()
    with Repository.open(tmp_path) as repo:
        repo.context.store.snapshot.rebuild_index()
        for id_, kept in states.items():
            assert repo.checkout(id_)["w"].tobytes() == kept["w"].tobytes()
