from __future__ import annotations

import random
from pathlib import Path

from mvc.ids import CommitId
from mvc.repo.lookup.commits import Ancestors
from tests.repo.publishing import commit, repository


def test_against_the_transitive_closure(tmp_path: Path) -> None:
    """A random graph with times that prove nothing."""
    context = repository(tmp_path / "r")
    rng = random.Random(1)
    made: list[CommitId] = []
    reach: dict[CommitId, set[CommitId]] = {}
    for i in range(60):
        parents = rng.sample(made, min(len(made), rng.choice([0, 1, 1, 1, 2, 3])))
        id_ = commit(context, *parents, branch=f"b{i}", time_ns=rng.randrange(10**18))
        reach[id_] = {id_}.union(*(reach[p] for p in parents))
        made.append(id_)
    for a in made:
        for b in made:
            assert (a in Ancestors(context.fresh(), [b])) == (a in reach[b])
    tips = rng.sample(made, 5)
    together = Ancestors(context.store.snapshot, tips)
    for id_ in rng.sample(made, len(made)):
        assert (id_ in together) == any(id_ in reach[t] for t in tips)


def test_an_unknown_commit_is_no_ancestor(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    assert CommitId(bytes(32)) not in Ancestors(context.fresh(), [commit(context)])
