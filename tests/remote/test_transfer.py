"""A transfer between two open repositories: what it takes, what it costs, what arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import StateForgotten
from mvc.ids import CommitId
from mvc.remote.statements import purged_versions
from mvc.remote.transport import Wanted
from mvc.testing import HookedFS, open_quietly
from tests.histories import CheckedHistory, weights
from tests.remote.kit.carrying import carry
from tests.remote.kit.same import assert_clean, known, states


@pytest.fixture
def source(tmp_path: Path, mixed_history: Callable[[Path], Path]) -> Path:
    return mixed_history(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Repository]:
    Repository.init(tmp_path / "target").close()
    with open_quietly(tmp_path / "target") as repo:
        yield repo


@pytest.fixture
def history(tmp_path: Path) -> Iterator[CheckedHistory]:
    made = CheckedHistory(tmp_path / "history")
    yield made
    made.close()


def assert_arrived(source: Repository, target: Repository, ids: Sequence[CommitId] = ()) -> None:
    """All versions are the same, and all states; what arrived is sound."""
    ids = ids or known(source)
    assert [target.version(id_) for id_ in ids] == [source.version(id_) for id_ in ids]
    assert states(target, ids) == states(source, ids)
    assert_clean(target)


def stored_bytes(repo: Repository, ids: Sequence[CommitId]) -> int:
    """Bytes of the records of the entries that published these versions."""
    snapshot = repo.handle.store.snapshot
    entries = [recorded for id_ in ids for recorded in snapshot.publishing(id_)]
    return sum(region.length for each in entries for region in each.entry.regions)


def test_a_history_of_all_kinds_arrives(source: Path, target: Repository) -> None:
    with open_quietly(source) as repo:
        took = carry(repo, target)
        assert_arrived(repo, target)
        assert took.tries == 1
        again = carry(repo, target, Wanted(after=took.place))
        assert again.wire < 256
        assert again.last is not None
        assert again.last.begun == 0


def test_a_history_of_all_kinds_arrives_in_small_slices(source: Path, target: Repository) -> None:
    with open_quietly(source) as repo:
        took = carry(repo, target, most=1)
        assert took.slices > 20
        assert_arrived(repo, target)


def test_it_passes_on_from_repository_to_repository(
    source: Path, target: Repository, tmp_path: Path
) -> None:
    Repository.init(tmp_path / "third").close()
    with open_quietly(source) as repo, open_quietly(tmp_path / "third") as third:
        carry(repo, target)
        ids = known(repo)
        wanted = Wanted(versions=tuple(ref.commit for ref in repo.refs()))
        assert carry(target, third, wanted).tries == 1
        there = [id_ for id_ in ids if third.handle.store.snapshot.has_commit(id_)]
        assert len(there) > 30
        assert_arrived(repo, third, there)


def test_one_version_more_costs_its_records(history: CheckedHistory, target: Repository) -> None:
    for _ in range(4):
        history.commit()
    place = carry(history.repo, target).place
    made = history.commit()
    took = carry(history.repo, target, Wanted(after=place, have=frozenset(history.ids[:4])))
    assert took.wire <= 1.02 * stored_bytes(history.repo, [made]) + (32 << 10)
    assert (took.slices, took.tries) == (1, 1)
    assert_arrived(history.repo, target)


def test_the_next_commits_cost_the_same(history: CheckedHistory, tmp_path: Path) -> None:
    for _ in range(37):
        history.commit()
    with mvc.clone(str(history.root), tmp_path / "clone") as clone:
        here, there = (_next_twenty(repo) for repo in (clone, history.repo))
    assert here[0] <= 1.05 * there[0]
    assert here[1] <= 1.05 * there[1]


def _next_twenty(repo: Repository) -> tuple[int, int]:
    """Bytes of the next twenty versions, and the deltas to all of them together."""
    ids = [repo.commit(weights(step)).id for step in range(37, 57)]
    graph = repo.handle.store.graph
    contents = [each.id for id_ in ids for each in repo.manifest(id_).entries[0].contents]
    return stored_bytes(repo, ids), sum(graph.path(id_).depth for id_ in contents)


@pytest.mark.parametrize("wanted", ["none", 0, 1, 3])
def test_states_that_are_not_wanted_stay_away(
    source: Path, target: Repository, wanted: int | str
) -> None:
    with open_quietly(source) as repo:
        carry(repo, target, Wanted(states=wanted))  # type: ignore[arg-type]
        ids = known(repo)
        assert [target.version(id_) for id_ in ids] == [repo.version(id_) for id_ in ids]
        there, here = states(repo, ids), states(target, ids)
        kept = [id_ for id_ in ids if here[id_] == there[id_] != "state-forgotten"]
        assert all(here[id_] == "state-forgotten" for id_ in ids if id_ not in kept)
        assert bool(kept) == (wanted != "none")
        assert_clean(target)


def test_a_state_comes_later(history: CheckedHistory, target: Repository) -> None:
    for _ in range(9):
        history.commit()
    place = carry(history.repo, target, Wanted(states=1)).place
    with pytest.raises(StateForgotten):
        target.manifest(history.ids[3])
    have = frozenset(history.ids[-1:])
    carry(history.repo, target, Wanted(after=place, have=have, restore=(history.ids[3],)))
    assert states(target, history.ids[3:4]) == states(history.repo, history.ids[3:4])
    assert_clean(target)
    target.storage.gc(grace="0")
    assert states(target, history.ids[3:4]) == states(history.repo, history.ids[3:4])
    assert_clean(target)


def test_versions_on_a_state_that_did_not_come(history: CheckedHistory, target: Repository) -> None:
    for _ in range(5):
        history.commit()
    place = carry(history.repo, target, Wanted(states="none")).place
    made = [history.commit() for _ in range(2)]
    took = carry(history.repo, target, Wanted(after=place, have=frozenset(history.ids[4:5])))
    assert took.tries <= 3
    assert states(target, made) == states(history.repo, made)
    assert_clean(target)


def test_a_state_forgotten_by_name_goes_nowhere(
    history: CheckedHistory, target: Repository
) -> None:
    for _ in range(6):
        history.commit()
    history.forget(history.ids[2])
    carry(history.repo, target)
    assert_arrived(history.repo, target)
    objects = history.objects[history.ids[2]]
    only = objects - set().union(*(history.objects[id_] for id_ in history.there))
    assert only
    assert not [id_ for id_ in only if target.handle.store.graph.holds(id_)]


def test_a_state_that_the_receiver_forgot_by_name_stays_away(
    history: CheckedHistory, target: Repository
) -> None:
    for _ in range(3):
        history.commit()
    place = carry(history.repo, target).place
    made = history.ids[1]
    target.storage.forget([made])
    target.storage.gc(grace="0")
    assert purged_versions(target.handle.store.fresh()) == {made}
    more = [history.commit() for _ in range(3)]
    carry(history.repo, target, Wanted(after=place, have=frozenset(history.ids[2:3])))
    carry(history.repo, target)
    objects = history.objects[made]
    only = objects - set().union(*(history.objects[id_] for id_ in history.ids if id_ != made))
    assert only
    assert not [id_ for id_ in only if target.handle.store.graph.holds(id_)]
    assert states(target, more) == states(history.repo, more)
    assert_clean(target)


def test_an_undone_version_travels_once_it_is_back(
    history: CheckedHistory, target: Repository
) -> None:
    for _ in range(3):
        history.commit()
    history.repo.undo()
    place = carry(history.repo, target).place
    assert not target.handle.store.snapshot.has_commit(history.ids[2])
    history.repo.undo()
    carry(history.repo, target, Wanted(after=place, have=frozenset(history.ids[:2])))
    assert_arrived(history.repo, target)


def test_a_repacked_and_collected_source(history: CheckedHistory, target: Repository) -> None:
    for step in range(8):
        history.commit()
        if step == 3:
            place = carry(history.repo, target).place
    history.repo.storage.repack(interval=3)
    history.repo.storage.forget(keep_last=5)
    history.repo.storage.gc(grace="0")
    took = carry(history.repo, target, Wanted(after=place, have=frozenset(history.ids[3:4])))
    assert took.tries == 1
    new = history.ids[4:]
    assert states(target, new) == states(history.repo, new)
    assert_clean(target)


def test_collecting_at_the_source_under_a_transfer(
    history: CheckedHistory, target: Repository
) -> None:
    for _ in range(8):
        history.commit()
    history.repo.branch("side", history.ids[2])

    def between(number: int) -> None:
        if number == 3:
            history.repo.storage.forget(history.ids[4:5])
            history.repo.storage.gc(grace="0")

    carry(history.repo, target, most=1, between=between)
    rest = [id_ for id_ in history.ids if id_ != history.ids[4]]
    assert states(target, rest) == states(history.repo, rest)
    assert_clean(target)


def test_collecting_at_the_receiver_under_a_transfer(
    history: CheckedHistory, target: Repository
) -> None:
    for _ in range(8):
        history.commit()

    def between(number: int) -> None:
        if number in (2, 5):
            target.storage.repack(interval=2)
            target.storage.gc()

    carry(history.repo, target, most=1, between=between)
    assert_arrived(history.repo, target)


def test_an_interrupted_transfer_goes_on(history: CheckedHistory, target: Repository) -> None:
    for _ in range(8):
        history.commit()
    whole = carry_size(history)

    class Cut(Exception):
        pass

    def between(number: int) -> None:
        if number == 4:
            raise Cut

    from tests.remote.kit.carrying import Carried

    took = Carried()
    with pytest.raises(Cut):
        carry(history.repo, target, most=1, between=between, took=took)
    again = carry(history.repo, target, Wanted(after=took.place), most=1)
    assert again.slices + took.slices <= whole + 1
    assert_arrived(history.repo, target)


def carry_size(history: CheckedHistory) -> int:
    """How many slices of one version the history has."""
    from mvc.remote.sending.sender import send

    return len(list(send(history.repo.handle.store, history.repo.handle.config, Wanted(), most=1)))


def test_tensors_of_several_pieces(history: CheckedHistory, target: Repository) -> None:
    state = np.random.default_rng(1).integers(0, 3, 70 << 20, dtype=np.int8)
    history.repo.commit({"w": state, "b": np.arange(5)})
    state = state.copy()
    state[:: 1 << 20] += 1
    history.repo.commit({"w": state, "b": np.arange(5)})
    carry(history.repo, target)
    assert_arrived(history.repo, target)


@pytest.mark.parametrize("moment", ["write", "read", "sync"])
def test_what_it_builds_on_is_collected_meanwhile(
    history: CheckedHistory, tmp_path: Path, moment: str
) -> None:
    """While records are written, while they are proven, and once they are."""
    for _ in range(3):
        history.commit()
    root = tmp_path / "target"
    Repository.init(root).close()
    with open_quietly(root) as target:
        place = carry(history.repo, target).place
    made = history.commit()
    gone, done = history.ids[1:3], list[str]()

    def collect(_: int, op: str, path: Path) -> None:
        done.append(op if path.suffix == ".pack" and (op == "write" or done) else "")
        if done[-1] == moment and done.count(moment) == 1:
            with Repository.open(root) as other:
                other.storage.forget(gone)
                other.storage.gc(grace="0")

    with open_quietly(root, fs=HookedFS(collect)) as target:
        carry(history.repo, target, Wanted(after=place, have=frozenset(gone)))
        assert moment in done
        assert states(target, [made]) == states(history.repo, [made])
        assert_clean(target)
        lost = set().union(*(history.objects[id_] for id_ in gone))
        lost -= history.objects[made] | history.objects[history.ids[0]]
        assert not [id_ for id_ in lost if target.handle.store.graph.holds(id_)]
