"""forget: the states go for good, everything else stays bit for bit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import mvc
from mvc.errors import (
    DamagedData,
    NothingToCommit,
    RefConflict,
    StateForgotten,
    UnknownRevision,
    UnknownTarget,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.maintenance import forget, gc
from mvc.maintenance.forget import preview
from mvc.maintenance.inventory import inventory
from mvc.maintenance.retention import Retention
from mvc.repo import refs
from mvc.repo.commit.request import CommitOptions
from mvc.repo.lookup.commits import get
from mvc.repo.oplog.undo import undo
from mvc.store.journal.entries import Entry, RefChange
from mvc.testing import FixedClock, fresh_process
from tests.repo.giving_up import Kept, traces

NOW = timedelta(0)


def drift(weights: np.ndarray, seed: int, step: float = 1e-3) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(weights.shape)
    return (weights + noise * step).astype(np.float32)


def chain(kept: Kept, count: int, *, reset_at: int | None = None, pipeline: str | None = None):
    """Versions of two tensors that change and one that does not."""
    w, fixed = drift(np.zeros((64, 40)), 0, 1), drift(np.zeros(300), 1, 1)
    ids = []
    for n in range(count):
        w = drift(w, n + 2)
        state = {"w": w, "b": w[0].copy(), "fixed": fixed}
        ids.append(kept.state(state, message=f"{n}", reset_point=n == reset_at, pipeline=pipeline))
    return ids


PLACES = {
    "first": [0],
    "middle": [3],
    "last but HEAD": [6],
    "neighbours": [2, 3, 4],
    "every other": [0, 2, 4, 6],
    "all but HEAD": list(range(7)),
}


@pytest.mark.parametrize("pipeline", ["lossless", "vsol", "none"])
@pytest.mark.parametrize("reset_at", [None, 3])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES.keys())
def test_by_name_nothing_is_left(tmp_path: Path, places, reset_at, pipeline) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 8, reset_at=reset_at, pipeline=pipeline)
    kept.forget(*(ids[i] for i in places))
    lost = kept.lost()
    assert len(lost) == 3 * len(places)  # w, b and the list of them; the rest is shared
    kept.check(tmp_path / "before")
    # The grace is for what operations left behind, not for what was given up.
    done = gc.collect(kept.context)
    assert done.forgotten == len(places)
    assert done.freed > 0
    assert traces(kept.context, lost) == []
    kept.check(tmp_path / "after")
    after = chain(kept, 2)
    assert gc.collect(kept.context).objects == 0
    kept.check(tmp_path / "later")
    assert after


def flipped(weights: np.ndarray, share: float, bit: int, seed: int) -> np.ndarray:
    """One bit of each of some elements is the other one."""
    chosen = np.random.default_rng(seed).random(weights.shape) < share
    bits = weights.view(np.uint32) ^ np.where(chosen, 1 << bit, 0).astype(np.uint32)
    return bits.view(np.float32)


def around(kept: Kept, more: int = 0) -> tuple[CommitId, CommitId, CommitId]:
    """Three versions; the deltas to the middle one are small beside one past it.

    Only the middle one has ``more`` tensors, so that its list of files is no step worth keeping.
    """
    first = drift(np.zeros((200, 300)), 0, 1)
    middle = flipped(first, 0.02, 9, 1)
    last = flipped(middle, 0.02, 17, 2)
    others = {f"other{n}": np.full(3, n, np.float32) for n in range(more)}
    return (
        kept.state({"w": first}, deploy="prod"),
        kept.state({"w": middle} | others),
        kept.state({"w": last}),
    )


@pytest.mark.parametrize("list_goes", [False, True])
def test_steps_stay_by_rule_but_not_by_name(tmp_path: Path, list_goes: bool) -> None:
    kept = Kept(tmp_path / "r")
    _, middle, _ = around(kept, more=30 * list_goes)
    assert kept.forget(unused="prod") == {middle}
    done = gc.collect(kept.context, grace=NOW)
    held = kept.lost() & inventory(kept.context.store.snapshot).codings.keys()
    assert done.phantoms == len(held) > 0
    # The list of files may be gone, so that nothing says whose the steps are.
    assert (get(kept.context, middle).manifest in held) != list_goes
    kept.check(tmp_path / "1")
    assert gc.collect(kept.context, grace=NOW).phantoms == len(held)
    assert kept.forget(middle) == {middle}
    assert gc.collect(kept.context).phantoms == 0
    assert traces(kept.context, kept.lost()) == []
    kept.check(tmp_path / "2")


def test_by_name_no_step_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    _, middle, _ = around(kept)
    kept.forget(middle)
    assert gc.collect(kept.context, grace=NOW).phantoms == 0
    assert traces(kept.context, kept.lost()) == []
    kept.check(tmp_path / "s")


def test_files_of_every_format(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    root = kept.repo.root
    w = drift(np.zeros((50, 40)), 0, 1)
    ids = []
    for n in range(5):
        w = drift(w, n + 1)
        save_file({"w": w, "other": w[:3].copy()}, root / "m.safetensors")
        torch.save({"w": torch.from_numpy(w), "n": [1, n]}, root / "m.pt")
        np.savez(root / "m.npz", w=w)
        (root / "notes.bin").write_bytes(w.tobytes()[: 3000 + n] + bytes([n]))
        ids.append(kept.file(message=f"{n}"))
    kept.forget(ids[0], ids[2])
    lost = kept.lost()
    gc.collect(kept.context)
    assert traces(kept.context, lost) == []
    kept.check(tmp_path / "s")


def test_tensors_of_several_pieces(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    kept.context.config.values["python.keep_base"] = ("none", "flag")
    whole = np.zeros(34 << 20, np.uint8)
    ids = []
    for n in range(3):
        whole[n :: 1 << 15] = n + 1
        ids.append(kept.state({"w": whole}))
    kept.forget(ids[0], ids[1])
    lost = kept.lost()
    gc.collect(kept.context)
    assert traces(kept.context, lost) == []
    kept.check(tmp_path / "s")


def test_branches_and_shared_tensors(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 4)
    kept.repo.switch("side", create=True, start=str(ids[1]), force=True)
    side = kept.state({"w": kept.states[ids[2]]["w"], "b": drift(np.zeros(9), 3)})
    kept.forget(ids[1], ids[2])
    lost = kept.lost()
    shared = kept.objects[ids[2]] & kept.objects[side]
    assert shared and not shared & lost
    gc.collect(kept.context)
    assert traces(kept.context, lost) == []
    kept.check(tmp_path / "s")


def test_the_same_state_elsewhere_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 3)
    again = kept.state(kept.states[ids[0]])
    head = kept.state(kept.states[ids[1]] | {"new": np.ones(3)})
    chosen = forget.choose(kept.context, [ids[0]])
    cost = preview(kept.context, chosen)
    assert cost.same == {ids[0]: (again,)}
    assert (cost.tensors, cost.shared) == (0, 3)
    kept.forget(ids[0])
    gc.collect(kept.context)
    kept.check(tmp_path / "s")
    # Only with the last holder do the bytes go.
    kept.forget(again)
    gc.collect(kept.context)
    assert traces(kept.context, kept.lost()) == []
    assert head in kept.there
    kept.check(tmp_path / "t")


def test_what_was_forgotten_may_be_committed_anew(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 3)
    kept.forget(ids[0])
    anew = kept.state(kept.states[ids[0]])
    gc.collect(kept.context, grace=NOW)
    kept.check(tmp_path / "s")
    assert anew in kept.there
    back = kept.repo.checkout(anew)
    assert back["w"].tobytes() == kept.states[ids[0]]["w"].tobytes()


def test_the_very_same_version_is_refused(tmp_path: Path) -> None:
    """Its id would say that its state is gone."""
    kept = Kept(tmp_path / "r")
    options = {"options": CommitOptions(time=10**18), "message": "first"}
    first = kept.state({"w": np.ones(5)}, **options)
    kept.repo.switch("other", create=True)
    kept.state({"w": np.zeros(5)})
    kept.forget(first)
    # A branch without a version yet: the next commit there has no parent, as the first had none.
    store = kept.context.store
    store.publish(lambda: Entry("switch", 1, refs=(RefChange("HEAD", "other", "empty"),)))
    with pytest.raises(StateForgotten, match="this very version"):
        kept.state({"w": np.ones(5)}, **options)
    assert kept.state({"w": np.ones(5)}, **options | {"message": "second"})
    gc.collect(kept.context, grace=NOW)
    kept.check(tmp_path / "s")


def test_unpublished_bytes_go_as_well(tmp_path: Path) -> None:
    """What a commit that failed, or an earlier gc, left between the records of a pack."""
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 6)
    kept.repo.branch("far", str(ids[5]))
    big = np.random.default_rng(5).standard_normal(200_000).astype(np.float32)
    kept.state({"big": big})
    secret = kept.state({"big": big, "s": np.arange(50, dtype=np.float32)})
    kept.state({"big": big, "t": np.ones(4)})
    kept.forget(secret)
    lost = kept.lost()
    assert traces(kept.context, lost) != []
    gc.collect(kept.context)
    assert traces(kept.context, lost) == []
    # A rule first, for whose few bytes no pack is written anew; then by name.
    second = kept.state({"big": big, "s": np.arange(60, dtype=np.float32)})
    kept.state({"big": big, "u": np.ones(4)})
    kept.repo.tag("keep", str(ids[0]))
    assert second in kept.forget(keep_last=1)
    gc.collect(kept.context)
    kept.forget(second)
    gc.collect(kept.context)
    assert traces(kept.context, kept.lost([second])) == []
    kept.check(tmp_path / "s")


def test_refusals(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 3)
    for revs, rules, error in (
        ([ids[2]], None, RefConflict),
        (["HEAD"], None, RefConflict),
        (["main", ids[0]], None, RefConflict),
        (["nothing"], None, UnknownRevision),
        ([], None, WrongUsage),
        ([ids[0]], Retention(last=1), WrongUsage),
        ([], Retention(unused="nowhere"), UnknownTarget),
    ):
        with pytest.raises(error):
            forget.choose(kept.context, revs, rules)
    kept.check(tmp_path / "s")


def test_twice_is_once(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 3)
    kept.forget(ids[0])
    chosen = forget.choose(kept.context, [ids[0], ids[1]])
    assert ([c.id for c in chosen.commits], chosen.already) == ([ids[1]], (ids[0],))
    stale = forget.choose(kept.context, [ids[1]])
    recorded = forget.forget(kept.context, stale)
    assert recorded is not None
    assert [(f.commit, f.named) for f in recorded.entry.forgotten] == [(ids[1], True)]
    assert forget.forget(kept.context, stale) is None
    assert forget.forget(kept.context, forget.choose(kept.context, [ids[1]])) is None


def test_what_comes_to_be_needed_meanwhile_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 5)
    chosen = forget.choose(kept.context, (), Retention(last=1))
    assert [c.id for c in chosen.commits] == ids[3::-1]
    kept.repo.tag("v1", str(ids[0]))
    kept.repo.deploy(ids[1], "prod")
    other = mvc.Repository.open(kept.repo.root)
    other.storage.forget(ids[2])
    recorded = forget.forget(kept.context, chosen)
    assert recorded is not None
    assert {f.commit for f in recorded.entry.forgotten} == {ids[3]}
    named = forget.choose(kept.context, [ids[1]])
    other.checkout(ids[1], force=True, to=other.root)
    with pytest.raises(RefConflict):
        forget.forget(kept.context, named)


def test_what_is_forgotten_while_gc_runs_goes_with_it(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 6)
    kept.forget(ids[0])
    other = mvc.Repository.open(kept.repo.root)

    def meanwhile(done: int, total: int, what: str) -> None:
        if what == "operations" and done == total and ids[3] not in kept.gone:
            other.storage.forget(ids[3])
            kept.gone.add(ids[3])

    assert gc.collect(kept.context, progress=meanwhile).forgotten == 2
    assert traces(kept.context, kept.lost()) == []
    kept.check(tmp_path / "s")


def test_undo_does_not_bring_it_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 3)
    kept.forget(ids[1])
    with pytest.raises(RefConflict, match="gave up states"):
        undo(kept.context, 4)
    with pytest.raises(RefConflict, match="was forgotten on"):
        undo(kept.context, 3)  # the commit that came after it
    assert refs.head(kept.context).commit == ids[2]
    gc.collect(kept.context, grace=NOW)
    kept.check(tmp_path / "s")


def test_a_branch_whose_tip_is_forgotten(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 3)
    kept.repo.switch("side", create=True, start=str(ids[0]), force=True)
    kept.forget(ids[2])
    for act in (
        lambda: kept.repo.switch("main"),
        lambda: kept.repo.checkout("main"),
        lambda: kept.repo.checkout("main", to=tmp_path / "out"),
        lambda: kept.repo.diff("main", "side"),
        lambda: kept.repo.deploy("main", "prod"),
    ):
        with pytest.raises(StateForgotten, match="was forgotten on"):
            act()
    # It was live once, and that may be recorded.
    assert kept.repo.deploy("main", "prod", at="2 hours ago").commit == ids[2]
    entry = kept.repo.log("main")[0]
    assert entry.id == ids[2] and entry.forgotten_ns is not None
    assert kept.repo.storage.stats().forgotten == 1
    gc.collect(kept.context)
    assert kept.repo.storage.stats().forgotten == 1


def test_identify_tells_and_import_passes_it_over(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    save_file({"w": np.arange(6.0)}, tmp_path / "a.safetensors")
    save_file({"w": np.arange(7.0)}, tmp_path / "b.safetensors")
    first, _ = kept.repo.import_checkpoints(
        [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    )
    assert [f.commit for f in kept.repo.identify(tmp_path / "a.safetensors")] == [first.commit]
    kept.repo.storage.forget(first.commit)
    gc.collect(kept.context)
    (had,) = kept.repo.identify(tmp_path / "a.safetensors")
    assert (had.commit, had.path, had.exact) == (first.commit, None, False)
    assert had.forgotten_ns is not None and had.branches == ("main",)
    (again,) = kept.repo.import_checkpoints([tmp_path / "a.safetensors"])
    assert again.kept
    found = kept.repo.identify(tmp_path / "a.safetensors")
    assert [(f.commit, f.forgotten_ns is None) for f in found] == [
        (again.commit, True),
        (first.commit, False),
    ]


def test_a_damaged_state_can_be_forgotten(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "r")
    ids = chain(kept, 2)
    (pack,) = (kept.context.store.folder / "packs").iterdir()
    (record,) = inventory(kept.context.store.snapshot).records[1]
    kept.repo.close()
    data = bytearray(pack.read_bytes())
    data[record.offset + record.header.size - 1] ^= 1  # in the first version's list of files
    pack.write_bytes(bytes(data))
    fresh_process()
    with mvc.Repository.open(kept.repo.root) as repo:
        assert not repo.storage.fsck().sound
        with pytest.raises(DamagedData):
            repo.checkout(ids[0])
        chosen = forget.choose(repo.context, [ids[0]])
        assert preview(repo.context, chosen).tensors == 0
        assert forget.forget(repo.context, chosen) is not None
        with pytest.raises(StateForgotten):
            repo.checkout(ids[0])


def test_a_delta_whose_base_is_gone_already_goes(tmp_path: Path) -> None:
    """First a state goes by rule, and its manifest with it; then its name must go as well.

    The next version's manifest was a patch against it, in a record that stays.
    """
    kept = Kept(tmp_path / "r", clock=FixedClock(step_ns=10**9))
    shared = drift(np.zeros((20, 30)), 1, 1)
    first = kept.state({"w": drift(np.zeros((20, 30)), 0, 1), "x": shared}, pipeline="vsol")
    for n in range(2, 5):
        kept.state({"w": drift(np.zeros((20, 30)), n, 1), "x": shared})
    kept.forget(keep_last=3)
    gc.collect(kept.context)
    kept.forget(first)
    gc.collect(kept.context)
    assert traces(kept.context, kept.lost({first})) == []
    kept.check(tmp_path / "s")
    kept.repo.close()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_history(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Branches, resets, shared tensors; forgets by name and by rule, gc in between."""
    tmp = tmp_path_factory.mktemp("any")
    kept = Kept(tmp / "r", clock=FixedClock(step_ns=10**9))
    named: set = set()
    pool = [drift(np.zeros((20, 30)), n, 1) for n in range(2)]
    rounds = 0
    for step in range(data.draw(st.integers(4, 14), "steps")):
        act = data.draw(st.sampled_from("cccccrbfFg"), "act")
        if act in "cr" or not kept.there:
            old = data.draw(st.sampled_from(pool), "near")
            new = drift(old, step, data.draw(st.sampled_from([1e-6, 1e-3, 1.0])))
            pool.append(new)
            state = {"w": new, "x": data.draw(st.sampled_from(pool), "shared")}
            kept.state(
                state,
                reset_point=act == "r",
                pipeline=data.draw(st.sampled_from(["lossless", "vsol"])),
                deploy=data.draw(st.sampled_from([None, None, "prod"])),
            )
        elif act == "b":
            start = data.draw(st.sampled_from(kept.there), "start")
            kept.repo.switch(f"b{step}", create=True, start=str(start), force=True)
        elif act == "f":
            id_ = data.draw(st.sampled_from(list(kept.objects)), "forgotten")
            if id_ != refs.head(kept.context).commit and kept.context.store.has_commit(id_):
                kept.forget(id_)
                named.add(id_)
        elif act == "F":
            rule = data.draw(
                st.sampled_from([{"keep_last": 2}, {"keep_hourly": 1}, {"unused": "prod"}])
            )
            try:
                kept.forget(**rule)
            except UnknownTarget:
                assert "unused" in rule
        else:
            gc.collect(kept.context)
            assert traces(kept.context, kept.lost(named)) == []
            kept.check(tmp / f"s{rounds}")
            rounds += 1
    gc.collect(kept.context)
    assert traces(kept.context, kept.lost(named)) == []
    kept.check(tmp / "last")
    kept.repo.close()


def test_nothing_to_commit_stays_so(tmp_path: Path) -> None:
    """Forgetting what came before changes nothing of what HEAD holds."""
    kept = Kept(tmp_path / "r")
    save_file({"w": np.arange(6.0)}, kept.repo.root / "m.safetensors")
    first = kept.file()
    save_file({"w": np.arange(7.0)}, kept.repo.root / "m.safetensors")
    kept.file()
    kept.forget(first)
    gc.collect(kept.context)
    with pytest.raises(NothingToCommit):
        kept.repo.commit(options=CommitOptions(all=True))
    assert kept.repo.status().clean
