"""What was found out about a version later: recorded, searched, undone, collected, checked."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import InvalidName, RefConflict, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.maintenance import gc
from mvc.model.statement import AnnotationStatement
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.publishing.publish import publish
from mvc.store.snapshot import Snapshot
from mvc.testing import FixedClock, UnsyncedFS
from tests.histories import CheckedHistory, weights

HOUR = 3600 * 10**9
START = 1_750_000_000 * 10**9


@pytest.fixture
def history(tmp_path: Path) -> CheckedHistory:
    return CheckedHistory(tmp_path, 4)


def notes(repo: mvc.Repository, rev: str = "HEAD") -> list[str]:
    return [each.note for each in repo.annotations(rev)]


def test_a_version_has_what_was_found_out_later(
    history: CheckedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVC_AUTHOR", "nightly")
    first, last = history.ids[0], history.ids[-1]
    with history.open() as repo:
        made = repo.annotate(
            first, metrics={"auc": 0.5}, params={"by": "eval.py"}, note="slow\nset"
        )
        assert (made.author, made.note) == ("nightly", "slow\nset")
        assert (made.metrics, made.params) == ({"auc": 0.5}, {"by": "eval.py"})
        again = repo.annotate(first, metrics={"auc": 0.75, "f1": 1}, params={"approved": True})
        repo.annotate(last, note="broken")
    with history.open() as repo:
        entry = repo.log(first)[0]
        assert entry.annotations == repo.annotations(first) == (made, again)
        assert entry.metrics == {"auc": 0.75, "f1": 1.0}
        assert entry.params == {"by": "eval.py", "approved": "true"}
        assert (entry.commit.metrics, entry.id) == ({}, first)
        assert notes(repo) == ["broken"]
        assert notes(repo, "HEAD~1") == []
        assert [o.entry.operation for o in repo.operations(3)] == ["annotate"] * 3
        assert made.time_ns < again.time_ns
        assert repo.storage.fsck(full=True).sound
        repo.storage.rebuild_index()
        assert repo.annotations(first) == (made, again)


def test_the_last_of_several_counts_and_nan_is_a_number(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        id_ = repo.commit(weights(1), metrics={"loss": 1.0, "acc": 0.25}, params={"lr": 1}).id
        repo.annotate("HEAD", metrics={"loss": math.nan})
        repo.annotate("HEAD", metrics={"acc": 0.5}, params={"lr": "2"})
        (entry,) = repo.log()
        assert math.isnan(entry.metrics["loss"])
        assert (entry.metrics["acc"], entry.params) == (0.5, {"lr": "2"})
        assert (entry.commit.metrics, entry.commit.id) == ({"loss": 1.0, "acc": 0.25}, id_)


def test_log_sorts_by_what_was_measured_later(history: CheckedHistory) -> None:
    first, second, third, _ = history.ids
    with history.open() as repo:
        for id_, value in ((second, 0.2), (third, 0.9), (first, 0.5), (second, 0.7)):
            repo.annotate(id_, metrics={"auc": value})
        assert [entry.id for entry in repo.log("HEAD", mvc.LogOptions(sort="auc"))] == [
            third,
            second,
            first,
        ]
        assert [entry.id for entry in repo.log("HEAD", mvc.LogOptions(sort="-auc"), limit=1)] == [
            first
        ]
        gone = repo.storage.forget(keep_best=["auc:1"], dry_run=True)
        assert {commit.id for commit in gone.commits} == {first, second}
        found = repo.diff(first, third)
        assert found.metrics == {"auc": (0.5, 0.9)}


def test_an_annotation_is_undone_and_done_again(history: CheckedHistory) -> None:
    with history.open() as repo:
        repo.annotate("HEAD", note="one")
        two = repo.annotate("HEAD", note="two")
        undone = repo.undo()
        assert (undone.operation.number, notes(repo)) == (two.number, ["one"])
        assert undone.before == undone.after
        again = repo.undo(undone.number)
        assert notes(repo) == ["one", "two"]
        repo.undo(again.number)
        assert notes(repo) == ["one"]
        repo.undo()
        assert notes(repo) == []
        with pytest.raises(RefConflict, match="is undone already"):
            repo.undo(two.number)
        assert repo.log()[0].annotations == ()
        assert repo.storage.fsck(full=True).sound


def test_gc_keeps_annotations_as_long_as_their_versions(history: CheckedHistory) -> None:
    first, last = history.ids[0], history.ids[-1]
    with history.open() as repo:
        repo.branch("side", first)
        repo.switch("side", force=True)
        aside = repo.commit(weights(40)).id
        repo.annotate(first, note="kept")
        repo.annotate(aside, note="goes")
        repo.switch("main", force=True)
        repo.delete_ref("branch", "side", force=True)
        repo.storage.forget(history.ids[1])
        repo.annotate(history.ids[1], note="forgotten, and still evidence")
        repo.storage.gc(grace="0")
        assert notes(repo, str(first)) == ["kept"]
        assert notes(repo, str(history.ids[1])) == ["forgotten, and still evidence"]
        with pytest.raises(UnknownRevision):
            repo.find(aside)
        entries = [recorded.entry for recorded in repo.handle.store.fresh().entries()]
        kept = [each.commit for entry in entries for each in entry.of(AnnotationStatement)]
        assert kept == [first, history.ids[1]]
        repo.storage.repack(interval=1)
        assert notes(repo, str(first)) == ["kept"]
        assert notes(repo, str(last)) == []
        assert repo.storage.fsck(full=True).sound


@pytest.mark.parametrize("undos", range(4))
@pytest.mark.parametrize("aged", range(6))
def test_gc_does_not_bring_back_what_was_undone(tmp_path: Path, undos: int, aged: int) -> None:
    """Whatever part of the chain of undos is older than the grace."""
    clock = FixedClock(1_750_000_000 * 10**9)
    history = CheckedHistory(tmp_path, 1, clock=clock, fs=UnsyncedFS())
    with history.open() as repo:
        clock.advance(HOUR)
        number: int | None = repo.annotate("HEAD", note="here").number
        for _ in range(undos):
            clock.advance(HOUR)
            number = repo.undo(number).number
        wanted = ["here"] if undos % 2 == 0 else []
        assert notes(repo) == wanted
        for _ in range(2):
            gc.collect(
                repo.handle.store,
                repo.handle.config,
                grace=timedelta(hours=max(0, undos + 1 - aged)),
            )
            assert notes(repo) == wanted
            repo.commit(weights(7))
            repo.undo()
        clock.advance(100 * HOUR)
        repo.commit(weights(8))
        repo.annotate("HEAD", note="other")
        gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(0))
        assert notes(repo, "HEAD~1") == wanted
        assert repo.storage.fsck(full=True).sound


@pytest.mark.parametrize("what", ["annotate what goes", "annotate what stays", "redo"])
def test_gc_sees_what_is_annotated_while_it_runs(history: CheckedHistory, what: str) -> None:
    with history.open() as repo, history.open() as other:
        aside = repo.commit(weights(40), options=mvc.CommitOptions(branch="side", new_branch=True))
        repo.annotate(history.ids[0], note="undone")
        undone = repo.undo().number
        repo.delete_ref("branch", "side", force=True)
        rounds: list[str] = []

        def meanwhile(_: int, __: int, writing: str) -> None:
            if writing != "operations":
                return  # it is still planned
            if not rounds:
                if what == "redo":
                    other.undo(undone)
                else:
                    goes = what == "annotate what goes"
                    other.annotate(aside.id if goes else history.ids[1], note="meanwhile")
            rounds.append(what)

        gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(0), progress=meanwhile)
        assert rounds
        assert notes(repo, str(history.ids[0])) == (["undone"] if what == "redo" else [])
        if what == "annotate what stays":
            assert notes(repo, str(history.ids[1])) == ["meanwhile"]
        with pytest.raises(UnknownRevision):
            repo.find(aside.id)
        assert repo.storage.fsck(full=True).sound


def test_what_is_no_annotation(history: CheckedHistory) -> None:
    with history.open() as repo:
        before = repo.handle.store.fresh().position
        with pytest.raises(WrongUsage, match="the annotation is empty"):
            repo.annotate("HEAD")
        with pytest.raises(WrongUsage, match="metric 'auc' is not a number: 'high'"):
            repo.annotate("HEAD", metrics={"auc": "high"})
        with pytest.raises(WrongUsage, match="param 'f' is neither text nor plain data"):
            repo.annotate("HEAD", params={"f": notes})
        with pytest.raises(InvalidName, match="a metric has an empty name"):
            repo.annotate("HEAD", metrics={"": 1})
        with pytest.raises(WrongUsage, match="more than 1000 metrics"):
            repo.annotate("HEAD", metrics={str(i): i for i in range(1001)})
        with pytest.raises(WrongUsage, match="the note is longer than 1048576 bytes"):
            repo.annotate("HEAD", note="é" * (1 << 20))
        with pytest.raises(UnknownRevision):
            repo.annotate("nothing", note="x")
        assert repo.handle.store.fresh().position == before


def test_fsck_names_an_annotation_of_no_version(history: CheckedHistory) -> None:
    with history.open() as repo:
        store = repo.handle.store
        statements = (AnnotationStatement(subject=CommitId(b"x" * 32), note="of nothing"),)
        with pytest.raises(UnknownRevision, match="gc has just deleted commit"):
            store.publish(lambda: Entry("annotate", store.now_ns(), statements=statements))
        entry = Entry("annotate", store.now_ns(), statements=statements)
        publish(store.snapshot, lambda: entry)
        (problem,) = repo.storage.fsck().problems
        assert (problem.kind, problem.object) == ("reference", "an annotation")


def test_live_report_and_tables_have_what_was_found_out_later(history: CheckedHistory) -> None:
    first, last = history.ids[0], history.ids[-1]
    with history.open() as repo:
        repo.annotate(last, metrics={"auc": 0.75}, params={"by": "eval"}, note="nightly")
        repo.annotate(first, metrics={"auc": 0.5})
        live = repo.live("prod")
        assert (live.metrics, [each.note for each in live.annotations]) == (
            {"auc": 0.75},
            ["nightly"],
        )
        assert [live.metrics for live in repo.live_between("1 hour ago", "now", "prod")][-1] == {
            "auc": 0.75
        }
        assert "auc=0.75" in repr(repo.log()) and "by=eval" in repr(repo.log())
        page = mvc.write_report(repo)
        assert "auc" in page and "by=eval" in page
        assert ">highest 0.75</text>" in page and ">lowest 0.5</text>" in page


def test_a_new_one_is_the_last_of_those_from_a_clock_that_is_ahead(tmp_path: Path) -> None:
    early, late = FixedClock(START), FixedClock(START + HOUR)
    with Repository.init(tmp_path / "a", clock=late) as a:
        a.commit({"w": np.zeros(3)})
        mvc.clone(str(tmp_path / "a"), tmp_path / "b").close()
        a.annotate("HEAD", note="first")
        late.advance(-HOUR // 2)
        a.annotate("HEAD", note="second")
    with Repository.open(tmp_path / "b", clock=early) as b:
        b.fetch()
        b.annotate("origin/main", note="third")
        b.annotate("origin/main", note="fourth")
        assert notes(b, "origin/main") == ["first", "second", "third", "fourth"]


def test_another_one_reads_no_more_for_many_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    inner = Snapshot.entry

    def counted(self: Snapshot, offset: int) -> Recorded:
        read.append(offset)
        return inner(self, offset)

    monkeypatch.setattr(Snapshot, "entry", counted)
    counts = []
    with Repository.init(tmp_path) as repo:
        repo.commit({"w": np.zeros(3)})
        for _ in range(30):
            read.clear()
            repo.annotate("HEAD", note="as before")
            counts.append(len(read))
    assert counts[-1] <= counts[2]
