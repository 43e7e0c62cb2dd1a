from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mvc
from mvc.errors import MvcError, RefConflict, UnknownOperation
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo import refs
from mvc.repo.handle import Handle
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, Head
from mvc.repo.oplog import oplog
from mvc.repo.oplog.undo import Undoing, plan, undo
from mvc.repo.statements.live import live_at
from mvc.repo.statements.record import deploy, retract
from mvc.repo.statements.rollback import rollback
from mvc.store.journal.entries import Entry, RefChange, StateMark
from tests.repo.publishing import commit, repository, set_ref
from tests.repo.working import open_handle

State = dict[str, Any]


def state(context: Handle) -> State:
    """Every pointer there is."""
    found: State = {BRANCH + b.name: b.commit for b in refs.branches(context.store.fresh())}
    found |= {TAG + t.name: t.commit for t in refs.tags(context.store.fresh())}
    return found | {HEAD: context.store.snapshot.ref(HEAD)}


def refused(context: Handle, number: int | None, match: str) -> RefConflict:
    """The error, after a look whether anything changed."""
    before, newest = state(context), next(oplog.oplog(context.store)).number
    for attempt in (plan, undo):
        with pytest.raises(RefConflict, match=match) as caught:
            attempt(context.store, context.config, number)
    assert state(context) == before
    assert next(oplog.oplog(context.store)).number == newest
    return caught.value


# -- one step ------------------------------------------------------------------------


def test_the_newest_and_then_one_further_back(context: Handle) -> None:
    first, second = commit(context), commit(context)
    refs.create_tag(context.store, "v1")
    done = undo(context.store, context.config)
    assert (done.number, done.operation.number, done.before) == (4, 3, done.after)
    assert refs.tags(context.store.fresh()) == []
    done = undo(context.store, context.config)
    assert (done.operation.number, done.before.commit, done.after.commit) == (2, second, first)
    assert refs.head(context.store.fresh()).commit == first
    entry = next(oplog.oplog(context.store)).entry
    assert (entry.operation, entry.undoes, entry.note) == ("undo", 2, "commit")
    assert entry.refs == (RefChange("heads/main", second, first),)
    assert (
        undo(context.store, context.config).after
        == refs.head(context.store.fresh())
        == refs.Head("main", None)
    )
    assert "undo --list" in (refused(context, None, "nothing to undo").hint or "")


def test_redo(context: Handle) -> None:
    only = commit(context)
    undo(context.store, context.config)
    assert undo(context.store, context.config, 2).after.commit == only
    refused(context, 2, "undone already, by operation 3")
    assert undo(context.store, context.config).operation.number == 1  # it counts again
    assert refs.head(context.store.fresh()).commit is None


def test_a_plan_changes_nothing(context: Handle) -> None:
    commit(context)
    before = state(context)
    planned = plan(context.store, context.config)
    assert (planned.number, state(context)) == (None, before)
    done = undo(context.store, context.config)
    assert (planned.entry, planned.after) == (done.entry, refs.head(context.store.fresh()))


def test_a_new_commit_after_an_undo_goes_another_way(context: Handle) -> None:
    first, second = commit(context), commit(context)
    undo(context.store, context.config)
    third = commit(context)
    assert undo(context.store, context.config).operation.number == 4
    assert undo(context.store, context.config).operation.number == 1
    assert {first, second, third} <= {c.id for r in context.store.snapshot.entries()
                                      for c in r.entry.commits}  # fmt: skip


def test_a_rename_goes_back_whole(context: Handle) -> None:
    commit(context)
    refs.create_branch(context.store, "side")
    tip = commit(context)
    before = state(context)
    refs.rename_branch(context.store, "main", "side", force=True)
    assert refs.head(context.store.fresh()) == refs.Head("side", tip)
    undo(context.store, context.config)
    assert state(context) == before


def commit_after(parent: CommitId) -> Commit:
    return Commit(bytes_id(1), bytes_id(2), (parent,), "me", 0, 0, "")  # type: ignore[arg-type]


def bytes_id(value: int) -> bytes:
    return CommitId(bytes([value]) * 32)


# -- deployments stay --------------------------------------------------------------------


def test_deployments_stay_on_record(context: Handle) -> None:
    first = commit(context, deploy="prod")
    second = commit(context, deploy="prod")
    deploy(context.store, context.config, second, "edge")
    done = undo(context.store, context.config, 2)
    assert done.operation.number == 2
    assert [(d.target, d.commit, d.sequence) for d in done.deployments] == [("prod", second, 2)]
    assert live_at(context.store, target="prod").commit == second
    retract(context.store, context.config, first, "prod")
    assert undo(context.store, context.config, 1).deployments == ()  # it was retracted already


def test_a_wrong_deployment_takes_back_no_good_commit(context: Handle) -> None:
    first, second = commit(context), commit(context)
    deploy(context.store, context.config, first, "prod")
    deploy(context.store, context.config, second, "prod")
    hint = refused(context, None, r"4 \(deploy\) recorded a deployment").hint or ""
    assert f"'mvc deploy {first.short} prod' deploys the version that was live before" in hint
    assert f"'mvc deploy {second.short} prod --retract --at" in hint
    assert "'mvc undo 2' undoes the commit" in hint
    rollback(context.store, context.config, "prod")
    hint = refused(context, None, r"5 \(deploy\)").hint or ""
    assert f"'mvc deploy {second.short} prod' deploys the version that was live before" in hint
    retract(context.store, context.config, None, "prod")
    hint = refused(context, None, r"6 \(retract\) recorded a retraction").hint or ""
    assert f"'mvc deploy {first.short} prod --at " in hint
    undo(context.store, context.config, 2)
    assert "'mvc undo 1'" in (refused(context, None, r"6 \(retract\)").hint or "")
    refs.create_tag(context.store, "v", first.hex())
    assert undo(context.store, context.config).operation.entry.operation == "tag"


def test_what_rearranges_bytes_is_passed_over(context: Handle) -> None:
    commit(context)
    for name in ("gc", "repack", "repair"):
        context.store.publish(lambda name=name: Entry(name, 0, "freed 3 kB"))
    assert undo(context.store, context.config).operation.number == 1


def test_what_moves_nothing_is_not_undone(context: Handle) -> None:
    id_ = commit(context)
    deploy(context.store, context.config, id_, "prod")
    retract(context.store, context.config, None, "prod")
    context.store.publish(lambda: Entry("gc", 0, "freed 3 kB"))
    context.store.publish(lambda: Entry("forget", 0, states=(StateMark(id_, "forgotten"),)))
    assert "--retract" in (refused(context, 2, r"2 \(deploy\).*cannot be undone").hint or "")
    assert "mvc deploy" in (refused(context, 3, r"3 \(retract\).*cannot be undone").hint or "")
    refused(context, 4, r"4 \(gc\) moved no branch")
    refused(context, 5, r"5 \(forget\) cannot be undone")
    refused(context, 0, r"0 \(init\) cannot be undone")
    with pytest.raises(UnknownOperation, match="no operation 6"):
        undo(context.store, context.config, 6)
    assert "'mvc undo 1'" in (refused(context, None, r"5 \(forget\)").hint or "")
    assert undo(context.store, context.config, 1).operation.number == 1


def test_what_changed_nothing_is_passed_over(context: Handle) -> None:
    commit(context)
    refs.create_branch(context.store, "side")
    refs.create_branch(context.store, "side", force=True)
    refused(context, 3, "moved no branch")
    assert undo(context.store, context.config).operation.number == 2


# -- refusals ----------------------------------------------------------------------------


def test_refused_once_the_ref_has_moved(context: Handle) -> None:
    commit(context)
    commit(context)
    error = refused(context, 1, r"main has moved since operation 1: operation 2 \(commit\)")
    assert "'mvc undo 2'" in (error.hint or "")
    refs.create_tag(context.store, "v")
    refs.create_tag(context.store, "v", "HEAD~1", force=True)
    refused(context, 3, "tag v has moved since operation 3: operation 4")


def test_back_at_the_same_value_is_not_moved(context: Handle) -> None:
    commit(context)
    refs.create_tag(context.store, "v")
    refs.delete_tag(context.store, "v")
    undo(context.store, context.config)
    undo(context.store, context.config, 2)
    assert refs.tags(context.store.fresh()) == []


def test_refused_where_a_version_is_gone(context: Handle) -> None:
    id_ = commit(context)
    ghost = CommitId(bytes(32))
    context.store.publish(lambda: Entry("tag", 0, refs=(RefChange("tags/v", ghost, id_),)))
    refused(context, None, "tag v pointed to 0000000000, which was deleted")


def test_refused_where_a_name_was_taken(context: Handle) -> None:
    commit(context)
    refs.create_tag(context.store, "x")
    refs.delete_tag(context.store, "x")
    refs.create_branch(context.store, "x")
    error = refused(context, 3, "x would be a branch and a tag at once")
    assert "'mvc branch -m x NEW'" in (error.hint or "")
    refs.delete_branch(context.store, "x")
    set_ref(context, HEAD, "x")  # it has no version yet
    refused(context, 3, "x would be a branch and a tag at once")


def test_refused_under_the_current_branch(context: Handle) -> None:
    commit(context)
    refs.create_branch(context.store, "side")
    set_ref(context, HEAD, "side")
    refused(context, 2, "side would be deleted, but is the current branch")
    undo(context.store, context.config)
    undo(context.store, context.config, 2)
    assert refs.head(context.store.fresh()).branch == "main"


def test_refused_where_the_branch_to_go_back_to_is_gone(context: Handle) -> None:
    commit(context)
    refs.create_branch(context.store, "side")
    set_ref(context, HEAD, "side")
    refs.delete_branch(context.store, "main")
    error = refused(context, 3, r"main was deleted since operation 3: operation 4")
    assert "'mvc undo 4'" in (error.hint or "")
    undo(context.store, context.config, 4)
    undo(context.store, context.config, 3)
    assert refs.head(context.store.fresh()).branch == "main"


def test_head_goes_back_to_a_branch_that_was_not_begun(context: Handle) -> None:
    set_ref(context, HEAD, "trunk")  # from main, which has no version yet
    commit(context, branch="trunk")
    refs.create_branch(context.store, "main")
    undo(context.store, context.config)  # main was not begun after all
    undo(context.store, context.config, 2)
    undo(context.store, context.config, 1)
    for number in (6, 5, 4):
        undo(context.store, context.config, number)
    assert {ref.name for ref in refs.branches(context.store.fresh())} == {"trunk", "main"}
    refs.delete_branch(context.store, "main")
    undo(context.store, context.config, 1)
    assert refs.head(context.store.fresh()) == Head("main", None)


def test_back_to_a_branch_that_had_no_version_yet(context: Handle) -> None:
    set_ref(context, HEAD, "trunk")
    commit(context, branch="trunk")
    undo(context.store, context.config)
    undo(context.store, context.config)
    assert refs.head(context.store.fresh()) == refs.Head("main", None)


_OTHER = """
import sys
from pathlib import Path
from mvc.errors import RefConflict
from mvc.repo.oplog import undo
from tests.repo.publishing import commit
from tests.repo.working import open_handle
context = open_handle(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "commit":
    print(commit(context).hex())
while sys.argv[2] == "undo":
    try:
        print(undo.undo(context.store, context.config).operation.number, flush=True)
    except RefConflict:
        break
"""


def process(root: Path, verb: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _OTHER, str(root), verb],
        cwd=Path(__file__).parents[3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def start(*waiting: subprocess.Popen[str]) -> list[list[str]]:
    """Lets processes go once all are there; the words that each said."""
    for each in waiting:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in waiting:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate(timeout=60)[0].split() for each in waiting]
    assert [each.returncode for each in waiting] == [0] * len(waiting)
    return said


def test_refused_after_another_process_moved_the_ref(context: Handle) -> None:
    commit(context)
    planned = plan(context.store, context.config)
    [[theirs]] = start(process(context.store.root, "commit"))
    assert planned.operation.number == 1
    refused(context, 1, r"main has moved since operation 1: operation 2 \(commit\)")
    assert undo(context.store, context.config).before.commit == CommitId.parse(theirs)


def test_processes_that_undo_at_once_share_the_work(tmp_path: Path) -> None:
    """Each operation is undone once, by one of them, in order from the newest."""
    context = repository(tmp_path / "r")
    for _ in range(40):
        commit(context)
    words = start(process(context.store.root, "undo"), process(context.store.root, "undo"))
    said = [[int(word) for word in each] for each in words]
    assert all(numbers == sorted(numbers, reverse=True) for numbers in said)
    assert sorted(said[0] + said[1]) == list(range(1, 41))
    assert refs.head(context.store.fresh()) == refs.Head("main", None)
    undone = [o.entry.undoes for o in oplog.oplog(context.store, 40)]
    assert undone == list(range(1, 41))


def test_undo_is_on_record_after_reopening(context: Handle) -> None:
    first = commit(context)
    commit(context)
    undo(context.store, context.config)
    again = open_handle(context.store.root)
    assert refs.head(again.store.fresh()).commit == first
    assert next(oplog.oplog(again.store)).entry.undoes == 2
    again.store.close()


# -- any history ---------------------------------------------------------------------------

NAMES = st.sampled_from(["main", "a", "b"])
Step = Callable[[Handle], object]


def _tips(context: Handle) -> list[CommitId]:
    return sorted({v for v in state(context).values() if isinstance(v, CommitId)})


def _checkout(context: Handle, pick: int) -> None:
    if tips := _tips(context):
        set_ref(context, HEAD, tips[pick % len(tips)])


def _switch(context: Handle, name: str) -> None:
    if context.store.snapshot.ref(BRANCH + name) is not None:
        set_ref(context, HEAD, name)


def _commit(context: Handle) -> None:
    """On the current branch, or on HEAD itself where it is detached."""
    at = refs.head(context.store.fresh())
    if at.branch is not None:
        commit(context, branch=at.branch)
        return
    made = commit_after(at.commit) if at.commit is not None else None
    if made is not None:
        change = RefChange(HEAD, at.commit, made.id)
        context.store.publish(lambda: Entry("commit", 0, commits=(made,), refs=(change,)))


def _rev(context: Handle, pick: int) -> str:
    tips = _tips(context)
    return tips[pick % len(tips)].hex() if tips else "HEAD"


PICKS = st.integers(0, 5)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.just(_commit),
    st.builds(
        lambda n, p, f: lambda c: refs.create_branch(c.store, n, _rev(c, p), f),
        NAMES, PICKS, st.booleans(),
    ),
    st.builds(
        lambda n, p, f: lambda c: refs.create_tag(c.store, n, _rev(c, p), f),
        NAMES,
        PICKS,
        st.booleans(),
    ),
    st.builds(lambda n, f: lambda c: refs.delete_branch(c.store, n, f), NAMES, st.booleans()),
    st.builds(lambda n: lambda c: refs.delete_tag(c.store, n), NAMES),
    st.builds(
        lambda o, n, f: lambda c: refs.rename_branch(c.store, o, n, f), NAMES, NAMES, st.booleans()
    ),
    st.builds(lambda n: lambda c: _switch(c, n), NAMES),
    st.builds(lambda p: lambda c: _checkout(c, p), PICKS),
)  # fmt: skip
ONCE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def take(context: Handle, steps: list[Step]) -> None:
    """Does what is allowed; a refusal is no operation."""
    for step in steps:
        try:
            step(context)
        except MvcError:
            continue


def undo_all(context: Handle) -> list[Undoing]:
    done: list[Undoing] = []
    while True:
        try:
            done.append(undo(context.store, context.config))
        except RefConflict as error:
            assert error.message == "there is nothing to undo"
            return done


@ONCE
@given(first=st.lists(STEPS, max_size=6), steps=st.lists(STEPS, max_size=14))
def test_undoing_all_leads_to_the_beginning_and_redoing_all_to_the_end(
    first: list[Step], steps: list[Step]
) -> None:
    with TemporaryDirectory() as folder:
        context = repository(Path(folder) / "r")
        before = [state(context)]
        for step in [*first, *steps]:
            take(context, [step])
            if state(context) != before[-1]:
                before.append(state(context))
        seen = list(before)
        done = []
        while len(before) > 1:
            before.pop()
            done.append(undo(context.store, context.config))
            assert state(context) == before[-1]
        assert undo_all(context) == []
        for back in reversed(done):
            assert back.number is not None
            undo(context.store, context.config, back.number)
        assert state(context) == seen[-1]
        assert len(undo_all(context)) == len(done)
        assert state(context) == seen[0]
        context.store.close()


@ONCE
@given(st.lists(st.one_of(STEPS, st.integers(0, 20)), max_size=20))
def test_any_undo_is_exact_or_refused(steps: list[Step | int]) -> None:
    """By number, in any order: nothing but what the operation moved goes back."""
    with TemporaryDirectory() as folder:
        context = repository(Path(folder) / "r")
        for step in steps:
            if not isinstance(step, int):
                take(context, [step])
                continue
            before = state(context)
            try:
                done = undo(context.store, context.config, step)
            except (RefConflict, UnknownOperation):
                assert state(context) == before
                continue
            for change in done.operation.entry.refs:
                assert before.get(change.name) == change.new
            after = state(context)
            moved = {c.name for c in done.operation.entry.refs}
            assert all(after.get(n) == v for n, v in before.items() if n not in moved)
            for change in done.operation.entry.refs:
                assert after.get(change.name) == change.old
            branches = {b.name for b in refs.branches(context.store.fresh())}
            head = after[HEAD]
            named = branches | ({head} if isinstance(head, str) else set())
            assert not named & {t.name for t in refs.tags(context.store.fresh())}
            assert done.number is not None
            undo(context.store, context.config, done.number)
            assert state(context) == before
        context.store.close()


def test_undo_does_not_move_a_branch_that_a_training_records_on(repo: mvc.Repository) -> None:
    repo.commit({"w": np.ones(3, np.float32)})
    model = torch.nn.Linear(2, 2)
    with mvc.Recorder(repo, model) as recorder:
        recorder.step()
        recorder.flush()
        with pytest.raises(RefConflict, match="a training is recording on main"):
            repo.undo()


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_undo_that_undoes_no_earlier_operation_is_damage(
    repo: mvc.Repository, ahead: int
) -> None:
    repo.commit({"w": np.ones(9)})
    repo.switch("side", create=True)
    tip = repo.commit({"w": np.zeros(9)}).id
    (left,) = (repo.switch("main"), next(repo.operations()).number)[1:]
    number = left + 1
    for named in (number + ahead, number):
        gone = RefChange(BRANCH + "side", tip, None)
        repo.handle.store.publish(
            lambda n=named, c=gone: Entry("undo", repo.time("now"), refs=(c,), undoes=n)
        )
        tip = None
    with pytest.raises(RefConflict, match="side was deleted"):
        repo.undo(left)
    assert any("is undone by" in problem.message for problem in repo.storage.fsck().problems)
