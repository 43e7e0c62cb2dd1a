"""Files with more than a piece of bytes outside their tensors: a pickle of long lists."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mvc.api.repository import Repository
from tests.store.sizes import shrink


def write(path: Path, version: int) -> bytes:
    names = [f"token {i * 7919 % 100003} of {version if i == 5 else 0}" for i in range(2000)]
    torch.save({"w": torch.full((3,), float(version)), "names": names}, path)
    return path.read_bytes()


def check(root: Path, wanted: dict[str, bytes]) -> int:
    with Repository.open(root) as repo:
        assert repo.storage.fsck(full=True).problems == ()
        for id_, data in wanted.items():
            out = root / "out.bin"
            repo.checkout(id_, to=out, force=True)
            assert out.read_bytes() == data
        entry = repo.manifest().entries[0]
        assert entry.format == "torch"
        return len(repo.handle.store.graph.codings(entry.skeleton))


def versions(root: Path, count: int) -> dict[str, bytes]:
    wanted = {}
    with Repository.open(root) as repo:
        for version in range(count):
            data = write(root / "m.pt", version)
            wanted[str(repo.commit([root / "m.pt"]).id)] = data
    return wanted


def test_it_is_kept_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, PIECE=8192)
    Repository.init(tmp_path).close()
    wanted = versions(tmp_path, 3)
    assert check(tmp_path, wanted) > 3
    assert (tmp_path / ".mvc/packs/00000001.pack").stat().st_size < 1.5 * len(
        next(iter(wanted.values()))
    ), "later versions are patches"
