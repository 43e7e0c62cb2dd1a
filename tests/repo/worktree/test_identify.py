from pathlib import Path

import pytest
import torch

from mvc.api.repository import Repository
from mvc.errors import UnknownPath
from mvc.repo.commit.request import CommitOptions, FileOptions
from tests.repo.working import tensors_of, write_model


def test_by_state_whatever_the_format(repo: Repository, tmp_path: Path) -> None:
    path = repo.root / "m.safetensors"
    commits = []
    for seed in range(3):
        write_model(path, seed=seed)
        target, at = ("prod", 1001) if seed == 1 else (None, None)
        commits.append(repo.commit(path, deploy=target, options=CommitOptions(at=at)))
    repo.branch("side", "HEAD~1")
    write_model(tmp_path / "download.safetensors", seed=1)
    (found,) = repo.identify(tmp_path / "download.safetensors")
    assert (found.commit, found.path, found.exact) == (commits[1].id, "m.safetensors", True)
    assert found.branches == ("main", "side")
    assert [(d.target, d.time_ns) for d in found.deployments] == [("prod", 1001)]
    state = tensors_of(tmp_path / "download.safetensors")
    torch.save({k: torch.tensor(v) for k, v in state.items()}, tmp_path / "x.pt")
    (same,) = repo.identify(tmp_path / "x.pt")
    assert (same.commit, same.exact) == (commits[1].id, False)
    write_model(tmp_path / "unknown.safetensors", seed=77)
    assert repo.identify(tmp_path / "unknown.safetensors") == []
    with pytest.raises(UnknownPath):
        repo.identify(tmp_path / "absent")


def test_among_several_paths_and_opaque_files(repo: Repository, tmp_path: Path) -> None:
    write_model(repo.root / "a.safetensors", seed=1)
    write_model(repo.root / "b.safetensors", seed=2)
    (repo.root / "vocab.txt").write_text("words")
    first = repo.commit(repo.root)
    write_model(repo.root / "a.safetensors", seed=3)
    second = repo.commit(files=FileOptions(all=True))
    write_model(repo.root / "a.safetensors", seed=1)
    third = repo.commit(files=FileOptions(all=True))
    write_model(tmp_path / "x", seed=1)
    assert [(i.commit, i.path) for i in repo.identify(tmp_path / "x")] == [
        (third.id, "a.safetensors"),
        (first.id, "a.safetensors"),
    ]
    write_model(tmp_path / "x", seed=3)
    assert [i.commit for i in repo.identify(tmp_path / "x")] == [second.id]
    (tmp_path / "words").write_text("words")
    (found,) = repo.identify(tmp_path / "words")
    assert (found.commit, found.path, found.exact) == (first.id, "vocab.txt", True)


def test_nothing_is_recovered(repo: Repository, monkeypatch) -> None:
    from mvc.store.recovery.recover import Recovery

    path = repo.root / "m.safetensors"
    write_model(path)
    repo.commit(path)
    monkeypatch.delattr(Recovery, "fill")
    monkeypatch.delattr(Recovery, "piece")
    assert len(repo.identify(path)) == 1


def test_forgotten_states_among_several_files(repo: Repository, tmp_path: Path) -> None:
    write_model(repo.root / "a.safetensors", seed=1)
    write_model(repo.root / "b.safetensors", seed=2)
    (repo.root / "vocab.txt").write_text("words")
    first = repo.commit(repo.root, deploy="prod")
    for name in ("a.safetensors", "b.safetensors", "vocab.txt"):
        (tmp_path / name).write_bytes((repo.root / name).read_bytes())
    write_model(repo.root / "a.safetensors", seed=3)
    write_model(repo.root / "b.safetensors", seed=4)
    (repo.root / "vocab.txt").write_text("other words")
    repo.commit(files=FileOptions(all=True))
    repo.storage.forget(first.id)
    for _ in range(2):
        for name in ("a.safetensors", "b.safetensors", "vocab.txt"):
            (found,) = repo.identify(tmp_path / name)
            assert (found.commit, found.path, found.exact) == (first.id, None, False)
            assert found.forgotten_ns is not None
            assert [d.target for d in found.deployments] == ["prod"]
        write_model(tmp_path / "unknown.safetensors", seed=77)
        assert repo.identify(tmp_path / "unknown.safetensors") == []
        repo.storage.gc(grace="0")
