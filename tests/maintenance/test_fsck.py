import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mvc.api.repository import Repository
from mvc.errors import HistoryMissing, ReadOnly
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.maintenance.fsck.fsck import FsckReport, forget_index, fsck
from mvc.model.commit import Commit
from mvc.model.statement import Deployment, Retraction
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.publishing.publish import publish
from tests.repo.working import write_model

NAME = "m.safetensors"


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """Three versions: two deltas on a full record, an opaque file, views."""
    repo = Repository.init(tmp_path / "models")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((60, 50)).astype(np.float32)
    base = torch.arange(64.0).reshape(8, 8)
    torch.save({"view": base.t(), "row": base[2]}, repo.root / "v.pt")
    (repo.root / "notes.txt").write_text("hello")
    for i in range(3):
        weights = weights + rng.standard_normal(weights.shape).astype(np.float32) * 1e-5
        write_model(repo.root / NAME, layers=1, w=weights)
        repo.commit(repo.root, message=f"version {i}", deploy="prod")
    repo.tag("v1", "HEAD~1")
    return repo


def check(repo: Repository, *, full: bool = False) -> FsckReport:
    repo.close()
    with Repository.open(repo.root) as fresh:
        return fresh.storage.fsck(full=full)


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def packs(repo: Repository) -> list[Path]:
    return sorted((repo.root / ".mvc" / "packs").iterdir())


@pytest.mark.parametrize("full", [False, True])
def test_a_sound_repository(repo: Repository, full: bool) -> None:
    report = check(repo, full=full)
    assert report.sound and report.problems == () and report.notes == ()
    assert (report.versions, report.entries, report.full) == (3, 5, full)
    assert report.records >= 3 and report.objects >= 8
    on_disk = sum(p.stat().st_size - 8 for p in packs(repo))
    on_disk += (repo.root / ".mvc" / "journal").stat().st_size
    assert report.checked_bytes >= on_disk
    assert (report.checked_bytes == on_disk) is not full


def test_an_empty_repository(tmp_path: Path) -> None:
    assert Repository.init(tmp_path / "models").storage.fsck(full=True).sound


def test_a_damaged_payload_names_what_it_touches(repo: Repository) -> None:
    """The full record's payload: every version's tensor hangs on it."""
    repo.close()
    with Repository.open(repo.root) as opened:
        ids = [commit.id for commit in opened.log()]
        entry = opened.manifest("HEAD~2").by_path[NAME]
        content = next(entry.contents[t.content] for t in entry.tensors if t.key == "w")
        (step,) = opened.handle.store.graph.path(content.id).steps
    body = step.offset + step.header.body_at + step.member.at
    flip(packs(repo)[step.pack - 1], body + 100)
    report = check(repo)
    kinds = {p.kind for p in report.problems}
    assert kinds == {"payload", "lost"}
    (payload,) = [p for p in report.problems if p.kind == "payload"]
    assert payload.object == content.id.hex()
    assert payload.versions == (ids[2],)
    assert payload.tensors == (f"{NAME}: w",)
    assert f"pack {step.pack}" in payload.where
    assert payload.message.endswith("no other record can recover it")
    lost = [p for p in report.problems if p.kind == "lost"]
    assert {v for p in lost for v in p.versions} == set(ids[:2])
    assert set(report.lost) == set(ids[:3])
    assert payload.object not in {p.object for p in lost}
    assert {t for p in lost for t in p.tensors} == {f"{NAME}: w"}


def test_a_damaged_record_header(repo: Repository) -> None:
    flip(packs(repo)[0], 30)
    report = check(repo)
    assert any((p.kind, p.object) == ("record", "00000001.pack") for p in report.problems)
    assert any(p.kind in {"lost", "manifest"} and p.versions for p in report.problems)


def test_a_missing_pack(repo: Repository) -> None:
    repo.close()
    size = packs(repo)[0].stat().st_size - 8
    packs(repo)[0].unlink()
    report = check(repo)
    first, *others = report.problems
    assert (first.kind, first.object) == ("pack", "00000001.pack")
    assert first.message == f"the file is missing, with {size:,} bytes of records"
    assert {p.kind for p in others} == {"manifest"}
    assert len(report.lost) == 3 == len({v for p in others for v in p.versions})
    assert report.checked_bytes == (repo.root / ".mvc/journal").stat().st_size


def test_all_packs_missing(repo: Repository) -> None:
    repo.close()
    shutil.rmtree(repo.root / ".mvc" / "packs")
    report = check(repo)
    assert (report.problems[0].kind, report.problems[0].object) == ("pack", "packs")
    assert "folder" in report.problems[0].message and report.notes
    assert [p.kind for p in report.problems[1:]] == ["manifest"] * 3
    assert len(report.lost) == 3


def test_one_copy_of_an_entry(repo: Repository) -> None:
    journal = repo.root / ".mvc" / "journal"
    repo.close()
    flip(journal, 50)
    report = check(repo)
    (problem,) = report.problems
    assert problem.kind == "journal" and "copies" in problem.message
    assert report.notes[0].startswith("no data is lost")
    assert report.versions == 3


def test_both_copies_of_an_entry(repo: Repository) -> None:
    """What stands behind the break is still found by the index."""
    view = repo.handle.store.snapshot
    second = list(view.entries())[1]
    view.index_tail(force=True)
    repo.close()
    journal = repo.root / ".mvc" / "journal"
    half = (second.after.offset - second.offset) // 2
    flip(journal, second.offset + 60)
    flip(journal, second.offset + half + 60)
    report = check(repo)
    (broken,) = [p for p in report.problems if p.kind == "journal"]
    assert "both copies" in broken.message
    assert second.entry.commits[0].id.short in broken.message
    assert broken.where == f"byte {second.offset}"
    assert any("--from" in note for note in report.notes)
    assert any(p.kind == "reference" and "parent" in p.object for p in report.problems)
    assert report.versions == 3
    assert second.entry.commits[0].id in report.lost


def test_leftovers_are_no_damage(repo: Repository) -> None:
    repo.close()
    with packs(repo)[0].open("ab") as pack:
        pack.write(b"an interrupted commit")
    with (repo.root / ".mvc" / "journal").open("ab") as journal:
        journal.write(b"mvJ1 an interrupted entry")
    report = check(repo)
    assert report.sound
    assert len(report.notes) == 2
    assert any("21 bytes" in note for note in report.notes)


def test_references_to_nowhere(repo: Repository) -> None:
    store = repo.handle.store
    ghost = CommitId(b"g" * 32)
    publish(  # without the checks of Store.publish
        store.snapshot,
        lambda: Entry(
            "tag",
            store.clock.now_ns(),
            refs=(RefChange("tags/ghost", None, ghost),),
            statements=(
                Deployment(subject=ghost, target="prod", time_ns=5),
                Retraction(subject=ghost, target="prod"),
            ),
        ),
    )
    problems = check(repo).problems
    assert [p.kind for p in problems] == ["reference"] * 3
    assert sum("not in the repository" in p.message for p in problems) == 2
    assert sum("is about a statement that is not recorded" in p.message for p in problems) == 1


def test_a_commit_whose_root_is_not_its_files(repo: Repository) -> None:
    store = repo.handle.store
    head = next(iter(repo.log()))
    wrong = Commit(head.commit.manifest, type(head.commit.root)(b"r" * 32), (head.id,), "me", 5, 0)
    store.publish(
        lambda: Entry(
            "commit", 5, commits=(wrong,), refs=(RefChange("heads/main", head.id, wrong.id),)
        )
    )
    (problem,) = check(repo).problems
    assert (problem.kind, problem.versions) == ("manifest", (wrong.id,))


def test_full_finds_what_checksums_cannot(repo: Repository, monkeypatch) -> None:
    """A sound payload that decodes to something else, as a faulty encoder would write it."""
    from mvc.store.recovery import decode, recover, walk

    def wrong(packs, steps, out, *rest, **options):
        decode.apply_steps(packs, steps, out, *rest, **options)
        if len(out) == 12000:
            out[0] ^= 1

    monkeypatch.setattr(recover, "LOADED", 0)  # no object is hashed while it is decoded
    monkeypatch.setattr(walk, "apply_steps", wrong)
    assert check(repo).sound
    problems = check(repo, full=True).problems
    assert [p.kind for p in problems] == ["content"] * 3
    assert {t for p in problems for t in p.tensors} == {f"{NAME}: w"}
    assert len({v for p in problems for v in p.versions}) == 3


def test_an_index_that_lies_is_found_and_rebuilt(repo: Repository, tmp_path: Path) -> None:
    """An index of the same journal that lost some keys, with sound checksums."""
    from mvc.store.index import keys

    view = repo.handle.store.snapshot
    original = keys.entry_keys
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            keys, "entry_keys", lambda r: (k for k in original(r) if k[:1] != keys.DEPLOYED)
        )
        view.rebuild_index()
    (problem,) = check(repo).problems
    assert (problem.kind, problem.object) == ("index", "index.lmdb")
    with Repository.open(repo.root) as fresh:
        fresh.storage.rebuild_index()
        assert fsck(fresh.handle.store).sound
        assert len(fresh.deployments("prod")) == 3
    assert check(repo).sound


def test_a_lost_journal_end_and_its_acceptance(repo: Repository) -> None:
    view = repo.handle.store.snapshot
    view.index_tail(force=True)
    last = list(view.entries())[-1]
    repo.close()
    journal = repo.root / ".mvc" / "journal"
    journal.write_bytes(journal.read_bytes()[: last.offset])
    with pytest.raises(HistoryMissing):
        Repository.open(repo.root)
    forget_index(FileSystem(), repo.root / ".mvc")
    with Repository.open(repo.root) as fresh:
        assert fresh.storage.fsck(full=True).sound
        assert fresh.refs("tag") == []


def test_rebuilding_needs_a_writable_folder(repo: Repository) -> None:
    repo.handle.store.writable = False
    with pytest.raises(ReadOnly):
        repo.storage.rebuild_index()


def test_whole_model_pipelines(tmp_path: Path) -> None:
    repo = Repository.init(tmp_path / "models")
    for seed in range(3):
        write_model(repo.root / NAME, seed=seed)
        repo.commit(repo.root / NAME, pipeline="vsol")
    assert check(repo, full=True).sound
    pack = packs(repo)[0]
    shutil.copy(pack, tmp_path / "kept")
    flip(pack, pack.stat().st_size - 3)
    problems = check(repo).problems
    assert problems and all(p.kind in {"payload", "lost", "manifest"} for p in problems)


def test_progress_reaches_its_end(repo: Repository) -> None:
    told: list[tuple[int, int, str]] = []
    repo.storage.fsck(full=True, progress=lambda *args: told.append(args))
    assert [d for d, _, _ in told] == sorted(d for d, _, _ in told)
    assert all(done <= total for done, total, _ in told)


def test_a_pack_that_is_deleted_while_fsck_looks_is_no_error(repo: Repository) -> None:
    """As gc does it: between a look at the folder and the opening of a file."""

    class Sweeping(FileSystem):
        def list(self, path: Path) -> list[str]:
            gone = ["00000099.pack"] if path.name == "packs" else []
            return [*super().list(path), *gone]

    root = repo.root
    repo.close()
    with Repository.open(root, fs=Sweeping()) as beside:
        assert beside.storage.fsck().problems == ()
