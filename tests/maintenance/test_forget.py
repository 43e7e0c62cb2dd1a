"""forget: the states go for good, everything else stays bit for bit."""

from __future__ import annotations

from collections.abc import Container
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
from mvc.maintenance import forget
from mvc.maintenance.forget import preview
from mvc.maintenance.graph import read_records
from mvc.maintenance.retention import Retention
from mvc.model.manifest import Manifest
from mvc.model.statement import Tombstone
from mvc.repo import refs
from mvc.repo.commit.request import CommitOptions
from mvc.repo.lookup.commits import get
from mvc.repo.oplog.undo import undo
from mvc.store.journal.entries import Entry, RefChange, StateMark
from mvc.testing import FixedClock, fresh_process
from tests.histories import CheckedHistory
from tests.maintenance.traces import drift, traces

NOW = timedelta(0)


def chain(
    history: CheckedHistory, count: int, *, resets: Container[int] = (), pipeline: str | None = None
) -> list[CommitId]:
    """Versions of two tensors that change and one that does not."""
    w, fixed = drift(np.zeros((64, 40)), 0, 1), drift(np.zeros(300), 1, 1)
    ids = []
    for n in range(count):
        w = drift(w, n + 2)
        state = {"w": w, "b": w[0].copy(), "fixed": fixed}
        ids.append(
            history.commit(state, message=f"{n}", reset_point=n in resets, pipeline=pipeline)
        )
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
@pytest.mark.parametrize("resets", [(), (3,), (2, 5)])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES.keys())
def test_by_name_nothing_is_left(
    history: CheckedHistory, places: list[int], resets: tuple[int, ...], pipeline: str
) -> None:
    """Also where the way leads backwards through deltas, from the reset point behind them."""
    ids = chain(history, 8, resets=resets, pipeline=pipeline)
    history.forget(*(ids[i] for i in places))
    lost = history.lost()
    assert len(lost) == 3 * len(places)  # w, b and the list of them; the rest is shared
    # The grace is for what operations left behind, not for what was given up.
    done = history.repo.storage.gc()
    assert done.forgotten == len(places)
    assert done.freed > 0
    assert traces(history, lost) == []
    history.check()
    chain(history, 2)
    assert history.repo.storage.gc().objects == 0
    history.check()


@pytest.mark.parametrize("pipeline", ["lossless", "vsol"])
@pytest.mark.parametrize("resets", [(), (3,), (2, 5)])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES.keys())
def test_by_rule_everything_else_comes_back(
    history: CheckedHistory, places: list[int], resets: tuple[int, ...], pipeline: str
) -> None:
    ids = chain(history, 8, resets=resets, pipeline=pipeline)
    store = history.repo.handle.store
    marks = tuple(StateMark(ids[i], "forgotten") for i in places)
    store.publish(lambda: Entry("forget", store.clock.now_ns(), states=marks))
    history.gone |= {ids[i] for i in places}
    history.repo.storage.gc(grace="0")
    history.check()


def flipped(weights: np.ndarray, share: float, bit: int, seed: int) -> np.ndarray:
    """One bit of each of some elements is the other one."""
    chosen = np.random.default_rng(seed).random(weights.shape) < share
    bits = weights.view(np.uint32) ^ np.where(chosen, 1 << bit, 0).astype(np.uint32)
    return bits.view(np.float32)


def around(history: CheckedHistory, more: int = 0) -> tuple[CommitId, CommitId, CommitId]:
    """Three versions; the deltas to the middle one are small beside one past it.

    Only the middle one has ``more`` tensors, so that its list of files is no step worth keeping.
    """
    first = drift(np.zeros((200, 300)), 0, 1)
    middle = flipped(first, 0.02, 9, 1)
    last = flipped(middle, 0.02, 17, 2)
    others = {f"other{n}": np.full(3, n, np.float32) for n in range(more)}
    return (
        history.commit({"w": first}, deploy="prod"),
        history.commit({"w": middle} | others),
        history.commit({"w": last}),
    )


@pytest.mark.parametrize("list_goes", [False, True])
def test_steps_stay_by_rule_but_not_by_name(history: CheckedHistory, list_goes: bool) -> None:
    _, middle, _ = around(history, more=30 * list_goes)
    assert history.forget(unused="prod") == {middle}
    done = history.repo.storage.gc(grace="0")
    graph = read_records(history.repo.handle.store.snapshot)
    held = {id_ for id_ in history.lost() if graph.rows_of(id_)}
    assert done.phantoms == len(held) > 0
    # The list of files may be gone, so that nothing says whose the steps are.
    assert (get(history.repo.handle.store.snapshot, middle).manifest in held) != list_goes
    history.check()
    assert history.repo.storage.gc(grace="0").phantoms == len(held)
    assert history.forget(middle) == {middle}
    assert history.repo.storage.gc().phantoms == 0
    assert traces(history, history.lost()) == []
    history.check()


def test_by_name_no_step_stays(history: CheckedHistory) -> None:
    _, middle, _ = around(history)
    history.forget(middle)
    assert history.repo.storage.gc(grace="0").phantoms == 0
    assert traces(history, history.lost()) == []
    history.check()


def test_files_of_every_format(history: CheckedHistory) -> None:
    root = history.repo.root
    w = drift(np.zeros((50, 40)), 0, 1)
    ids = []
    for n in range(5):
        w = drift(w, n + 1)
        save_file({"w": w, "other": w[:3].copy()}, root / "m.safetensors")
        torch.save({"w": torch.from_numpy(w), "n": [1, n]}, root / "m.pt")
        np.savez(root / "m.npz", w=w)
        (root / "notes.bin").write_bytes(w.tobytes()[: 3000 + n] + bytes([n]))
        ids.append(history.commit_files(message=f"{n}"))
    history.forget(ids[0], ids[2])
    lost = history.lost()
    history.repo.storage.gc()
    assert traces(history, lost) == []
    history.check()


def test_tensors_of_several_pieces(history: CheckedHistory) -> None:
    history.repo.handle.config.values["python.keep_base"] = ("none", "flag")
    whole = np.zeros(34 << 20, np.uint8)
    ids = []
    for n in range(3):
        whole[n :: 1 << 15] = n + 1
        ids.append(history.commit({"w": whole}))
    history.forget(ids[0], ids[1])
    lost = history.lost()
    history.repo.storage.gc()
    assert traces(history, lost) == []
    history.check()


def test_branches_and_shared_tensors(history: CheckedHistory) -> None:
    ids = chain(history, 4)
    history.repo.switch("side", create=True, start=str(ids[1]), force=True)
    side = history.commit({"w": history.states[ids[2]]["w"], "b": drift(np.zeros(9), 3)})
    history.forget(ids[1], ids[2])
    lost = history.lost()
    shared = history.objects[ids[2]] & history.objects[side]
    assert shared and not shared & lost
    history.repo.storage.gc()
    assert traces(history, lost) == []
    history.check()


def test_the_same_state_elsewhere_stays(history: CheckedHistory) -> None:
    ids = chain(history, 3)
    again = history.commit(history.states[ids[0]])
    head = history.commit(history.states[ids[1]] | {"new": np.ones(3)})
    chosen = forget.choose(history.repo.handle.store, [ids[0]])
    cost = preview(history.repo.handle.store, history.repo.handle.config, chosen)
    assert cost.same == {ids[0]: (again,)}
    assert (cost.tensors, cost.shared) == (0, 3)
    history.forget(ids[0])
    history.repo.storage.gc()
    history.check()
    # Only with the last holder do the bytes go.
    history.forget(again)
    history.repo.storage.gc()
    assert traces(history, history.lost()) == []
    assert head in history.there
    history.check()


def test_a_preview_decodes_the_manifests_of_what_is_chosen(
    history: CheckedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, decoded, decode = chain(history, 12), list[int](), Manifest.decode

    def counted(data: bytes, *args: Any) -> Manifest:
        decoded.append(len(data))
        return decode(data, *args)

    monkeypatch.setattr(Manifest, "decode", counted)
    store = history.repo.handle.store
    for count in 1, 4:
        decoded.clear()
        cost = preview(store, history.repo.handle.config, forget.choose(store, ids[2 : 2 + count]))
        assert (cost.tensors, cost.shared) == (2 * count, 1)
        assert len(decoded) <= count + 1  # that of their shape


def test_what_was_forgotten_may_be_committed_anew(history: CheckedHistory) -> None:
    ids = chain(history, 3)
    history.forget(ids[0])
    anew = history.commit(history.states[ids[0]])
    history.repo.storage.gc(grace="0")
    history.check()
    assert anew in history.there
    back = history.repo.checkout(anew)
    assert back["w"].tobytes() == history.states[ids[0]]["w"].tobytes()


def test_the_very_same_version_is_refused(history: CheckedHistory) -> None:
    """Its id would say that its state is gone."""
    options = {"options": CommitOptions(time=10**18), "message": "first"}
    first = history.commit({"w": np.ones(5)}, **options)
    history.repo.switch("other", create=True)
    history.commit({"w": np.zeros(5)})
    history.forget(first)
    # A branch without a version yet: the next commit there has no parent, as the first had none.
    store = history.repo.handle.store
    store.publish(lambda: Entry("switch", 1, refs=(RefChange("HEAD", "other", "empty"),)))
    with pytest.raises(StateForgotten, match="this exact version"):
        history.commit({"w": np.ones(5)}, **options)
    assert history.commit({"w": np.ones(5)}, **options | {"message": "second"})
    history.repo.storage.gc(grace="0")
    history.check()


def test_unpublished_bytes_go_as_well(history: CheckedHistory) -> None:
    """What a commit that failed, or an earlier gc, left between the records of a pack."""
    ids = chain(history, 6)
    history.repo.branch("far", str(ids[5]))
    big = np.random.default_rng(5).standard_normal(200_000).astype(np.float32)
    history.commit({"big": big})
    secret = history.commit({"big": big, "s": np.arange(50, dtype=np.float32)})
    history.commit({"big": big, "t": np.ones(4)})
    history.forget(secret)
    lost = history.lost()
    assert traces(history, lost) != []
    history.repo.storage.gc()
    assert traces(history, lost) == []
    # A rule first, for whose few bytes no pack is written anew; then by name.
    second = history.commit({"big": big, "s": np.arange(60, dtype=np.float32)})
    history.commit({"big": big, "u": np.ones(4)})
    history.repo.tag("keep", str(ids[0]))
    assert second in history.forget(keep_last=1)
    history.repo.storage.gc()
    history.forget(second)
    history.repo.storage.gc()
    assert traces(history, history.lost([second])) == []
    history.check()


def test_refusals(history: CheckedHistory) -> None:
    ids = chain(history, 3)
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
            forget.choose(history.repo.handle.store, revs, rules)
    history.check()


def test_twice_is_once(history: CheckedHistory) -> None:
    ids = chain(history, 3)
    history.forget(ids[0])
    chosen = forget.choose(history.repo.handle.store, [ids[0], ids[1]])
    assert ([c.id for c in chosen.commits], chosen.already) == ([ids[1]], (ids[0],))
    stale = forget.choose(history.repo.handle.store, [ids[1]])
    recorded = forget.forget(history.repo.handle.store, history.repo.handle.config, stale)
    assert recorded is not None
    assert [stone.subject for stone in recorded.entry.of(Tombstone)] == [ids[1]]
    assert forget.forget(history.repo.handle.store, history.repo.handle.config, stale) is None
    assert (
        forget.forget(
            history.repo.handle.store,
            history.repo.handle.config,
            forget.choose(history.repo.handle.store, [ids[1]]),
        )
        is None
    )


def test_what_comes_to_be_needed_meanwhile_stays(history: CheckedHistory) -> None:
    ids = chain(history, 5)
    chosen = forget.choose(history.repo.handle.store, (), Retention(last=1))
    assert [c.id for c in chosen.commits] == ids[3::-1]
    history.repo.tag("v1", str(ids[0]))
    history.repo.deploy(ids[1], "prod")
    other = mvc.Repository.open(history.repo.root)
    other.storage.forget(ids[2])
    recorded = forget.forget(history.repo.handle.store, history.repo.handle.config, chosen)
    assert recorded is not None
    assert recorded.entry.forgets == {ids[3]}
    named = forget.choose(history.repo.handle.store, [ids[1]])
    other.checkout(ids[1], force=True, to=other.root)
    with pytest.raises(RefConflict):
        forget.forget(history.repo.handle.store, history.repo.handle.config, named)


def test_what_is_forgotten_while_gc_runs_goes_with_it(history: CheckedHistory) -> None:
    ids = chain(history, 6)
    history.forget(ids[0])
    other = mvc.Repository.open(history.repo.root)

    def meanwhile(done: int, total: int, what: str) -> None:
        if what == "operations" and done == total and ids[3] not in history.gone:
            other.storage.forget(ids[3])
            history.gone.add(ids[3])

    assert history.repo.storage.gc(progress=meanwhile).forgotten == 2
    assert traces(history, history.lost()) == []
    history.check()


def test_what_is_here_again_while_gc_runs_stays(history: CheckedHistory) -> None:
    """A fetch that found all objects of a state still stored appends no record."""
    ids = chain(history, 6)
    history.repo.storage.forget(keep_last=2)
    store, back = mvc.Repository.open(history.repo.root).handle.store, ids[1]
    done_once: list[int] = []

    def meanwhile(done: int, total: int, what: str) -> None:
        if what == "operations" and done == total and not done_once:
            done_once.append(done)
            marks = (StateMark(back, "stored"),)
            store.publish(lambda: Entry("fetch", store.now_ns(), states=marks))

    assert history.repo.storage.gc(grace="0", progress=meanwhile).forgotten == 3
    assert done_once
    assert history.repo.checkout(back)
    assert history.repo.storage.fsck(full=True).sound


def test_undo_does_not_bring_it_back(history: CheckedHistory) -> None:
    ids = chain(history, 3)
    history.forget(ids[1])
    with pytest.raises(RefConflict, match="the data of forgotten states are deleted"):
        undo(history.repo.handle.store, history.repo.handle.config, 4)
    with pytest.raises(RefConflict, match="was forgotten on"):
        undo(
            history.repo.handle.store, history.repo.handle.config, 3
        )  # the commit that came after it
    assert refs.head(history.repo.handle.store.fresh()).commit == ids[2]
    history.repo.storage.gc(grace="0")
    history.check()


def test_a_branch_whose_tip_is_forgotten(tmp_path: Path, history: CheckedHistory) -> None:
    ids = chain(history, 3)
    history.repo.switch("side", create=True, start=str(ids[0]), force=True)
    history.forget(ids[2])
    for act in (
        lambda: history.repo.switch("main"),
        lambda: history.repo.checkout("main"),
        lambda: history.repo.checkout("main", to=tmp_path / "out"),
        lambda: history.repo.diff("main", "side"),
        lambda: history.repo.deploy("main", "prod"),
    ):
        with pytest.raises(StateForgotten, match="was forgotten on"):
            act()
    # It was live once, and that may be recorded.
    assert history.repo.deploy("main", "prod", at="2 hours ago").commit == ids[2]
    entry = history.repo.log("main")[0]
    assert entry.id == ids[2] and entry.forgotten_ns is not None
    assert history.repo.storage.stats().forgotten == 1
    history.repo.storage.gc()
    assert history.repo.storage.stats().forgotten == 1


def test_identify_tells_and_import_passes_it_over(tmp_path: Path, history: CheckedHistory) -> None:
    save_file({"w": np.arange(6.0)}, tmp_path / "a.safetensors")
    save_file({"w": np.arange(7.0)}, tmp_path / "b.safetensors")
    first, _ = mvc.import_checkpoints(
        history.repo, [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    )
    assert [f.commit for f in history.repo.identify(tmp_path / "a.safetensors")] == [first.commit]
    history.repo.storage.forget(first.commit)
    history.repo.storage.gc()
    (had,) = history.repo.identify(tmp_path / "a.safetensors")
    assert (had.commit, had.path, had.exact) == (first.commit, None, False)
    assert had.forgotten_ns is not None and had.branches == ("main",)
    (again,) = mvc.import_checkpoints(history.repo, [tmp_path / "a.safetensors"])
    assert again.is_new
    found = history.repo.identify(tmp_path / "a.safetensors")
    assert [(f.commit, f.forgotten_ns is None) for f in found] == [
        (again.commit, True),
        (first.commit, False),
    ]


def test_a_damaged_state_can_be_forgotten(history: CheckedHistory) -> None:
    ids = chain(history, 2)
    (pack,) = (history.repo.handle.store.folder / "packs").iterdir()
    (record,) = read_records(history.repo.handle.store.snapshot).records_of(1)
    history.repo.close()
    data = bytearray(pack.read_bytes())
    data[record.offset + record.header.size - 1] ^= 1  # in the first version's list of files
    pack.write_bytes(bytes(data))
    fresh_process()
    with mvc.Repository.open(history.repo.root) as repo:
        assert not repo.storage.fsck().sound
        with pytest.raises(DamagedData):
            repo.checkout(ids[0])
        chosen = forget.choose(repo.handle.store, [ids[0]])
        assert preview(repo.handle.store, repo.handle.config, chosen).tensors == 0
        assert forget.forget(repo.handle.store, repo.handle.config, chosen) is not None
        with pytest.raises(StateForgotten):
            repo.checkout(ids[0])


def test_a_delta_whose_base_is_gone_already_goes(tmp_path: Path) -> None:
    """First a state goes by rule, and its manifest with it; then its name must go as well.

    The next version's manifest was a patch against it, in a record that stays.
    """
    history = CheckedHistory(tmp_path / "r", clock=FixedClock(step_ns=10**9))
    shared = drift(np.zeros((20, 30)), 1, 1)
    first = history.commit({"w": drift(np.zeros((20, 30)), 0, 1), "x": shared}, pipeline="vsol")
    for n in range(2, 5):
        history.commit({"w": drift(np.zeros((20, 30)), n, 1), "x": shared})
    history.forget(keep_last=3)
    history.repo.storage.gc()
    history.forget(first)
    history.repo.storage.gc()
    assert traces(history, history.lost({first})) == []
    history.check()
    history.repo.close()


def test_nothing_to_commit_stays_so(history: CheckedHistory) -> None:
    """Forgetting what came before changes nothing of what HEAD holds."""
    save_file({"w": np.arange(6.0)}, history.repo.root / "m.safetensors")
    first = history.commit_files()
    save_file({"w": np.arange(7.0)}, history.repo.root / "m.safetensors")
    history.commit_files()
    history.forget(first)
    history.repo.storage.gc()
    with pytest.raises(NothingToCommit):
        history.repo.commit(files=mvc.FileOptions(all=True))
    assert history.repo.status().clean
