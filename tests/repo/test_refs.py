from __future__ import annotations

import pytest

from mvc.errors import InvalidName, RefConflict, UnknownRevision
from mvc.repo import refs
from mvc.repo.handle import Handle
from mvc.repo.refs import Head, Ref
from mvc.repo.revisions import resolve
from tests.repo.publishing import commit, set_ref


def test_head_before_and_after_the_first_commit(context: Handle) -> None:
    assert refs.head(context.store.fresh()) == Head("main", None)
    id_ = commit(context)
    assert refs.head(context.store.fresh()) == Head("main", id_)
    set_ref(context, "HEAD", id_)
    assert refs.head(context.store.fresh()) == Head(None, id_)


def test_branches_and_tags_are_listed_by_name(context: Handle) -> None:
    first = commit(context)
    second = commit(context)
    for name in ("zoo", "a/b", "a", "mainline"):
        refs.create_branch(context.store, name, first.hex())
    refs.create_tag(context.store, "v1", "HEAD~1")
    assert refs.branches(context.store.fresh()) == [
        Ref("a", first), Ref("a/b", first), Ref("main", second), Ref("mainline", first),
        Ref("zoo", first),
    ]  # fmt: skip
    assert refs.tags(context.store.fresh()) == [Ref("v1", first)]


def test_a_branch_is_moved_only_by_force(context: Handle) -> None:
    first, second = commit(context), commit(context)
    assert refs.create_branch(context.store, "side", "HEAD~1") == Ref("side", first)
    with pytest.raises(RefConflict, match="side"):
        refs.create_branch(context.store, "side")
    assert refs.create_branch(context.store, "side", force=True) == Ref("side", second)
    with pytest.raises(RefConflict, match="current branch"):
        refs.create_branch(context.store, "main", "HEAD~1", force=True)


@pytest.mark.parametrize("name", ["", "HEAD", "-x", "a..b", "a b", "a/", "f" * 40, "x.lock", "a~1"])
def test_bad_names_are_refused(context: Handle, name: str) -> None:
    commit(context)
    with pytest.raises(InvalidName):
        refs.create_branch(context.store, name)
    with pytest.raises(InvalidName):
        refs.create_tag(context.store, name)
    with pytest.raises(InvalidName):
        refs.rename_branch(context.store, "main", name)


def test_a_branch_needs_a_version(context: Handle) -> None:
    with pytest.raises(UnknownRevision, match="nothing was committed on main"):
        refs.create_branch(context.store, "side")


def test_deleting_a_branch(context: Handle) -> None:
    commit(context)
    kept = refs.create_branch(context.store, "side")
    assert refs.delete_branch(context.store, "side") == kept
    assert [b.name for b in refs.branches(context.store.fresh())] == ["main"]
    with pytest.raises(UnknownRevision, match="no branch side") as caught:
        refs.delete_branch(context.store, "side")
    assert "main" in (caught.value.hint or "")
    with pytest.raises(RefConflict, match="current branch"):
        refs.delete_branch(context.store, "main", force=True)


def test_a_branch_that_alone_leads_to_its_versions_is_kept(context: Handle) -> None:
    commit(context)
    refs.create_branch(context.store, "side")
    alone = commit(context, branch="side")
    with pytest.raises(RefConflict, match=alone.short):
        refs.delete_branch(context.store, "side")
    refs.create_tag(context.store, "kept", "side")
    refs.delete_branch(context.store, "side")
    refs.create_branch(context.store, "side", "kept")
    refs.delete_tag(context.store, "kept")
    set_ref(context, "HEAD", alone)
    refs.delete_branch(context.store, "side")  # the detached HEAD leads to it
    refs.create_branch(context.store, "side")
    set_ref(context, "HEAD", "main")
    with pytest.raises(RefConflict):
        refs.delete_branch(context.store, "side")
    refs.delete_branch(context.store, "side", force=True)
    assert resolve(context.store, alone.hex()) == alone


def test_renaming_takes_head_along(context: Handle) -> None:
    id_ = commit(context)
    refs.create_branch(context.store, "side")
    refs.rename_branch(context.store, "main", "trunk")
    assert refs.head(context.store.fresh()) == Head("trunk", id_)
    assert [b.name for b in refs.branches(context.store.fresh())] == ["side", "trunk"]
    with pytest.raises(RefConflict):
        refs.rename_branch(context.store, "trunk", "side")
    with pytest.raises(RefConflict):
        refs.rename_branch(context.store, "side", "trunk", force=True)
    refs.rename_branch(context.store, "trunk", "side", force=True)
    assert refs.head(context.store.fresh()) == Head("side", id_)
    with pytest.raises(UnknownRevision):
        refs.rename_branch(context.store, "nothing", "more")


def test_renaming_a_branch_without_versions(context: Handle) -> None:
    refs.rename_branch(context.store, "main", "trunk")
    assert refs.head(context.store.fresh()) == Head("trunk", None)
    id_ = commit(context, branch="trunk")
    assert refs.head(context.store.fresh()) == Head("trunk", id_)


def test_tags(context: Handle) -> None:
    first, second = commit(context), commit(context)
    assert refs.create_tag(context.store, "v1", "HEAD^") == Ref("v1", first)
    with pytest.raises(RefConflict):
        refs.create_tag(context.store, "v1")
    assert refs.create_tag(context.store, "v1", force=True) == Ref("v1", second)
    assert refs.delete_tag(context.store, "v1") == Ref("v1", second)
    with pytest.raises(UnknownRevision, match="no tag v1"):
        refs.delete_tag(context.store, "v1")


def test_a_branch_and_a_tag_do_not_share_a_name(context: Handle) -> None:
    commit(context)
    refs.create_tag(context.store, "x")
    with pytest.raises(RefConflict, match="a tag x"):
        refs.create_branch(context.store, "x")
    with pytest.raises(RefConflict, match="a tag x"):
        refs.rename_branch(context.store, "main", "x")
    with pytest.raises(RefConflict, match="a branch main"):
        refs.create_tag(context.store, "main")


def test_each_change_is_one_operation_with_old_and_new(context: Handle) -> None:
    id_ = commit(context)
    refs.create_branch(context.store, "side")
    refs.rename_branch(context.store, "side", "other")
    refs.delete_branch(context.store, "other")
    entries = [r.entry for r in context.store.snapshot.entries()][2:]
    assert [e.operation for e in entries] == ["branch", "rename-branch", "delete-branch"]
    changes = [[(c.name, c.old, c.new) for c in e.refs] for e in entries]
    assert changes == [
        [("heads/side", None, id_)],
        [("heads/side", id_, None), ("heads/other", None, id_)],
        [("heads/other", id_, None)],
    ]
