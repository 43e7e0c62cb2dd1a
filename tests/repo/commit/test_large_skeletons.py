"""Files with more than a piece of bytes outside their tensors: a pickle of long lists."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mvc.api.repository import Repository
from mvc.ids import BlobId
from mvc.model.tensor import TensorSpec
from mvc.store.packs.records import BLOB
from mvc.store.writing.content_writer import ContentWriter
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
        return len(repo.context.store.graph.codings(entry.skeleton))


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


def test_it_was_kept_whole_by_earlier_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_whole(self: ContentWriter, id_: BlobId, data: bytes, _: object) -> None:
        if not self.objects.holds(id_):
            self.objects.put_bytes(BLOB, id_, data, None)

    Repository.init(tmp_path).close()
    shrink(monkeypatch, PIECE=8192)
    with monkeypatch.context() as earlier:
        earlier.setattr(ContentWriter, "put_skeleton", keep_whole)
        wanted = versions(tmp_path, 2)
    assert check(tmp_path, wanted) == 1
    with Repository.open(tmp_path) as repo:
        data = write(tmp_path / "m.pt", 7)
        wanted[str(repo.commit([tmp_path / "m.pt"]).id)] = data
        entry = repo.manifest().entries[0]
        assert entry.skeleton is not None
        spec = TensorSpec("raw", (entry.skeleton_size,))
        assert repo.context.store.recovery.blob(entry.skeleton, spec)
    assert check(tmp_path, wanted) > 1
