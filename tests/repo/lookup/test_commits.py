from __future__ import annotations

import random
from pathlib import Path

import pytest

from mvc.errors import UnknownRevision
from mvc.ids import CommitId
from mvc.repo.lookup import commits
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import head
from tests.repo.publishing import commit, repository, set_ref


def test_a_commit_and_its_entry(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    assert head(context.store.fresh()).commit is None
    ids = [commit(context, message=f"m{i}") for i in range(3)]
    for i, id_ in enumerate(ids):
        assert commits.get(context.store.snapshot, id_).message == f"m{i}"
        assert commits.placed(context.store.snapshot, id_)[0].sequence == i + 1
        assert commits.placed(context.store.snapshot, id_)[0].entry.commits[0].id == id_
    assert head(context.store.fresh()).commit == ids[2]
    set_ref(context, "HEAD", ids[1])
    assert head(context.store.fresh()).commit == ids[1]


def test_an_unknown_commit(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    known = commit(context)
    for id_ in (CommitId(bytes(32)), CommitId(known[:8] + bytes(24))):
        assert commits.find(context.store.snapshot, id_) is None
        with pytest.raises(UnknownRevision, match=id_.short):
            commits.get(context.store.snapshot, id_)


def test_beginnings_of_ids(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    ids = sorted(commit(context) for _ in range(40))
    for digits in ("", "0", "f", *(i.hex()[:n] for i in ids for n in (1, 2, 3, 15, 16, 17, 64))):
        found = [c.id for c in commits.starting_with(context.store.snapshot, digits)]
        assert found == [i for i in ids if i.hex().startswith(digits)]


# -- ancestors ---------------------------------------------------------------------------


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
            assert (a in Ancestors(context.store.fresh(), [b])) == (a in reach[b])
    tips = rng.sample(made, 5)
    together = Ancestors(context.store.snapshot, tips)
    for id_ in rng.sample(made, len(made)):
        assert (id_ in together) == any(id_ in reach[t] for t in tips)


def test_an_unknown_commit_is_no_ancestor(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    assert CommitId(bytes(32)) not in Ancestors(context.store.fresh(), [commit(context)])
