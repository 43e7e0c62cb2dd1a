"""What a version carries beside its files, and the versions that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.errors import (
    DamagedData,
    InvalidName,
    StateForgotten,
    UnknownPath,
    UnknownRevision,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.names import ATTACHED
from mvc.repo.commit.result import CommitResult
from tests.oracle import reader

CODE = b"class Net: ...\n" * 40


def state(seed: int = 0) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).normal(size=2000).astype(np.float32)}


def keep(
    repo: mvc.Repository, seed: int, attachments: dict[str, Any], needs: tuple[CommitId, ...] = ()
) -> CommitResult:
    options = mvc.CommitOptions(needs=needs)
    return repo.commit(state(seed), attachments=attachments, options=options)


def names(repo: mvc.Repository, commit: CommitId) -> list[str]:
    return [entry.path.removeprefix(ATTACHED) for entry in repo.manifest(commit).attached]


GIVEN = {
    "code/net.py": CODE,
    "environment.json": b"{}",
    "service/optimizer.safetensors": {"momentum": np.ones(300, np.float32), "lr": 0.1},
}


def test_it_comes_back_and_is_no_file_of_the_version(repo: mvc.Repository, tmp_path: Path) -> None:
    plain = repo.commit(state())
    made = keep(repo, 0, GIVEN)
    assert made.commit.root == plain.commit.root
    assert made.commit.attached == ("code", "environment.json", "service")
    assert names(repo, made.id) == sorted(GIVEN)
    assert repo.attachment(made.id, "code/net.py") == CODE
    found = repo.attachment(made.id, "service/optimizer.safetensors")
    assert found["lr"] == 0.1
    assert np.array_equal(found["momentum"], np.ones(300, np.float32))
    assert [each.path for each in repo.manifest().entries] == ["model.safetensors"]
    assert [each.kind for each in repo.diff("HEAD~1", "HEAD").files] == ["unchanged"]
    repo.checkout("HEAD", to=f"{tmp_path}/out/")
    assert [p.name for p in (tmp_path / "out").rglob("*")] == ["model.safetensors"]
    assert [each.path for each in repo.status().changes] == ["model.safetensors"]
    repo.checkout("HEAD", to=repo.root)
    assert repo.status().clean
    assert repo.storage.fsck(full=True).sound


def test_it_is_not_inherited_and_stored_once(repo: mvc.Repository) -> None:
    keep(repo, 0, GIVEN)
    before = repo.storage.stats().stored_bytes
    again = keep(repo, 0, GIVEN | {"environment.json": b'{"a": 1}'})
    assert (
        repo.storage.stats().stored_bytes - before < 2000
    )  # commit and manifest; no code, no state
    after = repo.commit(state(1))
    assert after.commit.attached == ()
    assert names(repo, after.id) == []
    assert names(repo, again.id) == sorted(GIVEN)


def test_the_oracle_reads_it(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        base = repo.commit(state())
        made = keep(repo, 1, GIVEN, (base.id,))
    read = reader.Repository(tmp_path / ".mvc")
    assert list(read.checkout(made.id)) == ["model.safetensors"]
    manifest = reader.Cursor(read.object(made.commit.manifest))
    beside = {e.path: e for e in manifest.get("uint,*file")[1] if e.path.startswith(".mvc/")}
    assert sorted(beside) == [f".mvc/{name}" for name in sorted(GIVEN)]
    assert read.file(beside[".mvc/code/net.py"]) == CODE
    assert read.commits[made.id].needs == [base.id]
    assert read.commits[made.id].attached == ["code", "environment.json", "service"]


def test_maintenance_keeps_it_and_what_is_needed(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        data = keep(repo, 7, {"data.json": b"[]"})
        repo.branch("side")
        repo.commit(state(2))
        made = keep(repo, 3, GIVEN, (data.id,))
        for _ in range(3):
            keep(repo, 4 + _, GIVEN)
        repo.storage.repack(interval=2)
        repo.storage.gc(grace="0")
        assert repo.attachment(made.id, "code/net.py") == CODE
        assert repo.storage.fsck(full=True).sound
    with mvc.Repository.init(tmp_path / "other") as repo:
        # Only the need leads to it: its branch is deleted, and it is no ancestor.
        repo.commit(state(1))
        repo.switch("data", create=True)
        data = keep(repo, 7, {"data.json": b"[]"})
        repo.switch("main")
        lone = repo.commit(state(8), options=mvc.CommitOptions(branch="lone", new_branch=True))
        made = keep(repo, 3, {}, (data.id,))
        repo.delete_ref("branch", "data", force=True)
        repo.delete_ref("branch", "lone", force=True)
        repo.storage.gc(grace="0")
        assert repo.attachment(data.id, "data.json") == b"[]"
        assert np.array_equal(repo.checkout(data.id)["w"], state(7)["w"])
        with pytest.raises(UnknownRevision):
            repo.checkout(lone.id)
        assert repo.storage.fsck(full=True).sound
        assert made.commit.needs == (data.id,)


def test_what_cannot_be_attached_is_refused(repo: mvc.Repository) -> None:
    first = repo.commit(state())
    for name in ("../x", "/x", "a/../b", ".mvc/x", "", "a\nb"):
        with pytest.raises(InvalidName):
            keep(repo, 1, {name: b"x"})
    with pytest.raises(WrongUsage, match="at most 1000 attachments"):
        keep(repo, 1, {f"a{i}": b"" for i in range(1001)})
    with pytest.raises(UnknownRevision):
        keep(repo, 1, {}, (CommitId(bytes(32)),))
    repo.commit(state(1))
    repo.storage.forget(first.id)
    with pytest.raises(StateForgotten):
        keep(repo, 2, {}, (first.id,))
    made = keep(repo, 2, GIVEN)
    with pytest.raises(UnknownPath, match=r"has no attachment recipe\.json"):
        repo.attachment(made.id, "recipe.json")


def test_other_forms_are_damage(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        made = keep(repo, 1, GIVEN, (repo.commit(state()).id,)).commit
        manifest = repo.manifest()
    assert Commit.decode(made.encoded) == made
    with pytest.raises(DamagedData):
        Commit.decode(b"\x04" + made.encoded[1:])
    assert Manifest.decode(manifest.encoded).encoded == manifest.encoded
    with pytest.raises(DamagedData):
        Manifest.decode(b"\x02" + manifest.encoded[1:])


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        made = keep(repo, 1, GIVEN)
    (pack,) = (tmp_path / ".mvc" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    with mvc.Repository.open(tmp_path) as repo:
        (step,) = repo.handle.store.graph.codings(
            repo.manifest().attached_by_path[".mvc/code/net.py"].contents[0].id
        )
        data[step.offset + step.header.body_at + step.member.at] ^= 1
        pack.write_bytes(data)
    with mvc.Repository.open(tmp_path) as repo:
        report = repo.storage.fsck(full=True)
        assert not report.sound
        assert any(".mvc/code/net.py" in t for p in report.problems for t in p.tensors), report
        with pytest.raises(DamagedData):
            repo.attachment(made.id, "code/net.py")
        assert np.array_equal(repo.checkout(made.id)["w"], state(1)["w"])
