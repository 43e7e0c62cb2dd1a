"""Statements of several repositories, taken over in any order, give the same answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mvc.errors import (
    HistoryMissing,
    InvalidName,
    MvcError,
    NoDeployment,
    RemoteRefused,
)
from mvc.ids import CommitId, StatementId
from mvc.limits import MAX_AHEAD_NS
from mvc.maintenance.fsck.fsck import fsck
from mvc.maintenance.gc import collect
from mvc.model.statement import (
    AnnotationStatement,
    Deployment,
    Retraction,
    Statement,
    Tombstone,
)
from mvc.remote.statements import about, admit, statements_to_send
from mvc.repo.handle import Handle
from mvc.repo.lookup.commits import get
from mvc.repo.oplog.undo import undo
from mvc.repo.revisions import resolve
from mvc.repo.statements.annotations import Annotations, annotate
from mvc.repo.statements.live import (
    Deployed,
    list_deployments,
    live_at,
    live_between,
    of_commit,
    succession,
)
from mvc.repo.statements.record import deploy, retract
from mvc.repo.statements.rollback import rollback
from mvc.store.journal.entries import Entry, StateMark
from mvc.testing import FixedClock
from tests.oracle import reader
from tests.remote.syncing import duplicate, sync
from tests.repo.publishing import SECOND, START, advance, commit, repository

TARGETS = "prod", "edge"
ELSEWHERE = CommitId(b"e" * 32)


def shown(context: Handle, deployed: Deployed) -> tuple[object, ...]:
    """All of a deployment that is the same in every repository."""
    back = None
    if deployed.returns_to is not None:
        names = {d.sequence: d.id for d in list_deployments(context.store.fresh(), deployed.target)}
        back = names[deployed.returns_to]
    return (
        deployed.id, deployed.target, deployed.time_ns, deployed.recorded_ns, deployed.hybrid_ns,
        deployed.commit, deployed.retracted, deployed.retracted_ns, deployed.retracted_by,
        deployed.retracted_reason, deployed.clock_back, deployed.author, deployed.reason, back,
    )  # fmt: skip


def answers(context: Handle) -> Iterator[object]:
    """What a repository says of its deployments, whatever the numbers of its entries."""
    every = list_deployments(context.store.fresh())
    yield [shown(context, each) for each in every]
    for target in sorted({each.target for each in every}):
        snapshot, now = context.store.fresh(), set_clock(context, START + 5 * SECOND)
        yield [d.id for d in succession(snapshot, target, now)]
        for time_ns in [None, *range(START - 25 * SECOND, START + 25 * SECOND, 3 * SECOND)]:
            try:
                yield live_at(context.store, time_ns, target).id
            except NoDeployment:
                yield None
        spans = live_between(
            context.store.snapshot, START - 100 * SECOND, START + 100 * SECOND, target
        )
        yield [(s.deployment.id, s.until_ns) for s in spans]
    for id_ in sorted({each.commit for each in every}):
        yield [d.id for d in of_commit(context.store.fresh(), id_)]


def set_clock(context: Handle, time_ns: int) -> int:
    clock = context.store.clock
    assert isinstance(clock, FixedClock)
    clock.time_ns = time_ns
    return time_ns


def step(context: Handle, draw: random.Random, ids: list[CommitId]) -> None:
    """One thing that a person does, at a time that may be before that of the last."""
    advance(context, draw.choice([0, 0, 1, 2, -3]))
    target, rev = draw.choice(TARGETS), draw.choice(ids)
    kind = draw.choice(["deploy", "deploy", "dated", "dated", "retract", "rollback"])
    with suppress(MvcError):
        if kind == "deploy":
            deploy(context.store, context.config, rev, target, reason=draw.choice(["", "why"]))
        elif kind == "dated":
            at = START + draw.randint(-6, 6) * 3 * SECOND
            deploy(context.store, context.config, rev, target, at)
        elif kind == "retract":
            retract(
                context.store,
                context.config,
                draw.choice([None, rev]),
                target,
                reason=draw.choice(["", "no"]),
            )
        else:
            rollback(context.store, context.config, target)


def histories(tmp_path: Path, draw: random.Random) -> list[Handle]:
    """Three repositories, of which two are copies, with a common beginning."""
    first = repository(tmp_path / "0")
    ids = [commit(first) for _ in range(3)]
    for _ in range(draw.randint(0, 6)):
        step(first, draw, ids)
    now = first.store.clock.now_ns()
    found = [first, duplicate(first, tmp_path / "1", now + draw.randint(-9, 9) * SECOND)]
    other = repository(tmp_path / "2")
    sync(first, other)
    found.append(other)
    for _ in range(draw.randint(4, 16)):
        step(draw.choice(found), draw, ids)
        if draw.random() < 0.1:
            sync(*draw.sample(found, 2))
    return found


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 300))]
)
def test_any_order_of_syncing_gives_the_same_answers(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    found = histories(tmp_path, draw)
    pairs = [(a, b) for a in found for b in found if a is not b]
    for _ in range(2):  # twice: what the last one brings must reach the first as well
        draw.shuffle(pairs)
        for source, to in pairs:
            sync(source, to)
    first = list(answers(found[0]))
    for other in found[1:]:
        assert list(answers(other)) == first
    ends = [context.store.fresh().position.sequence for context in found]
    for source, to in pairs:
        sync(source, to)
    assert ends == [context.store.fresh().position.sequence for context in found], "nothing was new"
    for context in found:
        assert not [p for p in fsck(context.store).problems if p.kind in {"journal", "reference"}]
        _read_by_the_document(context)
    _roll_back(found)


def _read_by_the_document(context: Handle) -> None:
    """The answers of a reader that knows docs/format.md alone."""
    oracle = reader.Repository(context.store.folder)
    assert all(each.linked for each in oracle.deployments)
    names = {each.id: (each.sequence, each.dead) for each in oracle.deployments}
    assert names == {
        d.id: (d.sequence, d.retracted) for d in list_deployments(context.store.fresh())
    }
    now = set_clock(context, START + 5 * SECOND)
    for target in {each.target for each in oracle.deployments}:
        for time_ns in [None, *range(START - 25 * SECOND, START + 25 * SECOND, 3 * SECOND)]:
            try:
                ours = live_at(context.store, time_ns, target).commit
            except NoDeployment:
                ours = None
            assert oracle.live(target, time_ns, now) == ours


def _roll_back(found: list[Handle]) -> None:
    """A rollback goes to the same version in each, then and after it reached the others."""
    for target in TARGETS:
        done = []
        for context in found:
            set_clock(context, START + 200 * SECOND)
            try:
                made = rollback(context.store, context.config, target)
                done.append((made.commit, made.left))
            except MvcError as error:
                done.append((type(error), error.message))
        assert len(set(done)) == 1


def test_annotations_converge(tmp_path: Path) -> None:
    draw = random.Random(1)
    found = histories(tmp_path, draw)
    ids = [c.id for r in found[0].store.fresh().entries() for c in r.entry.commits]
    for n in range(12):
        context = draw.choice(found)
        advance(context, 1)
        metrics = {"m": float("nan") if n % 5 == 0 else draw.random()}
        annotate(
            context.store,
            context.config,
            draw.choice(ids),
            metrics=metrics,
            params={},
            note=f"é {n}",
        )
    undone = annotate(
        found[0].store, found[0].config, ids[0], metrics={}, params={"a": "b"}, note="wrong"
    )
    taken_back = undo(found[0].store, found[0].config, undone.number).number
    for _ in range(2):
        for source, to in ((a, b) for a in found for b in found if a is not b):
            sync(source, to)
    for id_ in ids:
        seen = [
            [
                (a.author, a.time_ns, str(a.metrics), a.note)
                for a in Annotations(each.store.fresh()).of(id_)
            ]
            for each in found
        ]
        assert seen[0] == seen[1] == seen[2]
        assert all(row[-1] != "wrong" for row in seen[1])
    undo(found[0].store, found[0].config, taken_back)  # it counts again, and now reaches the others
    for other in found[1:]:
        sync(found[0], other)
        assert any(a.note == "wrong" for a in Annotations(other.store.fresh()).of(ids[0]))


def test_of_several_retractions_the_first_in_order_is_named_everywhere(tmp_path: Path) -> None:
    """Who retracted, when and why follows from the statements alone."""
    context = repository(tmp_path / "r")
    made = deploy(context.store, context.config, commit(context), "prod")
    other = duplicate(context, tmp_path / "other", START + 9 * SECOND)
    retract(other.store, other.config, None, "prod", reason="late")
    advance(context, 5)
    retract(context.store, context.config, None, "prod", reason="early")
    for source, to in ((other, context), (context, other)):
        sync(source, to)
    for each in (context, other):
        (now,) = list_deployments(each.store.fresh())
        assert (now.id, now.retracted_reason) == (made.id, "early")
        assert len(each.store.fresh().about(Retraction, made.id)) == 2


def test_a_deployment_names_what_it_replaces(tmp_path: Path) -> None:
    """What was live when it was recorded; of a dated one, at its time; the same everywhere."""
    context = repository(tmp_path / "r")
    a, b = commit(context), commit(context)
    other = duplicate(context, tmp_path / "other", START)
    first = deploy(context.store, context.config, a, "prod")
    advance(context, 1)
    second = deploy(context.store, context.config, b, "prod")
    advance(context, 1)
    back = rollback(context.store, context.config, "prod")
    advance(context, 1)
    dated = deploy(context.store, context.config, b, "prod", first.time_ns)
    early = deploy(context.store, context.config, b, "prod", first.time_ns - SECOND)
    assert (
        first.replaces is None and deploy(context.store, context.config, b, "edge").replaces is None
    )
    assert (second.replaces, back.replaces, dated.replaces) == (first.id, second.id, first.id)
    assert early.replaces is None
    retract(context.store, context.config, None, "prod", back.time_ns)
    (taken,) = (s for r in context.store.fresh().entries() for s in r.entry.of(Retraction))
    assert taken.replaces == back.id
    sync(context, other)
    names = {each.id: each.replaces for each in list_deployments(context.store.fresh())}
    assert {each.id: each.replaces for each in list_deployments(other.store.fresh())} == names
    read = reader.Repository(other.store.folder)
    said = {s.replaces for s in read.statements if s.kind < 2}
    assert said == {b"", first.id, second.id, back.id}


# -- what is refused, or passed over -----------------------------------------------------------


def sent(context: Handle, **other: object) -> Deployment:
    """A deployment of another repository, with one field replaced."""
    now = context.store.clock.now_ns()
    made = Deployment(
        subject=commit(context), author="eve", node=b"n" * 16, recorded_ns=now, hybrid_ns=now,
        target="prod", time_ns=now,
    )  # fmt: skip
    return replace(made, **other)


def taken(context: Handle, *statements: Statement) -> Entry:
    """What comes of them here."""

    def make() -> Entry:
        admitted = admit(context.store, statements, ())
        return Entry("fetch", context.store.now_ns(), statements=tuple(admitted.statements))

    return context.store.publish(make).entry


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("recorded_ns", START + MAX_AHEAD_NS + 1, RemoteRefused),
        ("hybrid_ns", START + MAX_AHEAD_NS + 1, RemoteRefused),
        ("target", "../prod", InvalidName),
        ("target", "a" * 201, InvalidName),
        ("subject", b"c" * 32, HistoryMissing),
    ],
)
def test_a_deployment_that_cannot_be_is_refused(
    tmp_path: Path, field: str, value: object, kind: type[MvcError]
) -> None:
    context = repository(tmp_path / "r")
    made = sent(context, **{field: value})
    number = deploy(context.store, context.config, resolve(context.store, "main"), "prod").sequence
    with pytest.raises(kind):
        taken(context, made)
    (there,) = list_deployments(context.store.fresh())
    assert (there.sequence, live_at(context.store, None, "prod").sequence) == (number, number)
    assert (
        deploy(context.store, context.config, resolve(context.store, "main"), "prod").hybrid_ns
        == START + 1
    ), "no clock has moved"


def test_an_operation_a_day_ahead_is_refused_and_one_less_is_not(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    ahead = sent(context, recorded_ns=START + MAX_AHEAD_NS + 1)
    with pytest.raises(RemoteRefused, match="over a day ahead of the receiver's clock"):
        taken(context, ahead)
    late = sent(context, recorded_ns=START + MAX_AHEAD_NS, hybrid_ns=START + MAX_AHEAD_NS)
    assert taken(context, late).of(Deployment)
    here = deploy(context.store, context.config, resolve(context.store, "main"), "prod")
    assert (here.hybrid_ns, here.recorded_ns) == (START + MAX_AHEAD_NS + 1, START)
    assert here.clock_back, "what came from there was recorded later"
    assert live_at(context.store, None, "prod").id == here.id


def test_two_deployments_on_one_target_in_one_operation_are_refused(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    made = sent(context)
    with pytest.raises(RemoteRefused, match="deploys to prod twice"):
        taken(context, made, replace(made, node=b"m" * 16))


def test_of_versions_that_are_not_here_nothing_is_said(tmp_path: Path) -> None:
    """Their retractions and annotations come when the versions do."""
    there, here = repository(tmp_path / "a"), repository(tmp_path / "b")
    known, other = commit(there), commit(there, branch="side")
    made = deploy(there.store, there.config, other, "prod")
    retract(there.store, there.config, other, "prod")
    annotate(there.store, there.config, other, metrics={}, params={}, note="theirs")
    snapshot = there.store.fresh()
    entries = {r.entry.operation: r for r in snapshot.entries()}
    for kind in ("deploy", "retract", "annotate"):
        assert statements_to_send(snapshot, entries[kind], {known}.__contains__) == ()
    for kind in ("retract", "annotate"):
        assert admit(here.store, statements_to_send(snapshot, entries[kind]), ()).statements == []
    assert [snapshot.entry(at).entry.operation for at in about(snapshot, {other})] == [
        "deploy", "retract", "annotate",
    ]  # fmt: skip
    sync(there, here)
    assert [(d.commit, d.retracted) for d in list_deployments(here.store.fresh())] == [
        (made.commit, True)
    ]


def test_what_a_retraction_says_of_its_subject_is_checked(tmp_path: Path) -> None:
    """Of another target, or of what is no deployment or annotation, it counts for nothing."""
    context = repository(tmp_path / "r")
    id_ = commit(context)
    made = deploy(context.store, context.config, id_, "prod")
    annotate(context.store, context.config, id_, metrics={}, params={}, note="right")
    ((_, noted),) = context.store.fresh().about(AnnotationStatement, id_)
    wrong = [
        Retraction(subject=made.id, node=b"n" * 16, target="edge"),
        Retraction(subject=made.id, node=b"n" * 16),
        Retraction(subject=noted.id, node=b"n" * 16, target="prod"),
        Retraction(subject=id_, node=b"n" * 16, target="prod"),
    ]
    assert taken(context, *wrong).statements == ()
    assert not any(each.retracted for each in list_deployments(context.store.fresh()))
    assert len(taken(context, Retraction(subject=noted.id, node=b"n" * 16)).statements) == 1
    assert Annotations(context.store.fresh()).of(id_) == ()


def test_fsck_finds_statements_that_cannot_be(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    made, store = sent(context), context.store
    other = Retraction(subject=b"x" * 32, node=b"n" * 16, target="edge")
    store.publish(lambda: Entry("deploy", START, statements=(made,)))
    store.publish(lambda: Entry("deploy", START, statements=(made, other)))
    marks = (StateMark(ELSEWHERE, "stored"),)
    store.publish(lambda: Entry("fetch", START, states=marks))
    found = [p.message for p in fsck(context.store).problems if p.kind == "reference"]
    for words in (
        "a deployment is recorded twice",
        "a retraction is about a statement that is not recorded",
        f"commit {ELSEWHERE.short} is not in the repository",
    ):
        assert any(words in each for each in found), words


# -- any history -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_same_statements_give_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Three repositories; versions, statements, undos, tombstones, gc, exchanges in any order."""
    draw, root = random.Random(seed), tmp_path_factory.mktemp("any")
    found = histories(root, draw)
    ids = [c.id for r in found[0].store.fresh().entries() for c in r.entry.commits]
    for _ in range(draw.randint(3, 12)):
        context, id_ = draw.choice(found), draw.choice(ids)
        advance(context, draw.choice([0, 1, -2]))
        kind = draw.choice(["annotate", "undo", "tombstone", "rule", "gc", "step", "sync", "sync"])
        with suppress(MvcError):
            if kind == "annotate":
                annotate(
                    context.store,
                    context.config,
                    id_,
                    metrics={"m": draw.random()},
                    params={},
                    note="",
                )
            elif kind == "undo":
                undo(context.store, context.config)
            elif kind in {"tombstone", "rule"}:
                stone = Tombstone(subject=id_, root=get(context.store.snapshot, id_).root)
                by_rule = (StateMark(id_, "forgotten"),)
                is_rule = kind == "rule"
                context.store.publish(
                    lambda c=context, s=stone, r=by_rule, is_rule=is_rule: Entry(
                        "forget", c.store.now_ns(), statements=() if is_rule else (s,),
                        states=r if is_rule else (),
                    )
                )  # fmt: skip
            elif kind == "gc":
                collect(context.store, context.config, grace=timedelta(draw.choice([0, 1])))
            elif kind == "step":
                step(context, draw, ids)
            else:
                sync(*draw.sample(found, 2))
    pairs = [(a, b) for a in found for b in found if a is not b]
    for _ in range(3):
        draw.shuffle(pairs)
        for source, to in pairs:
            sync(source, to)
    admitted = [_admitted(context) for context in found]
    assert admitted[0] == admitted[1] == admitted[2]
    told_of = [_all_answers(context, ids) for context in found]
    assert told_of[0] == told_of[1] == told_of[2]
    for context in found:
        assert not [p for p in fsck(context.store).problems if p.kind in {"journal", "reference"}]
        assert {s.id for s in reader.Repository(context.store.folder).statements} == admitted[0]


def _admitted(context: Handle) -> set[StatementId]:
    return {s.id for r in context.store.fresh().entries() for s in r.entry.statements}


def _all_answers(context: Handle, ids: list[CommitId]) -> list[object]:
    annotations, snapshot = Annotations(context.store.fresh()), context.store.fresh()
    noted = [[(a.author, a.time_ns, a.metrics) for a in annotations.of(id_)] for id_ in ids]
    return [*answers(context), noted, [snapshot.about(Tombstone, id_) != [] for id_ in ids]]
