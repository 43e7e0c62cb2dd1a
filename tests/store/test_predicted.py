"""What an optimizer's step predicts is recovered, each payload once, and around damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import DamagedData
from mvc.model.tensor import TensorSpec
from mvc.store.graph.plan import plan, recovers
from mvc.store.graph.search import Path as Codings
from mvc.store.packs.reader import PackReader
from mvc.store.recovery import planned
from mvc.store.recovery.rates import Rates
from mvc.store.recovery.recover import Request
from tests.hostile.forged import Piece, delta, raw_id
from tests.oracle import reader
from tests.store.predicted import Run
from tests.store.sizes import shrink


def request(data: bytes, id_: bytes) -> Request:
    return Request(id_, TensorSpec("raw", (len(data),)), memoryview(bytearray(len(data))))


def requests(run: Run, version: int, members: str = "wmv") -> list[Request]:
    state = run.versions[version]
    return [request(state[member], run.id(version, member)) for member in members]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[int, int]]]:
    """How often every payload is read."""
    counts: Counter[tuple[int, int]] = Counter()
    payload = PackReader.payload

    def counted(self, pack, offset, header, member, *args, **kwargs):  # type: ignore[no-untyped-def]
        counts[offset, member.at] += 1
        return payload(self, pack, offset, header, member, *args, **kwargs)

    monkeypatch.setattr(PackReader, "payload", counted)
    return counts


@pytest.mark.parametrize("members", ["w", "v", "m", "wmv", "vw", "ww"])
def test_every_member_of_a_run_comes_back_with_each_payload_read_once(
    tmp_path: Path, reads: Counter[tuple[int, int]], members: str
) -> None:
    run = Run(tmp_path / "repo")
    with Repository.open(run.write()) as repo:
        for version in range(len(run.versions)):
            wanted = requests(run, version, members)
            reads.clear()
            repo.handle.store.recovery.fill(wanted)
            for member, each in zip(members, wanted, strict=True):
                assert bytes(each.out) == run.versions[version][member]
            assert version == 0 or set(reads.values()) == {1}
            strata = max("mvw".index(member) for member in members) + 1
            assert len(reads) == strata * version + (strata if version else len(set(members)))


def test_pieces_of_large_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Counter[tuple[int, int]]
) -> None:
    shrink(monkeypatch, PIECE=8192, CHUNK=1024)
    run = Run(tmp_path / "repo", count=5001)
    with Repository.open(run.write()) as repo:
        wanted = requests(run, 6)
        repo.handle.store.recovery.fill(wanted)
        assert [bytes(each.out) for each in wanted] == [run.versions[6][m] for m in "wmv"]
        assert set(reads.values()) == {1}
        assert (
            bytes(repo.handle.store.recovery.blob(run.id(5, "w"), wanted[0].spec))
            == (run.versions[5]["w"])
        )


def test_version_after_version_costs_one_payload_an_object(
    tmp_path: Path, reads: Counter[tuple[int, int]]
) -> None:
    run = Run(tmp_path / "repo")
    with Repository.open(run.write()) as repo:
        held: dict[bytes, memoryview] = {}
        for version in range(len(run.versions)):
            wanted = requests(run, version)
            reads.clear()
            assert repo.handle.store.recovery.fill_from(held, wanted)
            assert [bytes(each.out) for each in wanted] == [run.versions[version][m] for m in "wmv"]
            assert sum(reads.values()) == 3
            held = {each.id: each.out for each in wanted}
        for each in wanted:
            each.out[:] = bytes(len(each.out))
        assert not repo.handle.store.recovery.fill_from(held, wanted)


def test_moments_made_for_the_weights_are_given_out_to_who_wants_the_version_part_by_part(
    tmp_path: Path, reads: Counter[tuple[int, int]]
) -> None:
    run = Run(tmp_path / "repo")
    with Repository.open(run.write()) as repo:
        recovery = repo.handle.store.recovery
        parts = [requests(run, 6, members) for members in ("w", "v", "m")]
        with recovery.by_products.keeping():
            for part in parts:
                recovery.fill(part)
            assert [bytes(each.out) for (each,) in parts] == [run.versions[6][m] for m in "wvm"]
            assert set(reads.values()) == {1}
            recovery.fill(requests(run, 5, "w"))
        reads.clear()
        recovery.fill(requests(run, 5, "m"))
        assert reads


def test_a_moment_that_was_made_of_damaged_bytes_is_found_elsewhere(tmp_path: Path) -> None:
    run = Run(tmp_path / "repo")
    for piece in (run.full(0), *map(run.step, range(1, 7)), run.full(6)[1:2]):
        run.forger.publish(run.forger.record(piece))
    run.finish()
    with Repository.open(run.root) as repo:
        recovery = repo.handle.store.recovery
        with recovery.by_products.keeping():
            recovery.by_products.add(0, {run.id(6, "m"): memoryview(bytes(20000))}, checked=False)
            wanted = requests(run, 6, "m")
            recovery.fill(wanted)
            assert bytes(wanted[0].out) == run.versions[6]["m"]


def ruin(run: Run, version: int, member: str, *, delta: bool) -> None:
    """Makes every byte of a payload another one."""
    with Repository.open(run.root) as repo:
        steps = repo.handle.store.graph.codings(run.id(version, member))
        (step,) = [step for step in steps if bool(step.member.base) is delta]
    file = run.root / ".mvc/packs/00000001.pack"
    data = bytearray(file.read_bytes())
    begin = step.offset + step.header.body_at + step.member.at
    for at in range(begin, begin + step.member.stored):
        data[at] ^= 0xA5
    file.write_bytes(data)


def test_a_damaged_input_is_gone_around(tmp_path: Path) -> None:
    run = Run(tmp_path / "repo")
    run.forger.publish(run.forger.record(run.full(0)))
    for version in range(1, 7):
        run.forger.publish(run.forger.record(run.step(version)))
    run.forger.publish(run.forger.record([run.full(3)[1]]))
    run.finish()
    ruin(run, 3, "m", delta=True)
    with Repository.open(run.root) as repo:
        wanted = requests(run, 6)
        repo.handle.store.recovery.fill(wanted)
        assert [bytes(each.out) for each in wanted] == [run.versions[6][m] for m in "wmv"]
    ruin(run, 3, "m", delta=False)
    with Repository.open(run.root) as repo:
        for version in range(3):
            repo.handle.store.recovery.fill(requests(run, version))
        for member in "wmv":
            with pytest.raises(DamagedData):
                repo.handle.store.recovery.fill(requests(run, 6, member))


def test_every_path_that_must_be_used_is_decoded(tmp_path: Path) -> None:
    """Also a path to an object that is on another of these paths, coded in another form."""
    run = Run(tmp_path / "repo")
    for piece in (run.full(0), run.step(1), run.step(2), run.full(2), run.step(3)):
        run.forger.publish(run.forger.record(piece))
    run.finish()
    with Repository.open(run.root) as repo:
        graph = repo.handle.store.graph
        first, second, third = (run.id(version, "w") for version in (1, 2, 3))
        by_step, full = sorted(graph.codings(second), key=lambda step: not step.member.base)
        old = (*graph.path(first, 0).steps, by_step)
        new = (full, *graph.codings(third))
        along = [Codings(new, 0.0), Codings(old, 0.0)]
        for paths in (along, along[::-1]):
            steps = plan(graph, [second, third], along=paths).steps
            assert {new[-1], old[-1]} <= set(steps)


def test_what_is_predicted_from_itself_is_damage_with_a_way_around(tmp_path: Path) -> None:
    run = Run(tmp_path / "repo", steps=2)
    first, second, third = run.step(1)
    run.forger.publish(run.forger.record(run.full(0)))
    first.text, first.inputs = third.text, third.inputs  # m needs v, which needs m
    run.forger.publish(run.forger.record([first, second, third]))
    with Repository.open(run.finish()) as repo:
        for member in "mvw":
            with pytest.raises(DamagedData, match="predicted from itself"):
                repo.handle.store.recovery.fill(requests(run, 1, member))
            assert not recovers(repo.handle.store.graph, run.id(1, member), 4 * run.count)
    other = Run(tmp_path / "other", steps=2)
    other.forger.publish(other.forger.record(other.full(0)))
    other.forger.publish(other.forger.record([first, second, third]))
    other.forger.publish(other.forger.record([other.full(1)[1]]))
    with Repository.open(other.finish()) as repo:
        wanted = requests(other, 1)
        repo.handle.store.recovery.fill(wanted)
        assert [bytes(each.out) for each in wanted] == [other.versions[1][m] for m in "wmv"]


def test_a_version_costs_its_payloads_once_and_weights_alone_what_they_need(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "repo", count=100_000)
    with Repository.open(run.write()) as repo:
        rates, graph = Rates(), repo.handle.store.graph
        spec = TensorSpec("raw", (400_000,))

        def seconds(members: str, version: int = 6) -> float:
            walks = [
                (400_000, spec, plan(graph, [run.id(version, member)]).steps) for member in members
            ]
            return sum(each for _, each in rates.works(walks))

        assert seconds("wmv") == pytest.approx(seconds("w"))
        assert 0 < seconds("m") < seconds("v") < seconds("w")
        assert seconds("w", 3) < seconds("w", 6)


@pytest.mark.parametrize("count", [1, 9, 1000, 300_001])
def test_signs_of_gradients_lie_before_each_chunk(tmp_path: Path, count: int) -> None:
    run = Run(tmp_path / "repo", count=count, steps=1)
    old, new = run.versions
    text = "optim:root.1:float32:0.001,1e-08,0.999,0.001"
    third = run.piece(text, new["w"], old["w"], [new["v"], old["v"]])
    run.forger.publish(run.forger.record(run.full(0)))
    run.forger.publish(run.forger.record([*run.step(1)[:2], third]))
    with Repository.open(run.finish()) as repo:
        wanted = requests(run, 1)
        repo.handle.store.recovery.fill(wanted)
        assert [bytes(each.out) for each in wanted] == [new[m] for m in "wmv"]
    oracle = reader.Repository(run.root / ".mvc")
    assert oracle.pieces[run.id(1, "w"), 0] == new["w"]


def test_moments_that_are_stored_backwards_take_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then all of them wait for the weights: some chunks are recovered after the other."""
    shrink(monkeypatch, PIECE=16384, CHUNK=1024)
    monkeypatch.setattr(planned, "MOST_PIECES", 20 * 1024)
    run = Run(tmp_path / "repo", count=3001, steps=9)
    run.forger.publish(run.forger.record([run.full(0)[0], run.full(0)[2], run.full(9)[1]]))
    for version in range(1, 10):
        run.forger.publish(run.forger.record(run.step(version)[1:]))
    for version in range(8, -1, -1):
        new, base = run.versions[version]["m"], run.versions[version + 1]["m"]
        run.forger.publish(run.forger.record([run.delta(new, base)]))
    with Repository.open(run.finish()) as repo:
        for members in ("wmv", "w"):
            wanted = requests(run, 9, members)
            repo.handle.store.recovery.fill(wanted)
            assert [bytes(each.out) for each in wanted] == [run.versions[9][m] for m in members]


@pytest.mark.parametrize("cast", [False, True])
def test_what_is_converted_from_predicted_weights(tmp_path: Path, cast: bool) -> None:
    run = Run(tmp_path / "repo", steps=3)
    weights = np.frombuffer(run.versions[3]["w"], np.float32)
    new = weights.astype(np.float16).tobytes() if cast else weights[:4000].tobytes()
    text = f"{'cast:float32>float16' if cast else 'resize'} | xor | planes | zstd:huff"
    payload = delta(new, new, 2 if cast else 4, text.partition(" | ")[2])
    run.forger.publish(run.forger.record(run.full(0)))
    for version in range(1, 4):
        run.forger.publish(run.forger.record(run.step(version)))
    other = Piece(raw_id(new), len(new), payload, text, run.id(3, "w"))
    run.forger.publish(run.forger.record([other]))
    with Repository.open(run.finish()) as repo:
        wanted = [request(new, raw_id(new)), *requests(run, 3)]
        repo.handle.store.recovery.fill(wanted)
        assert [bytes(each.out) for each in wanted] == [new, *(run.versions[3][m] for m in "wmv")]
        alone = request(new, raw_id(new))
        repo.handle.store.recovery.fill([alone])
        assert bytes(alone.out) == new
