from __future__ import annotations

from pathlib import Path

import pytest

from mvc.errors import UnknownRevision
from mvc.ids import CommitId
from mvc.repo.lookup import commits
from mvc.repo.lookup.refs import head
from tests.repo.publishing import commit, repository, set_ref


def test_a_commit_and_its_entry(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    assert head(context).commit is None
    ids = [commit(context, message=f"m{i}") for i in range(3)]
    for i, id_ in enumerate(ids):
        assert commits.get(context, id_).message == f"m{i}"
        assert commits.placed(context.store.snapshot, id_)[0].sequence == i + 1
        assert commits.placed(context.store.snapshot, id_)[0].entry.commits[0].id == id_
    assert head(context).commit == ids[2]
    set_ref(context, "HEAD", ids[1])
    assert head(context).commit == ids[1]


def test_an_unknown_commit(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    known = commit(context)
    for id_ in (CommitId(bytes(32)), CommitId(known[:8] + bytes(24))):
        assert commits.find(context.store.snapshot, id_) is None
        with pytest.raises(UnknownRevision, match=id_.short):
            commits.get(context, id_)


def test_beginnings_of_ids(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    ids = sorted(commit(context) for _ in range(40))
    for digits in ("", "0", "f", *(i.hex()[:n] for i in ids for n in (1, 2, 3, 15, 16, 17, 64))):
        found = [c.id for c in commits.starting_with(context.store.snapshot, digits)]
        assert found == [i for i in ids if i.hex().startswith(digits)]
