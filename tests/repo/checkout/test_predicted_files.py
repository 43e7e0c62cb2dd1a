"""A version whose weights and moments do not fit into one window is decoded once all the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.repo.commit.request import FileOptions
from mvc.repo.content import contents
from mvc.store.packs.reader import PackReader


def test_no_payload_is_decoded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(100, 100) for _ in range(4)])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    file = tmp_path / "repo/checkpoint.pt"
    with Repository.init(tmp_path / "repo") as repo:
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(8, 100)).square().mean().backward()
            optimizer.step()
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
            repo.commit([file], files=FileOptions(cwd=repo.root))
    monkeypatch.setattr(contents, "WINDOW", 60_000)  # one matrix of 40,000 bytes a window
    reads: Counter[tuple[int, int]] = Counter()
    payload = PackReader.payload

    def counted(self, pack, offset, header, member, *args, **kwargs):  # type: ignore[no-untyped-def]
        if member.nbytes == 40_000:
            reads[offset, member.at] += 1
        return payload(self, pack, offset, header, member, *args, **kwargs)

    monkeypatch.setattr(PackReader, "payload", counted)
    with Repository.open(tmp_path / "repo") as repo:
        entry = repo.manifest("HEAD").entries[0]
        graph = repo.handle.store.graph
        last = [graph.path(content.id).steps[-1].member for content in entry.contents]
        assert sum(member.coding.predicted for member in last) >= 12
        repo.checkout("HEAD", to=tmp_path / "out")
    assert (tmp_path / "out/checkpoint.pt").read_bytes() == file.read_bytes()
    assert len(reads) > 12
    assert set(reads.values()) == {1}
