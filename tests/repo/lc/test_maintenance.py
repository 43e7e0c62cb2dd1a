"""gc, forget, repack, fsck and repair over chains of approximate steps, and damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mvc
from mvc.errors import DamagedData, EncodingFailed
from mvc.maintenance.repack import super_steps
from mvc.repo.commit.request import CommitOptions
from mvc.store.recovery import grouped
from mvc.store.writing import records_in_flight
from mvc.testing import open_quietly
from tests.repo.lc.histories import bits, check, first, grow, moved, packed_bytes, start


@pytest.mark.parametrize("joined", [False, True])
def test_forgetting_some_versions(tmp_path: Path, joined: bool) -> None:
    """A version whose base is forgotten goes on through it, or is stored anew."""
    with start(tmp_path) as repo:
        made, _ = grow(repo, first(), 20)
        if joined:
            repo.storage.join_steps()
        ids = list(made)
        for id_ in ids[3:7] + ids[12:13]:
            repo.storage.forget(id_)
            del made[id_]
        repo.storage.gc(grace="0")
        check(repo, made)
        assert repo.storage.fsck(full=True).sound
        repo.storage.forget(keep_last=2)
        repo.storage.gc(grace="0")
        check(repo, {id_: made[id_] for id_ in ids[-2:]})
        assert repo.storage.fsck(full=True).sound


@pytest.mark.parametrize("goal", [{"interval": 5}, {"max_recovery": 5.0}, {}])
def test_repacking(tmp_path: Path, goal: dict[str, float]) -> None:
    with start(tmp_path) as repo:
        made, state = grow(repo, first(), 14)
        more, state = grow(repo, state, 3, "lossless")
        made |= more
        repo.storage.repack(**goal)  # type: ignore[arg-type]
        check(repo, made)
        assert repo.storage.fsck(full=True).sound
        more, _ = grow(repo, state, 3)
        check(repo, made | more)


def test_the_layout_of_the_settings_leaves_steps_alone(tmp_path: Path) -> None:
    """Lossless deltas in their place would take several times the bytes."""
    with start(tmp_path) as repo:
        made, _ = grow(repo, first(), 20)
        before = packed_bytes(tmp_path)
        repo.storage.repack()
        assert packed_bytes(tmp_path) <= before
        check(repo, made)


def test_adding_and_removing_reset_points(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        made, _ = grow(repo, first(), 9)
        middle = list(made)[4]
        repo.storage.repack(add=[middle])
        assert repo.storage.stats().reset_points == 2
        check(repo, made)
        repo.storage.repack(remove=[middle])
        assert repo.storage.stats().reset_points == 1
        check(repo, made)


def test_what_nothing_leads_to_is_collected(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        made, state = grow(repo, first(), 3)
        kept = dict(made)
        repo.branch("side")
        repo.switch("side")
        grow(repo, state, 10)
        repo.switch("main")
        repo.delete_ref("branch", "side", force=True)
        before = packed_bytes(tmp_path)
        repo.storage.gc(grace="0")
        assert packed_bytes(tmp_path) < before
        check(repo, kept)


def test_a_full_fsck_decodes_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where branches grow by turns."""
    with start(tmp_path) as repo:
        _, state = grow(repo, first(), 2)
        repo.branch("side")
        for _ in range(5):
            for branch in ("main", "side"):
                repo.switch(branch)
                _, state = grow(repo, state, 2)
    decode, found = grouped.decode_shared, []

    def counted(packs: Any, step: Any, **options: Any) -> Any:
        found.append((step.pack, step.offset))
        return decode(packs, step, **options)

    monkeypatch.setattr(grouped, "decode_shared", counted)
    with open_quietly(tmp_path) as repo:
        assert repo.storage.fsck(full=True).sound
    assert len(found) == len(set(found)) > 20


def test_a_full_fsck_names_the_versions_behind_a_damaged_step(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        made, _ = grow(repo, first(), 9)
        reset = repo.commit(first(7), pipeline="lossless", options=CommitOptions(reset_point=True))
        at = next(
            step
            for content in repo.manifest(list(made)[5]).entries[0].contents
            for step in repo.handle.store.graph.codings(content.id)
            if step.header.group and step.member.base
        )
    pack = tmp_path / f".mvc/packs/{at.pack:08d}.pack"
    data = bytearray(pack.read_bytes())
    data[at.offset + at.header.body_at + 3] ^= 16
    pack.write_bytes(data)
    with open_quietly(tmp_path) as repo:
        report = repo.storage.fsck(full=True)
        assert set(report.lost) == set(list(made)[5:])
        assert report.lost == repo.storage.fsck().lost
        assert reset.id not in report.lost


@pytest.mark.parametrize("joined", [False, True])
def test_flipped_bits_are_reported(tmp_path: Path, joined: bool) -> None:
    """No bit of a step can change without being noticed, and no wrong weights come out."""
    with start(tmp_path) as repo:
        made, _ = grow(repo, first(), 9)
        if joined:
            repo.storage.join_steps()
    (pack,) = (path for path in (tmp_path / ".mvc/packs").iterdir())
    whole = pack.read_bytes()
    random = torch.Generator().manual_seed(3)
    for at in torch.randint(len(whole) // 2, len(whole), (12,), generator=random).tolist():
        pack.write_bytes(whole[:at] + bytes((whole[at] ^ 0x10,)) + whole[at + 1 :])
        with mvc.Repository.open(tmp_path) as repo:
            assert not repo.storage.fsck().sound
            for id_, expected in made.items():
                try:
                    assert bits(repo.checkout(id_)) == expected
                except DamagedData:
                    continue
    pack.write_bytes(whole)
    with mvc.Repository.open(tmp_path) as repo:
        check(repo, made)


def test_repair_takes_what_another_repository_has(tmp_path: Path) -> None:
    import shutil

    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    with start(one) as repo:
        made, _ = grow(repo, first(), 6)
    shutil.copytree(one, other)
    (pack,) = (one / ".mvc/packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[-200] ^= 255
    pack.write_bytes(data)
    with mvc.Repository.open(one) as repo:
        assert not repo.storage.fsck().sound
        repo.storage.repair(other=other)
        assert repo.storage.fsck(full=True).sound
        check(repo, made)


def test_a_version_after_a_lost_one_is_stored_exactly(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        made, state = grow(repo, first(), 3)
    (pack,) = (tmp_path / ".mvc/packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[200:4000] = bytes(3800)
    pack.write_bytes(data)
    with mvc.Repository.open(tmp_path) as repo:
        try:
            done = repo.commit(state, pipeline="lc:x=2")
        except DamagedData:
            return  # the list of files is lost, too
        assert bits(repo.checkout(done.id)) == bits(done.state)
    assert made


def test_the_index_can_be_made_anew(tmp_path: Path) -> None:
    with start(tmp_path) as repo:
        made, _ = grow(repo, first(), 5)
        repo.storage.join_steps(2)
        repo.storage.rebuild_index()
        check(repo, made)
        assert moved(first())


def test_a_joined_record_is_cut_as_a_writer_cuts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More raw bytes than a record may have: as a large model, in proportion."""
    small = 64 << 10
    monkeypatch.setattr(records_in_flight, "RECORD", small)
    monkeypatch.setattr(super_steps, "RECORD", small)
    monkeypatch.setattr(grouped, "MOST_GROUPED", 8 * small)
    monkeypatch.setattr(grouped, "MOST_JOINT", 32 * small)
    monkeypatch.setattr(super_steps, "MOST_JOINT", 32 * small)
    torch.manual_seed(0)
    state = {f"w{i}": torch.randn(128, 120) for i in range(20)}  # 1.2 MB; 64 kB are a record
    moving = {name: torch.rand_like(value) < 0.02 for name, value in state.items()}
    made = {}
    with start(tmp_path) as repo:
        for _ in range(10):
            done = repo.commit(state, pipeline="lc:x=2,huffman")
            made[done.id] = bits(done.state)
            state = {k: v + moving[k] * torch.randn_like(v) * 0.1 for k, v in state.items()}
        assert super_steps.join(repo.handle.store, repo.handle.config)
        check(repo, made)


def test_steps_stay_if_a_super_step_cannot_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path) as repo:
        made, _ = grow(repo, first(), 10, "lc:x=2,huffman")
        encode = super_steps.encode_joint

        def wrong(pipeline: Any, times: Any) -> Any:
            return encode(pipeline, [times[1], *times[1:]])

        monkeypatch.setattr(super_steps, "encode_joint", wrong)
        with pytest.raises(EncodingFailed, match="a super-step of"):
            repo.storage.join_steps()
        check(repo, made)
