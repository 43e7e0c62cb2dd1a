import os
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.api import Repository
from mvc.errors import DamagedData, SourceChanged, UnknownPath, UnknownRevision, WrongUsage
from mvc.repo.commit.request import FileOptions
from mvc.repo.content.compare import FileDiff
from mvc.repo.diff import diff as module
from mvc.repo.diff.diff import Diff
from tests.repo.working import tensors_of, write_model

NAME = "m.safetensors"


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """Two versions of a model; the second differs in one tensor of three."""
    repo = Repository.init(tmp_path / "models")
    write_model(repo.root / NAME)
    repo.commit(repo.root / NAME, message="one")
    change(repo, 1.5)
    repo.commit(message="two", files=FileOptions(all=True))
    return repo


def change(repo: Repository, by: float) -> None:
    layer = tensors_of(repo.root / NAME)["layer1.weight"].copy()
    layer[0, :3] += np.float32(by)
    write_model(repo.root / NAME, **{"layer1.weight": layer})


def only(found: Diff) -> FileDiff:
    (file,) = found.files
    return file


def test_two_versions(repo: Repository) -> None:
    found = repo.diff("HEAD~1", "HEAD")
    assert (found.a, found.b, found.comparisons) == ("HEAD~1", "HEAD", 5)
    rows = {t.key: t for t in only(found).tensors}
    assert {k: t.kind for k, t in rows.items()} == {
        "layer0.weight": "unchanged",
        "layer1.weight": "changed",
        "layer2.weight": "unchanged",
    }
    row = rows["layer1.weight"]
    assert row.changed_share == pytest.approx(3 / 600)
    assert row.l2 == pytest.approx(1.5 * 3**0.5, rel=1e-5)
    assert row.max_abs == pytest.approx(1.5, rel=1e-5)
    assert row.cosine is not None and 0.9 < row.cosine < 1
    assert rows["layer0.weight"].changed_share == 0.0


def test_equal_versions_cost_one_comparison(repo: Repository) -> None:
    found = repo.diff("HEAD", "main")
    assert (only(found).kind, found.comparisons) == ("unchanged", 1)


def test_the_working_folder_is_the_default(repo: Repository) -> None:
    assert only(repo.diff()).kind == "unchanged"
    change(repo, 2.0)
    assert only(repo.diff()).changed_tensors == 1
    (repo.root / "untracked.safetensors").write_bytes((repo.root / NAME).read_bytes())
    assert [f.path for f in repo.diff("HEAD~1").files] == [NAME]
    (repo.root / NAME).unlink()
    assert only(repo.diff()).kind == "removed"


def test_only_tensors_that_differ_are_read(repo: Repository, monkeypatch) -> None:
    read = []
    original = module.tensor_pieces

    def spy(side, reader, entry, tensor, buffer):
        read.append((side.label, tensor.key))
        return original(side, reader, entry, tensor, buffer)

    monkeypatch.setattr(module, "tensor_pieces", spy)
    repo.diff("HEAD~1", "HEAD")
    assert sorted(read) == [("HEAD", "layer1.weight"), ("HEAD~1", "layer1.weight")]


def test_a_file_on_disk(repo: Repository, tmp_path: Path, monkeypatch) -> None:
    elsewhere = tmp_path / "download.safetensors"
    elsewhere.write_bytes((repo.root / NAME).read_bytes())
    found = repo.diff("HEAD", str(elsewhere))
    assert (only(found).path, only(found).kind) == (NAME, "unchanged")
    backwards = repo.diff(str(elsewhere), "HEAD~1")
    assert (only(backwards).path, only(backwards).changed_tensors) == (NAME, 1)
    change(repo, 3.0)
    monkeypatch.chdir(repo.root)
    assert only(repo.diff(NAME)).changed_tensors == 1
    both = repo.diff(str(elsewhere), NAME)
    assert (both.a, only(both).changed_tensors) == (str(elsewhere), 1)
    with pytest.raises(WrongUsage):
        repo.diff(str(elsewhere), "HEAD", [NAME])


def test_a_file_of_no_state_of_its_name(repo: Repository, tmp_path: Path) -> None:
    write_model(repo.root / "second.safetensors", seed=9)
    repo.commit(repo.root / "second.safetensors")
    elsewhere = tmp_path / "download.safetensors"
    write_model(elsewhere)
    with pytest.raises(UnknownPath, match="not exactly one state"):
        repo.diff("HEAD", str(elsewhere))
    write_model(tmp_path / "second.safetensors")
    os.replace(tmp_path / "second.safetensors", repo.root / "second.safetensors")
    assert only(repo.diff("HEAD", str(repo.root / "second.safetensors"))).kind == "changed"


def test_neither_revision_nor_file(repo: Repository) -> None:
    with pytest.raises(UnknownRevision, match="no file of this name"):
        repo.diff("nothing.pt", "HEAD")
    with pytest.raises(UnknownPath, match="absent"):
        repo.diff("HEAD~1", "HEAD", ["absent"])


def test_paths_narrow_a_diff(repo: Repository) -> None:
    write_model(repo.root / "sub" / "x.safetensors", seed=4)
    write_model(repo.root / "subway.safetensors", seed=5)
    repo.commit(repo.root)
    assert [f.path for f in repo.diff("HEAD~1", "HEAD").files] == [
        NAME,
        "sub/x.safetensors",
        "subway.safetensors",
    ]
    for paths in (["sub"], ["sub/"], ["sub/x.safetensors"]):
        assert only(repo.diff("HEAD~1", "HEAD", paths)).kind == "added"
    assert len(repo.diff("HEAD~1", "HEAD", ["."]).files) == 3


def test_a_moved_file(repo: Repository) -> None:
    (repo.root / NAME).rename(repo.root / "moved.safetensors")
    repo.commit([repo.root / "moved.safetensors", repo.root / NAME])
    file = only(repo.diff("HEAD~1", "HEAD"))
    assert (file.path, file.kind, file.renamed_from) == ("moved.safetensors", "renamed", NAME)


def test_renamed_resized_and_retyped_tensors(repo: Repository) -> None:
    rng = np.random.default_rng(3)
    a = {k: torch.tensor(rng.standard_normal((8, 4)), dtype=torch.float32) for k in "abcd"}
    repo.commit(a, path="s.safetensors")
    b = {
        "module.a": a["a"] + 1,
        "moved": a["b"].clone(),
        "c": a["c"].to(torch.bfloat16),
        "d": torch.zeros(9, 4),
    }
    repo.commit(b, path="s.safetensors")
    file = only(repo.diff("HEAD~1", "HEAD", ["s.safetensors"]))
    rows = {t.key: t for t in file.tensors}
    assert {k: (t.kind, t.renamed_from) for k, t in rows.items()} == {
        "module.a": ("renamed", "a"),
        "moved": ("renamed", "b"),
        "c": ("changed", None),
        "d": ("resized", None),
    }
    assert rows["module.a"].l2 == pytest.approx(32**0.5)
    assert rows["moved"].changed_share == 0.0
    assert rows["c"].changed_share == 1.0
    assert rows["c"].l2 == pytest.approx(float((b["c"].double() - a["c"].double()).norm()))
    assert rows["d"].l2 is None
    assert file.other_changed


def test_the_same_state_in_two_formats(repo: Repository, tmp_path: Path) -> None:
    state = {k: torch.tensor(v) for k, v in tensors_of(repo.root / NAME).items()}
    torch.save(state, tmp_path / "m.pt")
    found = repo.diff("HEAD", str(tmp_path / "m.pt"))
    assert found.comparisons == 1
    assert {t.kind for t in only(found).tensors} == {"unchanged"}
    assert (only(found).kind, only(found).other_changed) == ("changed", True)


def test_views_are_compared_as_tensors(repo: Repository) -> None:
    base = torch.arange(64.0).reshape(8, 8)
    torch.save({"view": base.t(), "row": base[2]}, repo.root / "v.pt")
    repo.commit(repo.root / "v.pt")
    base[2, 3] += 0.5
    torch.save({"view": base.t(), "row": base[2]}, repo.root / "v.pt")
    found = repo.diff("HEAD", None, ["v.pt"])
    rows = {t.key: t for t in only(found).tensors}
    assert (rows["row"].changed_share, rows["row"].l2) == (1 / 8, 0.5)
    assert (rows["view"].changed_share, rows["view"].max_abs) == (1 / 64, 0.5)


def test_a_file_that_changes_meanwhile(repo: Repository) -> None:
    change(repo, 1.0)
    head = module.version(repo.handle.store, repo.find("HEAD"), "HEAD")
    side = module.working_folder(repo.handle.store, head.entries, [])
    entry = side.entries[NAME]
    change(repo, 7.0)
    tensor = next(t for t in entry.tensors if t.key == "layer1.weight")
    with side.open(entry) as (read, _), pytest.raises(SourceChanged, match=NAME):
        list(module.tensor_pieces(side, read, entry, tensor, memoryview(bytearray(2400))))
    write_model(repo.root / NAME, layers=5)
    with pytest.raises(SourceChanged), side.open(entry):
        pass


def test_what_is_read_is_verified(repo: Repository, monkeypatch) -> None:
    from mvc.store.recovery.recover import Recovery

    original = Recovery.piece

    def wrong(self, id_, start, out, **options):
        path = original(self, id_, start, out, **options)
        out[0] ^= 1
        return path

    monkeypatch.setattr(Recovery, "piece", wrong)
    with pytest.raises(DamagedData, match="does not match its hash"):
        repo.diff("HEAD~1", "HEAD")


def test_before_the_first_commit(tmp_path: Path) -> None:
    repo = Repository.init(tmp_path / "empty")
    assert repo.diff().files == ()


def test_progress_counts_what_is_read(repo: Repository) -> None:
    from mvc.repo.diff.diff import diff

    told = []
    diff(repo.handle.store, "HEAD~1", "HEAD", progress=lambda *args: told.append(args))
    assert told == [(2400, 2400, NAME)]


@pytest.fixture
def python(tmp_path: Path) -> Repository:
    """Two versions of a Python state that was never written as a file."""
    repo = Repository.init(tmp_path / "python")
    for value in (1.0, 4.0):
        repo.commit({"w": np.full(2, value)})
    return repo


def test_a_python_state_without_a_file_is_as_in_head(python: Repository) -> None:
    found = python.diff()
    assert (found.a, found.b, found.from_head) == ("HEAD", "HEAD", ("model.safetensors",))
    assert [f.kind for f in found.files] == ["unchanged"]
    found = python.diff("HEAD~1")
    assert (found.a, found.b) == ("HEAD~1", "HEAD")
    assert found.files[0].tensors[0].max_abs == 3.0
    assert python.diff("HEAD~1", "HEAD").from_head == ()


def test_files_and_python_states_side_by_side(python: Repository) -> None:
    write_model(python.root / NAME)
    python.commit(python.root / NAME)
    change(python, 2.0)
    found = python.diff("HEAD~2")
    assert (found.b, found.from_head) == ("the working folder", ("model.safetensors",))
    kinds = {f.path: f.kind for f in found.files}
    assert kinds == {NAME: "added", "model.safetensors": "changed"}
    assert python.diff(None, None, [NAME]).from_head == ()


def test_a_python_state_that_was_written_is_a_file(python: Repository) -> None:
    python.checkout("HEAD", path=["model.safetensors"], to=python.root)
    assert python.diff().from_head == ()


@pytest.mark.parametrize(
    ("changed", "comparisons"),
    [(set(), 1), ({62, 63}, 13), ({22, 23, 24, 25, 62, 63}, 29), (set(range(64)), 127)],
)
def test_the_comparisons_of_mmlib(tmp_path: Path, changed: set[int], comparisons: int) -> None:
    """Known answers for 64 tensors; the tree compares as many hashes as the thesis counts."""
    state = {f"t{i:02}": np.float32(i) for i in range(64)}
    with Repository.init(tmp_path / "r") as repo:
        repo.commit(state)
        repo.commit(state | {f"t{i:02}": np.float32(-1 - i) for i in changed})
        found = repo.diff("HEAD~1", "HEAD")
    assert found.comparisons == comparisons
    rows = [int(t.key[1:]) for t in only(found).tensors if t.kind == "changed"]
    assert set(rows) == changed
    kind = {0: "equal", 64: "fully updated"}.get(len(changed), "fine-tuned version")
    assert found.relations["model.safetensors"].kind == kind


def test_what_was_imported_and_never_written_is_as_in_head(tmp_path: Path) -> None:
    runs, repo = tmp_path / "runs", Repository.init(tmp_path / "repo")
    runs.mkdir()
    for i in range(3):
        np.save(runs / f"m{i}.npy", np.full(4, i))
        os.utime(runs / f"m{i}.npy", (1_700_000_000 + i,) * 2)
    mvc.import_checkpoints(repo, [runs], path="m.npy")
    found = repo.diff("HEAD~2")
    assert (found.a, found.b, found.from_head) == ("HEAD~2", "HEAD", ("m.npy",))
    assert only(found).kind == "changed" and only(found).tensors[0].max_abs == 2.0
    assert only(repo.diff()).kind == "unchanged"
    repo.checkout("HEAD~1", path=["m.npy"], to=repo.root)
    assert only(repo.diff("HEAD~2")).tensors[0].max_abs == 1.0
    repo.commit(repo.root / "m.npy")
    (repo.root / "m.npy").unlink()
    assert only(repo.diff("HEAD~2")).kind == "removed"


def test_what_a_switch_has_written_is_removed_with_its_file(tmp_path: Path) -> None:
    repo = Repository.init(tmp_path / "repo")
    for i in range(2):
        np.save(tmp_path / "m.npy", np.full(4, i))
        mvc.import_checkpoints(repo, [tmp_path / "m.npy"], path="m.npy")
    repo.branch("other", "HEAD~1")
    repo.switch("other")
    repo.switch("main")
    (repo.root / "m.npy").unlink()
    assert only(repo.diff()).kind == "removed"
