"""Group records that several tensors' paths lead through are decoded once."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.ids import CommitId
from mvc.repo.lookup import manifests
from mvc.store.packs.records import Member, RecordHeader
from mvc.store.recovery import grouped
from mvc.store.recovery.rates import Rates
from mvc.testing import open_quietly


def uneven(root: Path) -> tuple[CommitId, dict[str, np.ndarray]]:
    """Versions that not all tensors move with; the last one's id and weights."""
    random = np.random.default_rng(0)
    state = {name: random.standard_normal(1000).astype(np.float32) for name in "abc"}
    with mvc.Repository.init(root) as repo:
        for i, changed in enumerate(("abc", "a", "ab", "c", "abc")):
            state = state | {name: state[name] + np.float32(1e-3) for name in changed}
            last = repo.commit(state, message=str(i), pipeline="vsol").id
    return last, state


def test_a_group_on_several_paths_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, state = uneven(tmp_path)
    decoded: list[bytes] = []
    inner = grouped.decode_group

    def counted(*arguments: object) -> object:
        decoded.append(bytes(arguments[1]))  # type: ignore[call-overload]
        return inner(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(grouped, "decode_group", counted)
    with mvc.Repository.open(tmp_path) as repo:
        back = repo.checkout(last)
    assert len(decoded) == len(set(decoded)) > 2
    assert all(np.array_equal(back[name], state[name]) for name in state)


def test_a_group_is_not_kept_after_its_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"w": np.linspace(0, 1, 1000, dtype=np.float32)}
    with mvc.Repository.init(tmp_path) as repo:
        for _ in range(12):
            last = repo.commit(state, pipeline="vsol").id
            state = {"w": state["w"] + np.float32(1e-3)}
    inner, made, alive = grouped.decode_group, list[weakref.ref[memoryview]](), list[int]()

    def counted(*arguments: object) -> object:
        alive.append(sum(part() is not None for part in made))
        decoded = inner(*arguments)  # type: ignore[arg-type]
        made.extend(weakref.ref(part) for part, _ in decoded)
        return decoded

    monkeypatch.setattr(grouped, "decode_group", counted)
    monkeypatch.setattr(grouped, "cpu_count", lambda: 1)
    with open_quietly(tmp_path) as repo:
        repo.checkout(last)
    assert len(alive) > 3
    assert max(alive) <= 2  # one waits, the next is decoded


def test_the_estimate_counts_each_group_of_a_version_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def a_second_per_byte(self: Rates, header: RecordHeader, member: Member) -> float:
        return float(member.nbytes)

    last, _ = uneven(tmp_path)
    monkeypatch.setattr(Rates, "payload", a_second_per_byte)
    with mvc.Repository.open(tmp_path) as repo:
        store = repo.handle.store
        contents = manifests.of_commit(repo.handle.store, last).all_entries[0].contents
        walks = [(c.spec.nbytes, c.spec, store.graph.path(c.id).steps) for c in contents]
        groups = {(s.pack, s.offset): s.header for _, _, steps in walks for s in steps}
        works = Rates().works(walks)
    raw = sum(member.nbytes for header in groups.values() for member in header.members)
    shared = sum(nbytes for nbytes, _, steps in walks for _ in steps)
    assert raw > sum(nbytes for nbytes, _ in works)
    assert raw != shared  # so that shares of the groups do not do
    assert sum(seconds for _, seconds in works) == pytest.approx(raw, rel=1e-3)
