"""Journal entries lost in both copies: what is sound comes back, the rest says so."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mvc import clone
from mvc.api.repository import Repository
from mvc.errors import DamagedData, HistoryMissing, MvcError
from mvc.ids import CommitId
from mvc.model.statement import Deployment
from mvc.repo.commit.request import CommitOptions
from mvc.repo.history import log as history_log
from mvc.store.journal.frames import Recorded
from mvc.testing import fresh_process
from tests.cli.program import Mvc

COUNT = 8
LOST = (3, 7)  # the second one is HEAD's, the last entry but one
MODEL = "model.safetensors"


@dataclass
class Story:
    """Eight versions, two of whose entries are lost. ``indexed``: the index knew of them."""

    root: Path
    ids: list[CommitId]
    entries: list[Recorded]
    indexed: bool

    @property
    def sound(self) -> list[int]:
        return [i for i in range(COUNT) if i not in LOST]


def weights(i: int) -> np.ndarray:
    return np.random.default_rng(i).standard_normal(500).astype(np.float32)


def destroy(journal: Path, recorded: Recorded, *, at: int = 60) -> None:
    """Damages both copies of an entry."""
    data = bytearray(journal.read_bytes())
    for begin in (recorded.offset, recorded.offset + recorded.half):
        data[begin + at] ^= 1
    journal.write_bytes(data)


def make(root: Path, *, indexed: bool, last: bool = False) -> Story:
    with Repository.init(root) as repo:
        ids = [
            repo.commit(
                {"w": weights(i)},
                message=f"v{i}",
                deploy="prod",
                options=CommitOptions(reset_point=True),
            ).id
            for i in range(COUNT)
        ]
        if not last:
            repo.tag("after", str(ids[5]))
        view = repo.handle.store.snapshot
        view.index_tail(force=True)
        entries = list(view.entries())
    if not indexed:
        shutil.rmtree(root / ".mvc" / "index.lmdb")
    for i in LOST:
        destroy(root / ".mvc" / "journal", entries[1 + i])
    fresh_process()
    return Story(root, ids, entries, indexed)


@pytest.fixture(params=[True, False], ids=["indexed", "not indexed"])
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Story:
    return make(tmp_path / "models", indexed=request.param)


@pytest.fixture
def mvc(capsys: pytest.CaptureFixture[str]) -> Mvc:
    return Mvc(Path(), capsys)


def test_sound_versions_come_back_by_id(story: Story, tmp_path: Path) -> None:
    with Repository.open(story.root) as repo:
        for i in story.sound:
            id_ = str(story.ids[i])
            assert repo.checkout(id_)["w"].tobytes() == weights(i).tobytes()
            assert repo.checkout(id_[:12])["w"].tobytes() == weights(i).tobytes()
            repo.checkout(id_, to=tmp_path / f"{i}.safetensors")
            assert weights(i).tobytes() in (tmp_path / f"{i}.safetensors").read_bytes()
        for i in LOST:
            with pytest.raises(MvcError):
                repo.checkout(str(story.ids[i]))
        with pytest.raises(DamagedData):
            repo.checkout("HEAD")


def test_a_tag_behind_the_lost_entries_is_sound(story: Story) -> None:
    with Repository.open(story.root) as repo:
        assert repo.checkout("after")["w"].tobytes() == weights(5).tobytes()
        assert [tag.name for tag in repo.refs("tag")] == ["after"]


def test_fsck_names_what_is_lost(story: Story) -> None:
    with Repository.open(story.root) as repo:
        report = repo.storage.fsck()
    journal = [p for p in report.problems if p.kind == "journal"]
    assert [p.where for p in journal] == [f"byte {story.entries[1 + i].offset}" for i in LOST]
    assert story.ids[3] in report.lost  # version 4 names it as its parent
    assert not set(report.lost) & {story.ids[i] for i in story.sound}
    if story.indexed:  # nothing names the newest version but the first bytes in the index
        assert story.ids[7].short in journal[1].message
    assert report.versions == COUNT - 2 + len(report.lost)


def test_log_says_that_history_is_incomplete(story: Story, mvc: Mvc) -> None:
    with Repository.open(story.root) as repo:
        incomplete: list[DamagedData] = []
        found = list(
            history_log.log(
                repo.handle.store,
                str(story.ids[6]),
                history_log.LogOptions(),
                incomplete=incomplete,
            )
        )
        assert [e.id for e in found] == [story.ids[i] for i in (6, 5, 4)]
        assert incomplete
        with pytest.raises(DamagedData):
            list(repo.log(str(story.ids[6])))
    done = mvc("-C", story.root, "log", "--oneline", story.ids[6], code=4)
    assert done.out.count("\n") == 3 and "incomplete" in done.err
    done = mvc("-C", story.root, "log", "--json", story.ids[6], code=4)
    assert done.json["incomplete"] and len(done.json["commits"]) == 3
    done = mvc("-C", story.root, "show", story.ids[5], code=0 if story.indexed else 4)
    assert str(story.ids[5]) in done.out


def test_deployments_say_that_they_are_incomplete(story: Story, mvc: Mvc) -> None:
    with Repository.open(story.root) as repo:
        incomplete: list[DamagedData] = []
        found = repo.deployments("prod", incomplete=incomplete)
        assert [d.commit for d in found] == [story.ids[i] for i in story.sound] and incomplete
        with pytest.raises(DamagedData):
            repo.deployments("prod")
    done = mvc("-C", story.root, "deploy", "--list", "prod", code=4)
    assert done.out.count(" prod ") == 6 and "incomplete" in done.err


def test_a_moment_is_answered_where_the_evidence_is_sound(story: Story) -> None:
    """The index tells which entries spoke of the target; without it any of them may have."""
    with Repository.open(story.root) as repo:
        for i in range(COUNT):
            moment = story.entries[1 + i].entry.of(Deployment)[0].time_ns
            try:
                found = repo.checkout(at=moment, target="prod")["w"].tobytes()
            except DamagedData:
                assert i in LOST or not story.indexed
            else:
                assert story.indexed and found == weights(i).tobytes()


def test_what_a_lost_entry_may_have_forgotten_leaves_for_nowhere(tmp_path: Path) -> None:
    """It comes back by its id, as it is stored; nobody knows whether it may be given away."""
    with Repository.init(tmp_path / "models") as repo:
        ids = [
            repo.commit({"w": weights(i)}, options=CommitOptions(reset_point=True)).id
            for i in range(3)
        ]
        repo.storage.forget([ids[1]])
        forgetting = list(repo.handle.store.snapshot.entries())[-1]
        repo.tag("after", str(ids[2]))
        root = repo.root
    shutil.rmtree(root / ".mvc" / "index.lmdb")
    destroy(root / ".mvc" / "journal", forgetting)
    fresh_process()
    with Repository.open(root) as repo:
        assert repo.checkout(str(ids[1]))["w"].tobytes() == weights(1).tobytes()
        with pytest.raises(DamagedData):
            clone(str(root), tmp_path / "clone")


def test_nothing_is_written(story: Story, mvc: Mvc) -> None:
    with Repository.open(story.root) as repo:
        before = (story.root / ".mvc" / "journal").read_bytes()
        for act in (
            lambda: repo.commit({"w": weights(9)}),
            lambda: repo.checkout(str(story.ids[0]), to=repo.root),
            lambda: repo.storage.gc(),
            lambda: repo.storage.repack(),
            lambda: repo.undo(),
            lambda: repo.deploy(str(story.ids[0]), "test"),
            lambda: repo.tag("new", str(story.ids[0])),
        ):
            with pytest.raises(DamagedData) as error:
                act()
            assert error.value.hint
        assert (story.root / ".mvc" / "journal").read_bytes() == before
    for option in ("--rebuild-index", "--repair"):
        mvc("-C", story.root, "fsck", option, code=4)
        assert (story.root / ".mvc" / "journal").read_bytes() == before


@pytest.mark.parametrize("at", [2, 5, 60], ids=["magic", "length", "payload"])
def test_the_last_entries_and_any_field(tmp_path: Path, at: int) -> None:
    """The witness knows that there was an entry; its bytes are still there, but damaged."""
    story = make(tmp_path / "models", indexed=False, last=True)
    for i in LOST:
        destroy(story.root / ".mvc" / "journal", story.entries[1 + i], at=at)
        destroy(story.root / ".mvc" / "journal", story.entries[1 + i])
    with Repository.open(story.root) as repo:
        for i in story.sound:
            assert repo.checkout(str(story.ids[i]))["w"].tobytes() == weights(i).tobytes()
        with pytest.raises(DamagedData):
            repo.checkout("HEAD")
        with pytest.raises(DamagedData):
            repo.deploy(str(story.ids[0]), "test")
        assert not repo.storage.fsck().sound


def test_a_lost_end_can_be_given_up(tmp_path: Path, mvc: Mvc) -> None:
    story = make(tmp_path / "models", indexed=False, last=True)
    journal = story.root / ".mvc" / "journal"
    destroy(journal, story.entries[1 + 3])  # sound again
    with Repository.open(story.root) as repo, pytest.raises(DamagedData):
        repo.checkout("HEAD")
    done = mvc("-C", story.root, "fsck", "--rebuild-index")
    assert "discarded" in done.err
    with Repository.open(story.root) as repo:
        assert repo.checkout("HEAD")["w"].tobytes() == weights(6).tobytes()
        repo.deploy("HEAD", "test")
        assert repo.storage.fsck().sound


def test_a_journal_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    story = make(tmp_path / "models", indexed=False, last=True)
    journal = story.root / ".mvc" / "journal"
    journal.write_bytes(journal.read_bytes()[: story.entries[7].offset])
    with pytest.raises(HistoryMissing):
        Repository.open(story.root)


def test_two_entries_in_a_row_and_a_second_copy(tmp_path: Path) -> None:
    """Behind two lost entries, only the second copy of the next one is left."""
    story = make(tmp_path / "models", indexed=False)
    journal = story.root / ".mvc" / "journal"
    data = bytearray(journal.read_bytes())
    fourth, fifth = story.entries[1 + 4], story.entries[1 + 5]
    data[fourth.offset : fourth.after.offset] = bytes(fourth.after.offset - fourth.offset)
    data[fifth.offset + 60] ^= 1
    journal.write_bytes(data)
    with Repository.open(story.root) as repo:
        for i in (0, 1, 2, 5, 6):
            assert repo.checkout(str(story.ids[i]))["w"].tobytes() == weights(i).tobytes()
        offsets = [r.offset for r in repo.handle.store.snapshot.entries(lost=lambda gap: None)]
        lost = {story.entries[1 + i].offset for i in (3, 4, 7)}
        assert offsets == [r.offset for r in story.entries if r.offset not in lost]


def test_a_repair_is_seen_by_who_has_it_open(tmp_path: Path) -> None:
    story = make(tmp_path / "models", indexed=False)
    journal = story.root / ".mvc" / "journal"
    with Repository.open(story.root) as repo:
        with pytest.raises(DamagedData):
            repo.deploy(str(story.ids[0]), "test")
        for i in LOST:
            destroy(journal, story.entries[1 + i])  # the same bits again
        assert repo.checkout("HEAD")["w"].tobytes() == weights(7).tobytes()
        repo.deploy(str(story.ids[0]), "test")
        assert repo.storage.fsck().sound
