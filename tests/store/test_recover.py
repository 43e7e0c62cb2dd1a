"""Never silently wrong: whatever bit flips, what comes back is right or refused."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import DamagedData, MvcError
from mvc.io.files import ReadFile
from mvc.limits import CHUNK
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from mvc.store.recovery import rates
from mvc.store.recovery.recover import Request
from tests.seeds import draw
from tests.store.repositories import CheckedHistory
from tests.store.sizes import shrink


@pytest.mark.parametrize(
    "chunks, longest", [(0.5, 0.5), (1.25, 1), (2, 1), (2.25, 1.25), (3, 2), (3.25, 2), (4, 2)]
)
def test_seconds_are_those_of_the_thread_with_most_chunks(
    monkeypatch: pytest.MonkeyPatch, chunks: float, longest: float
) -> None:
    monkeypatch.setattr(rates, "cpu_count", lambda: 2)
    seconds = rates.Rates().decoding
    assert seconds([(CHUNK // 2, chunks)]) == chunks
    spread = seconds([(int(chunks * CHUNK), chunks)])
    assert spread == pytest.approx(0.15 * chunks + 0.85 * longest)


@pytest.fixture
def history(tmp_path: Path) -> CheckedHistory:
    return CheckedHistory(tmp_path / "repo", 5)


def flip(file: Path, rng: random.Random) -> bytes:
    """Flips one bit; returns what the file was."""
    sound = file.read_bytes()
    data = bytearray(sound)
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    return sound


@pytest.mark.parametrize("what", ["pack", "journal"])
def test_flipped_bits_give_right_bits_or_an_error(history: CheckedHistory, what: str) -> None:
    rng = draw("flipped bits")
    file: Path = getattr(history, what)
    seen = set()
    for _ in range(150):
        sound = flip(file, rng)
        with history.open() as repo:
            lost = history.wrong(repo)  # raises for wrong bits
            assert repo.storage.fsck().problems, "fsck sees every flipped bit"
        seen.add(bool(lost))
        file.write_bytes(sound)
    assert (True in seen) == (what == "pack")
    with history.open() as repo:
        assert history.wrong(repo) == []


def test_a_sector_that_is_another_one_is_found(history: CheckedHistory) -> None:
    sound = history.pack.read_bytes()
    rng = draw("exchanged sectors")
    for _ in range(40):
        a, b = (512 * rng.randrange(len(sound) // 512) for _ in range(2))
        data = bytearray(sound)
        data[a : a + 512] = sound[b : b + 512]
        history.pack.write_bytes(data)
        with history.open() as repo:
            lost = history.wrong(repo)
            assert bool(repo.storage.fsck(full=True).problems) == (bytes(data) != sound)
            assert not lost or bytes(data) != sound


def test_many_requests_at_once_and_the_first_error_is_raised(history: CheckedHistory) -> None:
    with history.open() as repo:
        recovery = repo.handle.store.recovery
        contents = repo.manifest("HEAD").entries[0].contents
        outs = [(c, bytearray(c.spec.nbytes)) for _ in range(100) for c in contents]
        recovery.fill(Request(c.id, c.spec, memoryview(out)) for c, out in outs)
        assert all(blob_id(c.spec, out) == c.id for c, out in outs)
        spec = TensorSpec("raw", (8,))
        with pytest.raises(DamagedData, match="cannot be recovered"):
            recovery.fill([Request(bytes(32), spec, memoryview(bytearray(8)))] * 300)


def test_a_wrong_length_is_refused(history: CheckedHistory) -> None:
    with history.open() as repo:
        recovery = repo.handle.store.recovery
        for content in repo.manifest("HEAD").entries[0].contents:
            for nbytes in (content.spec.nbytes + 1, max(content.spec.nbytes - 1, 0)):
                with pytest.raises(DamagedData):
                    recovery.blob(content.id, TensorSpec("raw", (nbytes,)))


def test_an_object_under_another_type_is_refused(history: CheckedHistory) -> None:
    """The dtype and the shape are inside the id."""
    with history.open() as repo:
        content = max(repo.manifest("HEAD").entries[0].contents, key=lambda c: c.spec.nbytes)
        spec = TensorSpec("int32", content.spec.shape)
        with pytest.raises(DamagedData, match="does not match its hash"):
            repo.handle.store.recovery.blob(content.id, spec)


def test_a_tensor_of_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, PIECE=8192, CHUNK=1024)
    rng = np.random.default_rng(0)
    states = [{"w": rng.standard_normal(30_001).astype(np.float32)}]
    for _ in range(4):
        noise = rng.standard_normal(30_001).astype(np.float32)
        states.append({"w": states[-1]["w"] + np.float32(1e-4) * noise})
    with Repository.init(tmp_path / "repo") as repo:
        ids = [repo.commit(state).id for state in states]
        content = max(repo.manifest("HEAD").entries[0].contents, key=lambda c: c.spec.nbytes)
        graph = repo.handle.store.graph
        assert {graph.path(content.id, at).depth for at in range(0, 120_004, 8192)} == {1}
    with Repository.open(tmp_path / "repo") as repo:
        for id_, state in zip(ids, states, strict=True):
            assert repo.checkout(id_)["w"].tobytes() == state["w"].tobytes()
            assert repo.storage.fsck(full=True).problems == ()


def test_a_large_payload_is_read_while_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some chunks at a time; its checksum covers the whole, so a flipped bit is found anywhere."""
    shrink(monkeypatch, PIECE=32 << 10, CHUNK=1 << 10, _STREAMED=8 << 10)
    rng, most = np.random.default_rng(0), list[int]()
    state = {"w": rng.standard_normal(20_000).astype(np.float32)}
    with Repository.init(tmp_path / "repo") as repo:
        repo.commit(state)
        state["w"][::3] += np.float32(1e-3)
        repo.commit(state)
    read_into = ReadFile.read_into

    def counted(file: ReadFile, offset: int, buffer: memoryview) -> int:
        most.append(len(buffer))
        return read_into(file, offset, buffer)

    monkeypatch.setattr(ReadFile, "read_into", counted)
    (pack,) = (tmp_path / "repo/.mvc/packs").glob("*.pack")
    sound, refused = pack.read_bytes(), 0
    for at in [-1, *range(0, len(sound), len(sound) // 60)]:
        data = bytearray(sound)
        data[at] ^= at >= 0
        pack.write_bytes(data)
        with Repository.open(tmp_path / "repo") as repo:
            try:
                assert repo.checkout("HEAD")["w"].tobytes() == state["w"].tobytes()
            except DamagedData:
                assert at >= 0
                refused += 1
    assert refused > 50
    assert max(most) < 8 << 10


def test_what_an_error_says_leads_on(history: CheckedHistory) -> None:
    data = bytearray(history.pack.read_bytes())
    data[-100:] = bytes(100)
    history.pack.write_bytes(data)
    with history.open() as repo, pytest.raises(MvcError) as caught:
        for id_ in history.ids:
            repo.checkout(id_)
    assert "object " in caught.value.message
    assert "fsck" in str(caught.value.hint)
