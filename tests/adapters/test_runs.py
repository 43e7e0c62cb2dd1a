"""Files of no known format: cut where runs of numbers begin; any bytes come back."""

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mvc
from mvc.adapters.files.detect import parse_file
from mvc.adapters.files.runs import RunFinder
from mvc.errors import SourceChanged
from tests.adapters.helpers import MemorySource, round_trip

WIDTHS = {"f4": 4, "f2": 2, "bf": 2, "f8": 8}
HEADER = b"\x94h\x02(K\x01K\x40\x86\x94h\x08\x89B\x00\x10\x00\x00"


def numbers(kind: str, count: int, seed: int = 0) -> bytes:
    values = 0.02 * np.random.default_rng(seed).standard_normal(count)
    if kind == "bf":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype(f"<{kind}").tobytes()


def cuts(data: bytes) -> list[int]:
    return RunFinder(MemorySource(data), "x").cuts()


PARTS = st.lists(
    st.tuples(
        st.sampled_from([*WIDTHS, "zeros", "random", "text"]),
        st.integers(1, 60_000),
        st.binary(max_size=40),
    ),
    max_size=6,
)


def joined(parts) -> bytes:
    out = b""
    for seed, (kind, count, header) in enumerate(parts):
        filler = {
            "zeros": bytes(count),
            "random": np.random.default_rng(seed).bytes(count),
            "text": (b"The quick brown fox jumps over the lazy dog, %d.\n" % seed) * (count // 40),
        }
        out += header + (filler[kind] if kind in filler else numbers(kind, count, seed))
    return out


@given(PARTS)
def test_any_bytes_come_back(parts):
    data = joined(parts)
    entry = round_trip(data)
    assert entry.format == "opaque" and not entry.tensors and entry.skeleton is None
    assert all(c.spec.dtype == "raw" and c.spec.nbytes for c in entry.contents[len(data) == 0 :])
    assert 1 <= len(entry.contents) <= 401
    if len(data) < 64 << 10:
        assert len(entry.contents) == 1


@given(
    st.sampled_from(list(WIDTHS)),
    st.lists(st.integers(0, 7), min_size=2, max_size=5),
    st.integers(0, 1 << 32),
)
def test_runs_are_found_at_their_phase(kind, shifts, seed):
    """A content begins where a word does, close to the first one of each run that lies otherwise
    than the one before."""
    width, data, starts = WIDTHS[kind], b"", []
    for number, shift in enumerate(shifts):
        data += HEADER + bytes(-(len(data) + len(HEADER) - shift) % 8)
        starts.append(len(data))
        data += numbers(kind, 100_000 // width, seed + number)
    found = cuts(data)
    turns = [
        start
        for start, before in zip(starts, [None, *starts], strict=False)
        if before is None or (start - before) % width
    ]
    assert len(found) == len([t for t in turns if t])
    for cut, start in zip(found, turns, strict=True):
        assert (start - cut) % width == 0 and abs(start - cut) <= 512


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("longer", [0, 1, 13])
def test_cuts_move_with_their_runs(kind, longer):
    """In the next state of a training, behind a head of another length, runs are as long."""
    rng, heads = np.random.default_rng(1), [b"head", b"head" + bytes([65 + longer]) * longer]
    files = []
    for head in heads:
        data = head
        for number in range(4):
            values = 0.02 * np.random.default_rng(number).standard_normal(40_000)
            values += 1e-5 * rng.standard_normal(len(values))
            raw = (
                (values.astype("<f4").view("<u4") >> 16).astype("<u2")
                if kind == "bf"
                else values.astype(f"<{kind}")
            )
            data += HEADER + b"k" * number + raw.tobytes()
        files.append(cuts(data))
    assert len(files[0]) >= 2 and [cut + longer for cut in files[0]] == files[1]


def test_what_holds_no_runs_is_one_content():
    rng = np.random.default_rng(0)
    text = b"".join(b"%d,%s\n" % (i, rng.bytes(4).hex().encode()) for i in range(40_000))
    rows = b"".join(b"%d\n" % i for i in range(200_000))
    for data in (
        rows,
        rows[:108_894],
        bytes(1 << 20),
        rng.bytes(1 << 20),
        text,
        bytes(range(256)) * 4096,
    ):
        assert cuts(data) == []


def test_contents_are_few_however_many_runs_there_are():
    run = numbers("f4", 7_000)
    data = b"".join(run + bytes([200]) * (1 + i % 3) for i in range(900))
    assert len(cuts(data)) == 399


def test_a_file_that_becomes_shorter():
    source = MemorySource(numbers("f4", 100_000))
    finder = RunFinder(source, "m.pkl")
    source.size = lambda: 500_000
    with pytest.raises(SourceChanged):
        finder.cuts()


def flat(state: dict[str, np.ndarray]) -> dict[str, bytes]:
    """Files of formats that put a header before each tensor."""
    protobuf = b"".join(
        b"\x0a" + bytes([len(k)]) + k.encode() + b"\x12" + struct.pack("<Q", v.nbytes) + v.tobytes()
        for k, v in state.items()
    )
    return {"m.pkl": pickle.dumps(state, 5), "m.pb": protobuf}


@pytest.mark.parametrize("name", ["m.pkl", "m.pb"])
def test_opaque_files_are_stored_as_small_as_tensors(tmp_path, name):
    """Each step, and the last one of a head alone."""
    rng = np.random.default_rng(0)
    shapes = {"wte": (400, 128), "up": (128, 512), "k": (128, 129), "down": (512, 128)}
    state = {k: (0.02 * rng.standard_normal(s)).astype("f4") for k, s in shapes.items()}
    state["head"] = (0.02 * rng.standard_normal((70, 128))).astype("f4")
    sizes = {}
    with (
        mvc.Repository.init(tmp_path / "a") as tensors,
        mvc.Repository.init(tmp_path / "b") as opaque,
    ):
        for step in range(4):
            for key in ["head"] if step == 3 else state:
                state[key] = state[key] + np.float32(1e-4) * rng.standard_normal(
                    state[key].shape, np.float32
                )
            (tmp_path / "b" / name).write_bytes(flat(state)[name])
            before = [repo.storage.stats().stored_bytes for repo in (tensors, opaque)]
            tensors.commit(dict(state))
            done = opaque.commit(tmp_path / "b" / name)
            after = [repo.storage.stats().stored_bytes for repo in (tensors, opaque)]
            sizes[step] = [b - a for a, b in zip(before, after, strict=True)]
        assert len(done.entries[name].contents) > 2
        opaque.checkout(done.id, to=tmp_path / "out")
        assert (tmp_path / "out" / name).read_bytes() == flat(state)[name]
    assert sum(s[1] for s in sizes.values()) < 1.05 * sum(s[0] for s in sizes.values())
    assert sizes[3][1] < 1.05 * sizes[3][0]


def test_a_distributed_checkpoint_is_committed(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    state = {"a": torch.randn(100, 300), "b": torch.randn(7), "step": 3}
    checkpoint.save(state, checkpoint_id=tmp_path / "repo" / "ck", no_dist=True)
    file = tmp_path / "repo" / "ck" / "__0_0.distcp"
    with mvc.Repository.init(tmp_path / "repo") as repo:
        whole = file.read_bytes()
        assert repo.commit(tmp_path / "repo" / "ck").entries["ck/__0_0.distcp"].size == len(whole)
    with mvc.Repository.init(tmp_path / "other") as repo:
        cut = tmp_path / "other" / file.name
        cut.write_bytes(whole[:-100])
        with pytest.raises(mvc.errors.BadModelFile, match="truncated"):
            repo.commit(cut)
    assert parse_file(MemorySource(whole), "x").format == "opaque"
