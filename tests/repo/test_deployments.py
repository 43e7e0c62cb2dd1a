from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.api.repository import Repository
from mvc.errors import (
    DamagedData,
    InvalidName,
    InvalidTime,
    NoDeployment,
    UnknownRevision,
    UnknownTarget,
)
from mvc.ids import CommitId
from mvc.model.statement import Deployment
from mvc.repo.handle import Handle
from mvc.repo.revisions import resolve
from mvc.repo.statements.live import RECENT, list_deployments, live_at, of_commit
from mvc.repo.statements.record import deploy, retract
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.testing import FixedClock
from tests.repo.publishing import SECOND, START, advance, commit, repository


def test_what_is_recorded(context: Handle) -> None:
    id_ = commit(context)
    advance(context, 5)
    made = deploy(context.store, context.config, resolve(context.store, "HEAD"), "prod", START + 1)
    assert (made.target, made.commit, made.time_ns) == ("prod", id_, START + 1)
    assert made.recorded_ns == START + 5 * SECOND and made.sequence == 2
    assert not made.retracted and made.retracted_ns is None and not made.clock_back
    now = deploy(context.store, context.config, id_, "prod")
    assert now.time_ns == now.recorded_ns == START + 5 * SECOND
    assert (
        list_deployments(context.store.fresh())
        == list_deployments(context.store.fresh(), "prod")
        == [made, now]
    )
    assert of_commit(context.store.snapshot, id_) == (made, now)


def test_the_one_live_at_a_moment(context: Handle) -> None:
    ids = [commit(context, deploy="prod", deploy_time=START + 10 * i) for i in range(4)]
    for i in range(4):
        for after in (0, 1, 9):
            assert live_at(context.store, START + 10 * i + after, "prod").commit == ids[i]
    assert live_at(context.store, START + 10**15).commit == ids[3]
    with pytest.raises(NoDeployment) as caught:
        live_at(context.store, START - 1, "prod")
    assert ids[0].short in caught.value.message and "2025-06-15" in caught.value.message


def test_recorded_out_of_order(context: Handle) -> None:
    """Time decides, then sequence; what is recorded late takes nothing over."""
    advance(context, 60)
    late = commit(context, deploy="prod", deploy_time=START + 100)
    early = commit(context, deploy="prod", deploy_time=START + 50)
    assert live_at(context.store, START + 99).commit == early
    assert live_at(context.store, START + 100).commit == late
    assert live_at(context.store).commit == late
    assert [d.commit for d in list_deployments(context.store.fresh())] == [early, late]
    again = commit(context, deploy="prod", deploy_time=START + 100)
    assert live_at(context.store, START + 100).commit == live_at(context.store).commit == again


def test_a_record_of_the_past_takes_nothing_over(context: Handle) -> None:
    advance(context, 60)
    live = commit(context, deploy="prod")
    commit(context, deploy="prod", deploy_time=START)
    assert live_at(context.store).commit == live
    advance(context, 60)
    dated = commit(context, deploy="prod", deploy_time=START + 90 * SECOND)
    assert live_at(context.store).commit == dated
    again = commit(context, deploy="prod")
    assert live_at(context.store).commit == again


def test_one_of_a_time_to_come_counts_from_then_on(context: Handle) -> None:
    soon = commit(context, deploy="prod", deploy_time=START + 60 * SECOND)
    with pytest.raises(NoDeployment, match=soon.short):
        live_at(context.store)
    live = commit(context, deploy="prod")
    advance(context, 59)
    assert live_at(context.store).commit == live
    advance(context, 1)
    assert live_at(context.store).commit == soon
    retract(context.store, context.config, soon, "prod")
    assert live_at(context.store).commit == live


def test_an_entry_and_its_deployment_have_one_time(tmp_path: Path) -> None:
    """Even if the clock goes on in between."""
    with Repository.init(tmp_path, clock=FixedClock(START, 7)) as repo:
        made = repo.commit({"w": np.zeros(1)}, deploy="prod").deployment
        assert made is not None and not made.dated
        assert not repo.deploy("HEAD", "prod").dated
        assert repo.deploy("HEAD", "prod", at="2025-01-01").dated


def test_behind_an_imported_history(context: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """More dated ones than are looked through: each counts by its time, all the same."""
    before = commit(context, deploy="prod")
    for i in range(RECENT + 5):
        commit(context, deploy="prod", deploy_time=START - 1 - i)
    read, entry = set[int](), Snapshot.entry

    def counted(snapshot: Snapshot, offset: int) -> Recorded:
        read.add(offset)
        return entry(snapshot, offset)

    monkeypatch.setattr(Snapshot, "entry", counted)
    assert live_at(context.store).commit == before
    assert len(read) <= RECENT + 2
    advance(context, 60)
    last = commit(context, deploy="prod", deploy_time=START + 1)
    assert live_at(context.store).commit == last
    now = commit(context, deploy="prod")
    assert live_at(context.store).commit == now
    retract(context.store, context.config, now, "prod")
    assert live_at(context.store).commit == last
    retract(context.store, context.config, last, "prod")
    assert live_at(context.store).commit == before


def test_a_clock_set_back_is_told_and_does_no_harm(context: Handle) -> None:
    commit(context, deploy="prod")
    advance(context, -3600)
    newer = commit(context)
    made = deploy(context.store, context.config, resolve(context.store, "HEAD"), "prod")
    assert made.clock_back and made.time_ns < START
    assert live_at(context.store).commit == newer
    dated = commit(context, deploy="prod", deploy_time=made.time_ns - 1)
    assert live_at(context.store).commit == newer
    advance(context, 7200)
    assert live_at(context.store).commit == newer
    assert live_at(context.store, START + SECOND).commit not in (newer, dated)
    assert not deploy(
        context.store, context.config, resolve(context.store, "HEAD"), "prod"
    ).clock_back


def test_targets_are_apart(context: Handle) -> None:
    with pytest.raises(NoDeployment, match="nothing was deployed"):
        live_at(context.store)
    a = commit(context, deploy="prod")
    assert live_at(context.store).commit == a
    b = commit(context, deploy="prod/eu")
    c = commit(context, deploy="pro")
    assert context.store.fresh().targets() == ["pro", "prod", "prod/eu"]
    assert [live_at(context.store, None, t).commit for t in context.store.fresh().targets()] == [
        c,
        a,
        b,
    ]
    assert [d.commit for d in list_deployments(context.store.fresh(), "prod")] == [a]
    with pytest.raises(UnknownTarget, match="pro, prod, prod/eu"):
        live_at(context.store)
    with pytest.raises(UnknownTarget) as caught:
        live_at(context.store, None, "prd")
    assert "prod" in (caught.value.hint or "")
    with pytest.raises(UnknownTarget):
        list_deployments(context.store.fresh(), "test")


def test_a_target_with_retracted_deployments_only_is_no_candidate(context: Handle) -> None:
    id_ = commit(context, deploy="production")
    deploy(context.store, context.config, id_, "prod")
    with pytest.raises(UnknownTarget, match="several targets: prod, production"):
        live_at(context.store)
    retract(context.store, context.config, None, "production")
    assert live_at(context.store).target == live_at(context.store, START + SECOND).target == "prod"
    retract(context.store, context.config, None, "prod")
    with pytest.raises(UnknownTarget, match="several targets: prod, production"):
        live_at(context.store)


def test_a_deployment_is_retracted_by_its_printed_time(context: Handle) -> None:
    """Screens round times up to seconds; an exact time comes first."""
    id_ = commit(context)
    exact, late, early = START, START + SECOND - 1, START + 7
    for moment in (exact, early, late, START + SECOND + 9):
        deploy(context.store, context.config, id_, "prod", moment)
    for printed, moment in ((SECOND, late), (SECOND, early), (2 * SECOND, START + SECOND + 9)):
        deployed = retract(context.store, context.config, None, "prod", START + printed)
        assert deployed.time_ns == moment
    assert retract(context.store, context.config, id_, "prod", START).time_ns == exact
    with pytest.raises(NoDeployment, match="retracted already"):
        retract(context.store, context.config, id_, "prod", START)
    with pytest.raises(NoDeployment, match="there is no record"):
        retract(context.store, context.config, id_, "prod", START + 3)


def test_a_retracted_deployment_is_passed_over_but_stays(context: Handle) -> None:
    first = commit(context, deploy="prod", deploy_time=START + 10)
    commit(context, deploy="prod", deploy_time=START + 20)
    advance(context, 60)
    immediate = commit(context, deploy="prod")
    assert live_at(context.store).commit == immediate
    assert retract(context.store, context.config, None, "prod").commit == immediate
    done = retract(context.store, context.config, None, "prod")
    assert done.retracted and done.retracted_ns == START + 60 * SECOND
    assert done.time_ns == START + 20
    assert live_at(context.store).commit == live_at(context.store, START + 25).commit == first
    assert [d.retracted for d in list_deployments(context.store.fresh())] == [False, True, True]
    again = deploy(
        context.store, context.config, resolve(context.store, "HEAD"), "prod", START + 20
    )
    assert live_at(context.store, START + 20) == again
    retract(context.store, context.config, None, "prod")
    retract(context.store, context.config, first, "prod")
    for moment in (None, START + 25):
        with pytest.raises(NoDeployment, match="every deployment was retracted"):
            live_at(context.store, moment, "prod")
    assert len(list_deployments(context.store.fresh())) == 4
    with pytest.raises(NoDeployment, match="retracted already"):
        retract(context.store, context.config, None, "prod")


def test_which_deployment_is_retracted(context: Handle) -> None:
    first, second = commit(context), commit(context)
    for moment, id_ in ((10, first), (20, second), (30, first), (40, second)):
        deploy(context.store, context.config, id_, "prod", moment)
    deploy(context.store, context.config, first, "test", 35)
    assert retract(context.store, context.config, first, "prod").time_ns == 30
    assert retract(context.store, context.config, second, "prod", 20).time_ns == 20
    assert retract(context.store, context.config, None, "prod", 10).commit == first
    with pytest.raises(NoDeployment, match=second.short):
        retract(context.store, context.config, second, "prod", 41)
    with pytest.raises(NoDeployment, match="retracted already"):
        retract(context.store, context.config, first, "prod")
    with pytest.raises(UnknownTarget):
        retract(context.store, context.config, None, "other")
    assert live_at(context.store, None, "test").time_ns == 35
    assert [
        d.time_ns for d in list_deployments(context.store.fresh(), "prod") if not d.retracted
    ] == [40]


def test_what_is_refused(context: Handle) -> None:
    commit(context)
    for name in ("", "a b", "-x", "HEAD", "x\n"):
        with pytest.raises(InvalidName):
            deploy(context.store, context.config, resolve(context.store, "HEAD"), name)
    for moment in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(InvalidTime):
            deploy(context.store, context.config, resolve(context.store, "HEAD"), "prod", moment)
    with pytest.raises(UnknownRevision):
        deploy(context.store, context.config, resolve(context.store, "nothing"), "prod")
    with pytest.raises(UnknownRevision):
        deploy(context.store, context.config, CommitId(bytes(32)), "prod")
    assert context.store.fresh().targets() == []
    deploy(context.store, context.config, resolve(context.store, "HEAD"), "prod", -(1 << 63))
    deploy(context.store, context.config, resolve(context.store, "HEAD"), "prod", (1 << 63) - 1)
    assert (
        live_at(context.store, -(1 << 63)).sequence < live_at(context.store, (1 << 63) - 1).sequence
    )
    with pytest.raises(InvalidTime):
        live_at(context.store, 1 << 63)


def test_a_missing_predecessor_is_seen(context: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a look-up had passed one over."""
    id_ = commit(context, deploy="prod")
    made = Deployment(subject=id_, node=bytes(16), hybrid_ns=1, target="prod", time_ns=START)
    monkeypatch.setattr("mvc.store.publishing.publish.entry_before", lambda *_: None)
    context.store.publish(lambda: Entry("deploy", START, statements=(made,)))
    for ask in (lambda: live_at(context.store), lambda: list_deployments(context.store.fresh())):
        with pytest.raises(DamagedData, match="deployments of prod"):
            ask()


operations = st.lists(
    st.tuples(
        st.sampled_from(["deploy", "deploy now", "retract"]),
        st.sampled_from("ab"),
        st.integers(-5, 5),
        st.integers(-2, 3),
    ),
    max_size=25,
)


@settings(max_examples=80)
@given(operations, st.lists(st.integers(-7, 7), min_size=1, max_size=5))
def test_like_a_plain_list(
    tmp_path_factory: pytest.TempPathFactory,
    done: list[tuple[str, str, int, int]],
    asked: list[int],
) -> None:
    """Against a model: lists of [time, order, retracted, recorded at] for every target."""
    context = repository(tmp_path_factory.mktemp("list") / "r")
    commit(context)
    model: dict[str, list[list[int]]] = {}
    now = START
    for kind, target, moment, passed in done:
        now += passed
        advance(context, passed / SECOND)
        if kind != "retract":
            made = deploy(
                context.store,
                context.config,
                resolve(context.store, "HEAD"),
                target,
                START + moment if kind == "deploy" else None,
            )
            model.setdefault(target, []).append([made.time_ns, made.sequence, 0, now])
        elif any(not r[2] for r in model.get(target, [])):
            retract(context.store, context.config, None, target)
            max((r for r in model[target] if not r[2]), key=lambda r: r[1])[2] = 1
    for target, rows in model.items():
        for moment in (None, *(START + m for m in asked)):
            standing = [r for r in rows if not r[2]]
            right = max((r for r in standing if r[0] <= (moment or now)), default=None)
            immediate = [r for r in standing if r[0] == r[3]] if moment is None else []
            if immediate:
                newest = max(immediate, key=lambda r: r[1])
                dated = [r for r in standing if r[0] != r[3] and r[0] <= now]
                right = max([newest, *dated])
            try:
                assert live_at(context.store, moment, target).sequence == (right or [0, 0])[1]
            except NoDeployment:
                assert right is None
        listed = [
            [d.time_ns, d.sequence, int(d.retracted), d.recorded_ns]
            for d in list_deployments(context.store.fresh(), target)
        ]
        assert listed == sorted(rows)
    context.store.close()
