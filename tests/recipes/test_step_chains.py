"""What versions that steps made need: kept, sent along, or refused with the version that needs it.

The histories are made by hand; nothing trains.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mvc
import mvc.recipes as recipes
from mvc.api import Gone, Stored
from mvc.errors import NotTrusted, RefConflict, StateForgotten, WeightsDropped
from mvc.ids import CommitId
from mvc.recipes.recipe import Batches, segment
from mvc.remote.receiving.receiver import receive
from mvc.remote.sending.sender import send
from mvc.remote.transport import Wanted
from mvc.repo.lookup.availability import Dropped
from tests.recipes import by_hand
from tests.recipes.by_hand import drop, full_state, prove, stepped

SIZE = 300, 100


def state(number: int) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(number).standard_normal(SIZE, np.float32)}


class Chain:
    """A full state, five versions that steps made, a full state, and a version without recipe."""

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, str(root / "server")
        self.server = mvc.Repository.init(self.url, bare=True)
        self.repo = mvc.Repository.init(root / "author")
        self.repo.remotes.add("origin", self.url)
        (root / "digits").write_bytes(np.random.default_rng(99).bytes(100_000))
        self.data = recipes.add_data(self.repo, root / "digits").version
        self.start = at = full_state(self.repo, state(0), self.data)
        self.steps: list[CommitId] = []
        self._open = [self.server, self.repo]
        for number in range(1, 6):
            at = stepped(self.repo, state(number), self.batches(at), self.data)
            self.steps.append(at)
        self.end = full_state(self.repo, state(6), self.data, last=self.batches(at))
        self.tip = self.repo.commit(state(7)).id

    def batches(self, before: CommitId) -> Batches:
        rows = np.random.default_rng(0).integers(0, 50_000, 64)
        return Batches(self.start, before, (" ".join(map(str, rows)),))

    def clone(self, name: str, **options: object) -> mvc.Repository:
        made = mvc.clone(self.url, self.root / name, **options)  # type: ignore[arg-type]
        self._open.append(made)
        return made

    def close(self) -> None:
        for repo in self._open:
            repo.close()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    made = Chain(tmp_path)
    yield made
    made.close()


def is_whole(repo: mvc.Repository, version: CommitId) -> bool:
    """Whether a version without weights has all that makes them."""
    found = repo.availability(version)
    assert isinstance(found, Dropped)
    behind = {found.commit, *segment(repo, version), *repo.version(version).needs}
    kept = all(not isinstance(repo.availability(each), Gone) for each in behind)
    return kept and repo.storage.fsck(full=True).sound


@pytest.mark.parametrize("dropped", [(2,), (2, 4), (0, 1, 2), (0, 2), (0, 1, 2, 3, 4)])
def test_all_versions_before_one_that_gave_up_its_weights_stay(
    chain: Chain, dropped: tuple[int, ...]
) -> None:
    """Also where they have theirs, and where a version between them has."""
    repo, steps = chain.repo, chain.steps
    drop(repo, *(steps[at] for at in dropped))
    for version in (chain.start, chain.data, *steps[: dropped[-1]]):
        with pytest.raises(RefConflict, match=f"{version.short} is needed to retrain"):
            repo.storage.forget(version)
    for at in dropped:
        repo.tag(f"used{at}", steps[at])
    gone = {each.id for each in repo.storage.forget(keep_last=1).commits}
    assert gone == {*steps[dropped[-1] + 1 :], chain.end}
    repo.storage.gc(grace="0")
    for at in dropped:
        assert is_whole(repo, steps[at])


def test_a_version_that_gave_up_its_weights_may_go_and_frees_what_is_before_it(
    chain: Chain,
) -> None:
    drop(chain.repo, *chain.steps[:3])
    chain.repo.storage.forget([*chain.steps, chain.start])
    chain.repo.storage.gc(grace="0")
    assert isinstance(chain.repo.availability(chain.start), Gone)
    assert chain.repo.storage.fsck(full=True).sound


def test_a_step_that_was_forgotten_stops_no_repack_and_no_weights_are_dropped(
    chain: Chain,
) -> None:
    repo, last = chain.repo, chain.steps[-1]
    prove(repo.handle, last, by_hand.PATH, base=chain.start)
    repo.storage.forget(chain.steps[1])
    assert recipes.alternatives(repo) == {}
    with pytest.raises(StateForgotten, match=chain.steps[1].short):
        recipes.drop_weights(repo, [last])
    assert np.array_equal(repo.checkout(last)["w"], state(5)["w"])


def test_a_full_state_that_gave_up_its_weights_leads_on_to_the_one_before_it(
    chain: Chain,
) -> None:
    repo = chain.repo
    next_ = stepped(repo, state(8), Batches(chain.end, chain.end, ("1 2",)), chain.data)
    repo.commit(state(9))
    drop(repo, chain.end, next_)
    repo.storage.gc(grace="0")
    with pytest.raises(RefConflict, match=chain.steps[0].short):
        repo.storage.forget(chain.steps[0])
    assert is_whole(repo, chain.end) and is_whole(repo, next_)
    assert repo.attachment(chain.end, "service/optimizer.safetensors") == by_hand.OPTIMIZER


def test_a_very_long_segment_is_looked_through_once(repo: mvc.Repository) -> None:
    """Of its 400 versions every second has its weights; what nothing needs goes."""
    small = np.zeros(4, np.float32)
    start = at = full_state(repo, {"w": small})
    steps = list[CommitId]()
    for number in range(1, 401):
        at = stepped(repo, {"w": small + number}, Batches(start, at, ("1 2",)))
        steps.append(at)
    repo.commit({"w": small - 1})
    for each in steps[1::2]:
        by_hand.mark_dropped(repo.handle, each)
    began = time.process_time()
    with pytest.raises(RefConflict, match=f"{steps[0].short} is needed to retrain"):
        repo.storage.forget(steps[0])
    assert len(segment(repo, steps[-1])) == 400
    assert not repo.storage.gc(grace="0").commits
    assert repo.storage.fsck().sound
    with mvc.clone(repo.root, repo.root.parent / "clone", states="last:2") as few:
        assert len(segment(few, steps[-1])) == 400
    assert time.process_time() - began < 60


# -- transfers ---------------------------------------------------------------------------------


def test_recipes_alone_go_to_a_remote_that_has_the_data(chain: Chain) -> None:
    """At most 3 kB a version; the rows of each batch have 350 bytes."""
    repo = chain.repo
    repo.push()
    added, at = list[CommitId](), chain.steps[-1]
    for number in range(20):
        at = stepped(repo, state(20 + number), chain.batches(at), chain.data)
        added.append(at)
    repo.commit(state(7))
    drop(repo, *added)
    pushed = repo.push()
    assert 20 * 100 < pushed.bytes < 20 * 3000
    for other in (chain.server, chain.clone("other")):
        found = other.availability(added[7])
        assert isinstance(found, Dropped) and found.proven_ns is None and not found.stored
        assert is_whole(other, added[7])
        with pytest.raises(WeightsDropped, match="were dropped"):
            other.checkout(added[7])
        with pytest.raises(NotTrusted):  # a proof of one's own is needed
            recipes.drop_weights(other, [chain.steps[1]])


def test_weights_that_go_before_they_are_dropped_stay_there(chain: Chain) -> None:
    """A recorder pushes while its proofs run: the remote has the first weights, and not the last.

    What comes between them there must stay as well.
    """
    repo, steps = chain.repo, chain.steps
    repo.push()
    drop(repo, *steps)
    at = stepped(repo, state(30), chain.batches(steps[-1]), chain.data)
    repo.commit(state(7))
    drop(repo, at)
    repo.push()
    server = chain.server
    assert all(isinstance(server.availability(each), Stored) for each in steps)
    with pytest.raises(RefConflict, match=f"{steps[0].short} is needed to retrain {at.short}"):
        server.storage.forget(steps[0])
    server.storage.gc(grace="0")
    assert is_whole(server, at)


def test_a_step_whose_full_state_did_not_come_is_shown_without_it(chain: Chain) -> None:
    chain.repo.push("origin", [chain.repo.branch("steps", chain.steps[2]).name])
    with mvc.clone(chain.url, chain.root / "tip", states="last:1", branch="steps") as tip:
        assert recipes.steps(tip, chain.steps[2]) is None
        assert np.array_equal(tip.checkout(chain.steps[2])["w"], state(3)["w"])
    assert recipes.steps(chain.repo, chain.steps[2]) == {
        "start": chain.start, "batches": 3, "rows": 192, "seconds": None
    }  # fmt: skip


@pytest.mark.parametrize("states", ["none", "last:1", "last:2"])
def test_what_makes_a_version_again_comes_along(chain: Chain, states: str) -> None:
    """With weights or without: the links between are stored on the server, and needed."""
    repo, steps = chain.repo, chain.steps
    repo.push()
    at = stepped(repo, state(30), chain.batches(steps[-1]), chain.data)
    drop(repo, at)
    repo.push()
    few = chain.clone("few", states=states)
    if states == "none":
        assert isinstance(few.availability(at), Gone)
        few.fetch(versions=[at])
    few.storage.gc(grace="0")
    assert is_whole(few, at)
    assert recipes.calls(few, at) and recipes.code(few, at)


@pytest.mark.parametrize("lacking", ["start", "step"])
def test_a_remote_that_forgot_what_makes_a_version_again_refuses_it(
    chain: Chain, lacking: str
) -> None:
    repo, at = chain.repo, chain.steps[-1]
    gone = chain.start if lacking == "start" else at
    repo.push()
    chain.server.storage.forget(gone)
    made = stepped(repo, state(30), chain.batches(at), chain.data)
    repo.commit(state(7))
    drop(repo, made)
    with pytest.raises(
        WeightsDropped, match=f"{made.short} was sent without weights, and {gone.short}"
    ):
        repo.push()
    repo.storage.store_weights(made)
    repo.push()
    assert np.array_equal(chain.server.checkout(made)["w"], state(30)["w"])


@pytest.mark.parametrize("lacking", ["start", "data"])
def test_a_receiver_refuses_a_step_that_nothing_makes_again(chain: Chain, lacking: str) -> None:
    store, config = chain.repo.handle.store, chain.repo.handle.config
    made = chain.steps[2]
    drop(chain.repo, made)
    store.fresh()
    with pytest.raises(WeightsDropped, match=f"version {made.short} was sent without weights"):
        for each in send(
            store, config, Wanted(versions=(made,)), without={getattr(chain, lacking)}
        ):
            receive(chain.server.handle.store, chain.server.handle.config, each)
    assert not chain.server.handle.store.fresh().state_marks(weights=True)


def test_a_full_state_that_the_remote_never_got_goes_along(chain: Chain) -> None:
    repo = chain.repo
    drop(repo, *chain.steps)
    repo.branch("steps", chain.steps[3])
    repo.push("origin", ["steps"])
    assert is_whole(chain.server, chain.steps[3])


def test_a_lazy_clone_fetches_what_a_recipe_names(chain: Chain) -> None:
    drop(chain.repo, *chain.steps)
    chain.repo.push()
    lazy = chain.clone("lazy", states="none", lazy=True)
    assert recipes.calls(lazy, chain.steps[3])
    assert len(segment(lazy, chain.steps[3])) == 4


def test_a_backup_has_versions_and_proofs(chain: Chain) -> None:
    drop(chain.repo, *chain.steps)
    chain.repo.storage.gc(grace="0")
    chain.repo.storage.backup(chain.root / "backup")
    with mvc.Repository.open(chain.root / "backup") as back:
        assert all(is_whole(back, each) for each in chain.steps)
        assert {*back.storage.proofs()} == {*chain.steps}
