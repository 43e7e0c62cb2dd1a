"""Which versions rules give up."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import UnknownMetric, UnknownTarget, WrongUsage
from mvc.ids import CommitId, ManifestId, Root
from mvc.maintenance import forget
from mvc.maintenance.retention import Best, Retention, retained, select, too_few
from mvc.model.commit import Commit
from mvc.repo import refs
from mvc.repo.handle import Handle
from mvc.repo.oplog.undo import undo
from mvc.repo.statements import record
from tests.repo.publishing import SECOND, START, advance, commit, repository, set_ref

HOUR = 3600 * SECOND


def version(time_ns: int, number: int = 0, **metrics: float) -> Commit:
    ids = number.to_bytes(32, "big")
    return Commit(ManifestId(ids), Root(ids), (), "me", time_ns, 0, f"{number}", metrics)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch):
    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


def days_kept(times: list[str], rules: Retention) -> list[str]:
    versions = [version(at(text), n) for n, text in enumerate(times)]
    stay = retained(versions, rules, lambda commit: commit.metrics)
    return [text for text, v in zip(times, versions, strict=True) if v.id in stay]


TIMES = [
    "2026-11-18T10:00",
    "2026-11-19T09:10",
    "2026-11-19T09:50",
    "2026-11-19T23:30",
    "2026-11-21T00:10",
    "2026-11-21T08:00",
]


def test_last(zone) -> None:
    zone("UTC")
    assert days_kept(TIMES, Retention(last=2)) == TIMES[-2:]
    assert days_kept(TIMES, Retention(last=100)) == TIMES
    assert days_kept(TIMES[::-1], Retention(last=1)) == [TIMES[-1]]


def test_days_without_a_version_count_for_nothing(zone) -> None:
    zone("UTC")
    assert days_kept(TIMES, Retention(daily=2)) == [TIMES[3], TIMES[5]]
    assert days_kept(TIMES, Retention(daily=3)) == [TIMES[0], TIMES[3], TIMES[5]]


def test_a_day_is_that_of_the_local_zone(zone) -> None:
    zone("<+01>-1")  # one hour east: 23:30 is the next day
    assert days_kept(TIMES, Retention(daily=3)) == [TIMES[2], TIMES[3], TIMES[5]]


def test_hours(zone) -> None:
    zone("UTC")
    assert days_kept(TIMES, Retention(hourly=4)) == [TIMES[2], *TIMES[3:]]


def test_an_hour_that_is_repeated_is_two(zone) -> None:
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    # 2026-10-25: 02:30 happens at 00:30 and at 01:30 UTC.
    twice = ["2026-10-25T00:30", "2026-10-25T01:30"]
    assert days_kept(twice, Retention(hourly=2)) == twice
    assert days_kept(twice, Retention(daily=2)) == twice[1:]


def test_rules_add_up(zone) -> None:
    zone("UTC")
    assert days_kept(TIMES, Retention(last=1, daily=2, hourly=2)) == TIMES[3:]


def test_best() -> None:
    values = [0.5, 0.9, float("nan"), 0.9, 0.7]
    versions = [version(n, n, acc=value) for n, value in enumerate(values)]
    versions.append(version(5, 5))

    def best(*texts: str) -> list[int]:
        stay = retained(
            versions,
            Retention(best=tuple(Best.parse(text) for text in texts)),
            lambda commit: commit.metrics,
        )
        return [n for n, v in enumerate(versions) if v.id in stay]

    assert best("acc:1") == [3]  # of equals the newer one
    assert best("acc:2") == [1, 3]
    assert best("acc:99") == [0, 1, 3, 4]
    assert best("-acc:1") == [0]
    assert best("-acc:1", "acc:1") == [0, 3]
    assert best("loss:3") == []


@pytest.mark.parametrize(
    "text", ["", "acc", "acc:", "acc:0", "acc:x", ":3", "-:3", "acc:1e3", "a:-1"]
)
def test_bad_metric(text: str) -> None:
    with pytest.raises(WrongUsage):
        Best.parse(text)


def test_metric_with_colon_and_text() -> None:
    best = Best.parse("-val:loss:3")
    assert (best.metric, best.count, best.lowest) == ("val:loss", 3, True)
    assert Retention(last=2, best=(best,), unused="prod").text == (
        "--keep-last 2 --keep-best -val:loss:3 --unused prod"
    )
    with pytest.raises(WrongUsage):
        Retention(last=0)
    assert not Retention()


@given(st.lists(st.integers(0, 80), max_size=12), st.integers(1, 5), st.integers(1, 4))
def test_against_the_plain_definition(hours: list[int], hourly: int, daily: int) -> None:
    versions = [version(START + h * HOUR // 2, n) for n, h in enumerate(hours)]
    order = sorted(range(len(hours)), key=lambda n: (hours[n], n))
    expected = set(order[-1:])
    for span, count in ((HOUR, hourly), (24 * HOUR, daily)):
        last = {}
        for n in order:
            last[_local(versions[n].time_ns) // span] = n
        expected |= {last[key] for key in sorted(last)[-count:]}
    stay = retained(
        versions, Retention(last=1, hourly=hourly, daily=daily), lambda commit: commit.metrics
    )
    assert stay == {versions[n].id for n in expected}


def _local(time_ns: int) -> int:
    offset = datetime.fromtimestamp(time_ns // SECOND, UTC).astimezone().utcoffset()
    assert offset is not None
    return time_ns + int(offset.total_seconds()) * SECOND


# -- in a repository ------------------------------------------------------------------


@pytest.fixture
def context(tmp_path: Path) -> Handle:
    return repository(tmp_path / "r")


def line(context: Handle, count: int, **options) -> list[CommitId]:
    made = []
    for _ in range(count):
        advance(context, 60)
        made.append(commit(context, **options))
    return made


def gone(context: Handle, **rules) -> list[CommitId]:
    return [c.id for c in select(context.store, Retention(**rules))]


def test_what_is_named_stays(context: Handle) -> None:
    ids = line(context, 6)
    refs.create_tag(context.store, "v1", ids[1].hex())
    set_ref(context, "heads/side", ids[2])
    assert gone(context, last=1) == [ids[0], ids[3], ids[4]]
    set_ref(context, "HEAD", ids[3])
    assert gone(context, last=1) == [ids[0], ids[4]]


def test_what_is_live_or_will_be_stays(context: Handle) -> None:
    ids = line(context, 5)
    record.deploy(context.store, context.config, ids[0], "prod")
    advance(context, 1)
    record.deploy(context.store, context.config, ids[1], "prod")
    record.deploy(
        context.store, context.config, ids[2], "edge", context.store.clock.now_ns() + HOUR
    )
    assert gone(context, last=1) == [ids[0], ids[3]]
    record.retract(context.store, context.config, None, "edge")
    assert gone(context, last=1) == [ids[0], ids[2], ids[3]]


def test_unused(context: Handle) -> None:
    ids = line(context, 6)
    for n in (0, 1, 2):
        record.deploy(context.store, context.config, ids[n], "prod")
        advance(context, 1)
    record.deploy(context.store, context.config, ids[3], "edge")
    record.retract(context.store, context.config, ids[1], "prod")
    # What was live on another target is unused on this one, unless it is live there now.
    assert gone(context, unused="prod") == [ids[1], ids[4]]
    assert gone(context, unused="prod", last=2) == [ids[1]]
    assert gone(context, last=2) == [ids[0], ids[1]]
    with pytest.raises(UnknownTarget):
        gone(context, unused="nowhere")


def test_what_nothing_leads_to_counts_for_nothing(context: Handle) -> None:
    ids = line(context, 4)
    undo(context.store, context.config)
    undo(context.store, context.config)
    assert gone(context, last=2) == []
    assert gone(context, last=1) == [ids[0]]


def test_what_is_forgotten_counts_no_more(context: Handle) -> None:
    ids = line(context, 5)
    forget.forget(context.store, context.config, forget.choose(context.store, [ids[3], ids[2]]))
    assert gone(context, last=2) == [ids[0]]


def measured(context: Handle, *values: dict[str, float]) -> list[CommitId]:
    """Versions with these metrics, and one that HEAD is on without any."""
    made = []
    for metrics in (*values, {}):
        advance(context, 60)
        made.append(commit(context, metrics=metrics))
    return made


def test_a_metric_that_no_version_has_is_refused(context: Handle) -> None:
    ids = measured(context, {"acc": 0.5}, {"acc": 0.9, "loss": 1.0}, {"nan": float("nan")})
    for text in ("typo:1", "-typo:1", "nan:2"):
        with pytest.raises(UnknownMetric) as caught:
            gone(context, best=(Best.parse("acc:1"), Best.parse(text)), last=1)
        assert caught.value.exit_code == 3 and caught.value.hint is not None
    with pytest.raises(UnknownMetric, match=r"the metric ac(\n|$)") as caught:
        gone(context, best=(Best.parse("ac:1"),))
    assert caught.value.hint == "did you mean acc?"
    assert gone(context, best=(Best.parse("acc:1"),)) == [ids[0], ids[2]]
    # A metric of versions that are forgotten keeps nothing any more.
    forget.forget(context.store, context.config, forget.choose(context.store, [ids[1]]))
    with pytest.raises(UnknownMetric):
        gone(context, best=(Best.parse("loss:1"),))


def test_without_any_metric(context: Handle) -> None:
    assert gone(context, best=(Best.parse("acc:1"),)) == []
    line(context, 2)
    with pytest.raises(UnknownMetric) as caught:
        gone(context, best=(Best.parse("acc:1"),))
    assert "mvc commit --metric" in str(caught.value.hint)


def test_too_few_with_a_metric_are_told(context: Handle) -> None:
    ids = measured(context, {"acc": 0.5}, {}, {"acc": 0.9}, {"loss": 1.0})

    def short(*texts: str) -> list[tuple[str, int, tuple[CommitId, ...]]]:
        rules = Retention(best=tuple(Best.parse(text) for text in texts))
        chosen = forget.choose(context.store, rules=rules)
        assert chosen.short == too_few(context.store, rules, chosen.commits)
        return [(s.best.text, s.have, s.without) for s in chosen.short]

    assert short("acc:2") == []  # two are kept, which is what was asked for
    assert short("acc:3") == [("acc:3", 2, (ids[3], ids[1]))]
    assert short("acc:2", "-loss:2") == [("-loss:2", 1, (ids[1],))]
