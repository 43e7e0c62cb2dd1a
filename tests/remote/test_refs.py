from __future__ import annotations

import pytest

from mvc.errors import InvalidName, MvcError, RefConflict, UnknownRevision
from mvc.ids import CommitId
from mvc.remote.refs import ref_changes
from mvc.remote.transport import Move
from mvc.repo import refs
from mvc.repo.handle import Handle
from mvc.repo.lookup.commits import get
from mvc.repo.recording import announce
from mvc.store.journal.entries import RefChange
from tests.repo.publishing import commit

ELSEWHERE = CommitId(b"\x01" * 32)


def changes(context: Handle, *moves: Move, local: bool = False) -> list[RefChange]:
    return ref_changes(context.store, moves, {}, local=local)


def refused(context: Handle, *moves: Move, local: bool = False) -> MvcError:
    with pytest.raises(MvcError) as caught:
        changes(context, *moves, local=local)
    return caught.value


def test_a_branch_moves_forward_from_the_expected_value(context: Handle) -> None:
    first, second = commit(context, branch="side"), commit(context, branch="side")
    refs.create_branch(context.store, "old", first)
    move = Move("heads/old", first, second)
    assert changes(context, move) == [RefChange("heads/old", first, second)]
    assert "is now at" in refused(context, Move("heads/old", None, second)).message
    back = Move("heads/side", second, first)
    error = refused(context, back)
    assert isinstance(error, RefConflict)
    assert "non-fast-forward" in error.message
    assert changes(context, Move("heads/side", second, first, force=True))
    assert changes(context, Move("heads/new", None, first))
    assert changes(context, Move("heads/old", first, None))


def test_a_lost_answer_is_settled_by_the_same_move_again(context: Handle) -> None:
    first, second = commit(context, branch="side"), commit(context, branch="side")
    assert changes(context, Move("heads/side", first, second)) == []
    assert changes(context, Move("heads/gone", first, None)) == []


def test_ancestry_goes_through_versions_that_are_not_published_yet(context: Handle) -> None:
    base = commit(context, branch="side")
    middle, tip = commit(context, base, branch="tmp"), commit(context, branch="tmp")
    coming = {id_: get(context.store.snapshot, id_) for id_ in (middle, tip)}
    move = Move("heads/side", base, tip)
    assert ref_changes(context.store, [move], coming) == [RefChange("heads/side", base, tip)]
    assert refused(context, Move("heads/side", base, ELSEWHERE)).kind == "unknown-revision"


def test_tags_are_made_once_and_those_of_data_sets_move_on(context: Handle) -> None:
    first, second = commit(context, branch="side"), commit(context, branch="side")
    for name in ("v1", "data/train"):
        refs.create_tag(context.store, name, first)
    error = refused(context, Move("tags/v1", first, second))
    assert isinstance(error, RefConflict)
    assert "tag v1 already exists" in error.message
    assert changes(context, Move("tags/data/train", first, second))
    assert changes(context, Move("tags/v1", first, second, force=True))


def test_a_branch_and_a_tag_never_share_a_name(context: Handle) -> None:
    first = commit(context, branch="side")
    refs.create_tag(context.store, "v1", first)
    assert "tag named v1" in refused(context, Move("heads/v1", None, first)).message
    assert "branch named side" in refused(context, Move("tags/side", None, first)).message
    both = (Move("heads/x", None, first), Move("tags/x", None, first))
    assert isinstance(refused(context, *both), RefConflict)
    swap = (Move("tags/v1", first, None), Move("heads/v1", None, first))
    assert len(changes(context, *swap)) == 2


def test_the_branch_of_head_is_not_pushed_to(context: Handle) -> None:
    first = commit(context)
    error = refused(context, Move("heads/main", first, commit(context, first, branch="x")))
    assert "checked out" in error.message
    assert "core.bare" in str(error.hint)
    assert "current branch" in refused(context, Move("heads/main", first, None)).message


def test_a_recorded_branch_is_not_pushed_to(context: Handle) -> None:
    first = commit(context, branch="side")
    with announce(context.store, "side"):
        assert "training is recording" in refused(context, Move("heads/side", first, None)).message
        assert changes(context, Move("remotes/origin/side", None, first), local=True)


@pytest.mark.parametrize(
    "name",
    ["HEAD", "heads/", "heads/a b", "tags/..", "remotes/origin/main", "main", "heads/x.lock"],
)
def test_only_valid_names_of_branches_and_tags_move(context: Handle, name: str) -> None:
    first = commit(context, branch="side")
    assert isinstance(refused(context, Move(name, None, first)), InvalidName)


def test_a_fetch_moves_what_it_likes_in_its_own_names(context: Handle) -> None:
    first, second = commit(context, branch="side"), commit(context, branch="side")
    assert changes(context, Move("remotes/origin/side", None, second), local=True)
    unknown = refused(context, Move("remotes/origin/side", None, ELSEWHERE), local=True)
    assert isinstance(unknown, UnknownRevision)
    twice = (Move("heads/a", None, first), Move("heads/a", None, second))
    assert isinstance(refused(context, *twice), RefConflict)
