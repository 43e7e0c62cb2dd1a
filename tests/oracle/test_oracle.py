"""What mvc writes, read by somebody who has only docs/format.md: the same bytes everywhere."""

from __future__ import annotations

import random
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mvc.codecs.payload
import mvc.repo.bases
import mvc.repo.contents
import mvc.repo.hashing
import mvc.repo.keep
import mvc.store.choose
import mvc.store.decode
import mvc.store.recover
import mvc.store.writer
from mvc.codecs.cast import cast
from mvc.codecs.patch import encode_patch
from mvc.codecs.pipeline import Pipeline
from mvc.errors import NoDeployment
from mvc.repo.repository import Repository
from tests.faults.clock import FixedClock
from tests.oracle import codings, reader, values
from tests.oracle.reader import Bad

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"
SECOND = 1_000_000_000
START = 1_750_000_000 * SECOND

Files = Mapping[str, bytes]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def held_against(root: Path, *, edges: bool = True) -> reader.Repository:
    """Opens with the oracle, and compares every file and tensor of every version with mvc's."""
    oracle = reader.Repository(root / ".mvc")
    with Repository.open(root) as repo:
        assert {b.name: b.commit for b in repo.branches()} == {
            n.removeprefix("heads/"): c
            for n, c in oracle.refs.items()
            if n.startswith("heads/") and c
        }
        for id_ in oracle.commits:
            out = root / "out" / id_.hex()
            repo.restore(id_.hex(), output=out / "x")
            files = oracle.checkout(id_)
            one = (out / "x").is_file()
            written = {"": out / "x"} if one else {p: out / "x" / p for p in files}
            assert [p.read_bytes() for p in written.values()] == list(files.values())
            for entry in repo.manifest(id_.hex()).entries:
                found = oracle.tensors(id_)[entry.path]
                assert [(t.key, t.spec.dtype, t.spec.shape) for t in entry.tensors] == [
                    (k, *v[:2]) for k, v in found.items()
                ]
                assert all(values.blob_id(*found[t.key]) == t.id for t in entry.tensors)
    if edges:
        assert oracle.check_steps() > 0
    return oracle


def commit_files(root: Path, *versions: Files, **options: object) -> list[bytes]:
    """Commits exactly these files, one version after the other; checks them by the oracle."""
    ids = []
    with Repository.init(root) as repo:
        for files in versions:
            gone = [e.path for e in repo.manifest().entries if e.path not in files] if ids else []
            if gone:
                repo.remove(gone)
            for path, data in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
            made = repo.commit([root / p for p in files], allow_empty=True, **options)  # type: ignore[arg-type]
            ids.append(bytes(made.id))
    oracle = held_against(root)
    for id_, files in zip(ids, versions, strict=True):
        assert oracle.checkout(id_) == dict(files)
    return ids


def commit_states(root: Path, *states: dict[str, object], **options: object) -> reader.Repository:
    with Repository.init(root) as repo:
        for state in states:
            repo.commit(state, **options)  # type: ignore[arg-type]
    oracle = held_against(root)
    for id_, state in zip(oracle.commits, states, strict=True):
        (tensors,) = oracle.tensors(id_).values()
        for key, value in state.items():
            if isinstance(value, np.ndarray):
                assert tensors[key][2] == value.tobytes()
    return oracle


def codings_of(oracle: reader.Repository) -> set[str]:
    return {m.coding for found in oracle.into.values() for _, m in found}


def series(count: int, shape: tuple[int, ...] = (40, 64)) -> list[dict[str, object]]:
    """A model as training leaves it: some of the weights moved a little, one never."""
    random_ = rng()
    weight = random_.standard_normal(shape).astype(np.float32)
    bias = random_.standard_normal(shape[0]).astype(np.float32)
    fixed = np.arange(10)
    states = []
    for step in range(count):
        moved = random_.random(shape) < 0.5
        weight = weight + (moved * 1e-4 * random_.standard_normal(shape)).astype(np.float32)
        bias = bias * np.float32(1.0001)
        states.append({"w": weight, "b": bias, "fixed": fixed, "step": np.array(step)})
    return states


# -- series --------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", ["lossless", "vsol", "none"])
def test_long_series_has_reset_points_reached_from_both_sides(tmp_path: Path, pipeline: str):
    oracle = commit_states(tmp_path, *series(33), pipeline=pipeline)
    if pipeline != "none":
        both = [found for found in oracle.into.values() if len({m.base for _, m in found}) > 1]
        assert both, "a reset point keeps its delta"


@pytest.mark.parametrize(
    "pipeline",
    [
        "xor | elide | planes | zstd:3",
        "sub | planes",
        "sub | zigzag | zstd:1",
        "xor | raw",
        "sub | elide",
        "sub | zigzag | planes:all | zstd:1",
        "sub | planes:all",
    ],
)
def test_every_shape_of_pipeline(tmp_path: Path, pipeline: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mvc.store.choose, "_WORTH", 2.0)  # a delta even where it saves nothing
    oracle = commit_states(tmp_path, *series(3), pipeline=pipeline)
    assert Pipeline.parse(pipeline).text in codings_of(oracle)


def test_idle_rows_make_sparse_streams(tmp_path: Path):
    states = series(2, (600, 700))
    changed = np.array(states[0]["w"])
    changed[rng(3).random(changed.shape) < 0.003] += np.float32(0.5)
    commit_states(tmp_path, states[0], states[0] | {"w": changed})


def test_constant_words_odd_lengths_and_every_dtype(tmp_path: Path):
    import torch

    names = [n for n in values.NAMES if hasattr(torch, n) and not n.startswith(("q", "float4"))]
    first, second = {}, {}
    for name in names:
        size = values.SIZES[name]
        bits = rng(len(name)).integers(0, 2, 300 * size, dtype=np.uint8)
        first[name] = torch.from_numpy(bits.copy()).view(getattr(torch, name))
        bits[:: 7 * size] ^= 1
        second[name] = torch.from_numpy(bits).view(getattr(torch, name))
    first["same"], second["same"] = torch.zeros(5000), torch.ones(5000)
    oracle = commit_states(tmp_path, first, second)
    (tensors,) = oracle.tensors(list(oracle.commits)[1]).values()
    assert {t[0] for t in tensors.values()} == {*names}
    assert all(
        tensors[n][2] == second[n].view(torch.uint8).numpy().tobytes() for n in [*names, "same"]
    )


# -- sizes and bridges ---------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", ["lossless", "vsol"])
def test_resized_embedding(tmp_path: Path, pipeline: str):
    table = rng().standard_normal((300, 64)).astype(np.float32)
    sizes = (table, np.concatenate([table, table[:30] * 2]), table[:200], table[:0], table)
    oracle = commit_states(
        tmp_path, *({"e": np.ascontiguousarray(t)} for t in sizes), pipeline=pipeline
    )
    assert any(c.startswith("resize | ") for c in codings_of(oracle))


def test_copy_in_bfloat16_beside_its_master(tmp_path: Path):
    import torch

    master = torch.from_numpy(rng().standard_normal((200, 64)).astype(np.float32))
    master[0, :4] = torch.tensor([float("nan"), float("inf"), 1e-40, -0.0])
    half = {"w": master.to(torch.bfloat16)}
    oracle = commit_states(tmp_path, {"w": master}, half, {"w": master + 1}, half)
    assert any(c.startswith("cast:float32>bfloat16") for c in codings_of(oracle))
    (tensors,) = oracle.tensors(list(oracle.commits)[1]).values()
    assert tensors["w"][2] == half["w"].view(torch.uint8).numpy().tobytes()


@given(st.sampled_from(["float32>bfloat16", "float32>float16", "float64>float32"]), st.randoms())
def test_casts_by_the_document(names: str, random_: random.Random):
    source, _, to = names.partition(">")
    special = bytes.fromhex("0000c07f 010080ff 0100807f 000080ff 01000000 ffff7f47 0000f07f")
    data = special + random_.randbytes(8 * 64 - len(special))
    assert codings.cast(data, names) == bytes(cast(memoryview(data), source, to))


def test_empty_and_scalar_tensors_and_nested_state(tmp_path: Path):
    state: dict[str, object] = {
        "scalar": np.float64(2.5),
        "zero": np.zeros((), np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "optimizer": {"state": {0: {"step": np.array(1.0)}}, "groups": [{"lr": 1e-3}]},
    }
    oracle = commit_states(tmp_path, state, {"empty": np.zeros((0, 3), np.float32)}, {})
    first = next(iter(oracle.commits))
    (tensors,) = oracle.tensors(first).values()
    assert tensors["optimizer.state.0.step"] == ("float64", (), np.array(1.0).tobytes())
    assert tensors["empty"] == ("float32", (0, 3), b"")


def test_blobs_of_several_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slab, chunk = 1 << 17, 1 << 15
    for module in (
        mvc.repo.bases, mvc.repo.contents, mvc.repo.hashing, mvc.repo.keep,
        mvc.store.choose, mvc.store.decode, mvc.store.recover, mvc.store.writer,
    ):  # fmt: skip
        for name, value in (("SLAB", slab), ("CHUNK", chunk)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    states = series(4, (300, 321))
    sparse = np.zeros((500, 321), np.float32)
    sparse[:300] = np.asarray(states[-1]["w"])
    sparse[300::3] = 1.5
    short = np.asarray(states[0]["w"])[:150].copy()
    oracle = commit_states(tmp_path / "states", *states, {"w": sparse}, {"w": short})
    assert max(start for _, start in oracle.into) >= 2 * slab
    data = rng().bytes(5 * slab // 2)
    commit_files(tmp_path / "files", *({"f": d} for d in (data, data[:slab], data + data[:99])))


@pytest.mark.parametrize("pipeline", ["lossless", "vsol"])
def test_a_blob_beyond_the_true_slab(tmp_path: Path, pipeline: str):
    weight = np.zeros((9 << 20,), np.float32)
    weight[:: 1 << 10] = 1
    changed = weight.copy()
    changed[-1] = 2
    oracle = commit_states(tmp_path, {"w": weight}, {"w": changed}, pipeline=pipeline)
    assert max(start for _, start in oracle.into) == 32 << 20


# -- files ---------------------------------------------------------------------------------


def test_opaque_files_of_changing_length(tmp_path: Path):
    base = rng().bytes(300_000)
    texts = [b"%d: a line of a log\n" % i for i in range(4000)]
    versions = [
        {"f.bin": base, "log": b"".join(texts[:3000])},
        {"f.bin": base[:1000] + b"inserted" + base[1000:], "log": b"".join(texts)},
        {"f.bin": base[100:150_000] + b"x" * 777, "log": b"".join(texts[1000:2000])},
        {"f.bin": b"", "log": b"x"},
        {"f.bin": b"abc", "log": b""},
    ]
    commit_files(tmp_path, *versions)


def test_renames_and_deletions(tmp_path: Path):
    a, b = rng(1).bytes(5000), rng(2).bytes(7000)
    ids = commit_files(
        tmp_path,
        {"a.bin": a, "d/b.bin": b},
        {"renamed.bin": a, "d/b.bin": b + b"more"},
        {"renamed.bin": a},
        {"d/é ü.bin": b},
    )
    with Repository.open(tmp_path) as repo:
        repo.remove(["d/é ü.bin"])
    oracle = reader.Repository(tmp_path / ".mvc")
    assert oracle.removed == ["d/é ü.bin"]
    assert list(oracle.checkout(ids[2])) == ["renamed.bin"]


def _torch_files(folder: Path) -> list[Files]:
    import torch

    versions = []
    storage = torch.from_numpy(rng().standard_normal(4000).astype(np.float32))
    for step in range(3):
        storage = storage * 1.0001
        state = {
            "model": {"w": storage[:3000].reshape(50, 60).clone(), "half": storage[:9].half()},
            "view": storage[100:1100].reshape(20, 50).t(),
            "other": storage[50:60],
            "tied": (tied := storage[:32].clone()),
            "tied too": tied,
            "step": step,
            "empty": torch.zeros(0, 5),
            "scalar": torch.tensor(step),
        }
        torch.save(state, folder / "made.pt")
        versions.append({"ckpt.pt": (folder / "made.pt").read_bytes()})
    return versions


def _safetensors_files(folder: Path) -> list[Files]:
    from safetensors.numpy import save

    random_ = rng()
    weight = random_.standard_normal((50, 30)).astype(np.float32)
    made = [
        {"w": weight, "e": np.zeros((0,), np.float32), "s": np.array(3)},
        {"w": weight + np.float32(1e-5), "extra": np.arange(9), "s": np.array(4)},
        {"module.w": weight + np.float32(2e-5), "s": np.array(4)},
    ]
    return [{"a/model.safetensors": save(m, {"format": "np"})} for m in made]


def _npz_files(folder: Path) -> list[Files]:
    random_ = rng()
    weight = random_.standard_normal((50, 30)).astype(np.float32)
    versions = []
    for step in range(3):
        np.savez(folder / "made.npz", w=weight + np.float32(step * 1e-5), b=np.arange(step + 1))
        np.save(folder / "made.npy", weight * np.float32(1 + step * 1e-6))
        versions.append(
            {n: (folder / n.replace("m", "made")).read_bytes() for n in ("m.npz", "m.npy")}
        )
    with zipfile.ZipFile(folder / "z.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(folder / "made.npy", "w.npy")
    return [*versions, {"m.npz": (folder / "z.npz").read_bytes()}]


@pytest.mark.parametrize("make", [_torch_files, _safetensors_files, _npz_files])
def test_model_files(tmp_path: Path, make: Callable[[Path], list[Files]]):
    versions = make(tmp_path)
    root = tmp_path / "repo"
    ids = commit_files(root, *versions)
    oracle = reader.Repository(root / ".mvc")
    assert any(e.tensors for e in oracle.manifest(ids[0]))
    if make is _torch_files:
        tensors = oracle.tensors(ids[0])["ckpt.pt"]
        assert tensors["view"][1] == (50, 20)
        assert tensors["tied"] == tensors["tied too"]


# -- history -------------------------------------------------------------------------------


def test_commits_refs_and_metadata(tmp_path: Path):
    with Repository.init(tmp_path, clock=FixedClock(START)) as repo:
        first = repo.commit(
            {"w": np.ones(3)}, message="one\nü \udcff", metrics={"acc": 0.5, "a": 1}
        )
        repo.branch("side")
        repo.tag("v1")
        second = repo.commit({"w": np.zeros(3)}, author="somebody", time=-SECOND, pipeline="none")
        repo.switch("side", force=True)
        oracle = reader.Repository(tmp_path / ".mvc")
        for made in (first, second):
            read, ours = oracle.commits[made.id], made.commit
            assert (read.root, read.parents, read.author) == (
                made.root,
                [*ours.parents],
                ours.author,
            )
            assert (read.message, read.metrics) == (ours.message, dict(ours.metrics))
            assert (read.time, read.zone) == (ours.time_ns, ours.zone_minutes)
            assert (read.pipeline, read.code) == (ours.pipeline, ours.code)
        assert oracle.refs == {
            "HEAD": "side", "heads/main": second.id, "heads/side": first.id, "tags/v1": first.id,
        }  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_deployments_in_any_order_with_retractions(
    tmp_path_factory: pytest.TempPathFactory, random_: random.Random
):
    root = tmp_path_factory.mktemp("deployed")
    clock = FixedClock(START)
    with Repository.init(root, clock=clock) as repo:
        commits = [repo.commit({"w": np.full(3, i)}).id for i in range(3)]
        for _ in range(12):
            clock.advance(random_.randrange(-5, 9) * SECOND)
            target, at = random_.choice(["prod", "edge/eu"]), START + random_.randrange(9) * SECOND
            try:
                if random_.random() < 0.3:
                    repo.retract(target)
                else:
                    repo.deploy(random_.choice(commits), target, at=random_.choice([at, None]))
            except Exception as error:
                assert type(error).__name__ in {"NoDeployment", "UnknownTarget"}
        oracle = reader.Repository(root / ".mvc")
        assert [
            (d.target, d.time_ns, d.sequence, d.commit, d.retracted) for d in repo.deployments()
        ] == [
            (d.target, d.time, d.sequence, d.commit, d.dead)
            for d in sorted(oracle.deployments, key=lambda d: (d.time, d.sequence))
        ]
        for target in {d.target for d in oracle.deployments}:
            for at in (None, *(START + s * SECOND for s in range(-2, 60, 3))):
                try:
                    live = repo.live(at, target).commit
                except NoDeployment:
                    live = None
                assert oracle.live(target, at) == live


# -- damage --------------------------------------------------------------------------------


def _small(root: Path) -> Path:
    with Repository.init(root) as repo:
        for state in series(2, (8, 8)):
            repo.commit(state)
    return root / ".mvc"


def test_an_interrupted_write_is_passed_over(tmp_path: Path):
    folder = _small(tmp_path)
    whole = (folder / "journal").read_bytes()
    frame = values.read_frame(whole, 0)
    second = 2 * frame[0]
    third = second + 2 * values.read_frame(whole, second)[0]
    for cut in range(second, len(whole), 7):
        (folder / "journal").write_bytes(whole[:cut])
        half = (third - second) // 2
        expected = 2 if cut >= second + half else 1
        if cut >= third:
            expected = 3 if cut >= third + (len(whole) - third) // 2 else 2
        assert len(reader.Repository(folder).entries) == expected
        with Repository.open(tmp_path) as repo:
            assert sum(1 for _ in repo.context.store.view.entries()) == expected


def test_a_frame_inside_a_message_does_not_pass_for_the_second_copy(tmp_path: Path):
    folder = _small(tmp_path)
    frame = (folder / "journal").read_bytes()[
        : values.read_frame((folder / "journal").read_bytes(), 0)[0]
    ]
    end = len((folder / "journal").read_bytes())
    with Repository.open(tmp_path) as repo:
        made = repo.commit({"w": np.zeros(3)}, message=frame.decode("utf-8", "surrogateescape"))
    whole = bytearray((folder / "journal").read_bytes())
    whole[end + 20] ^= 1
    (folder / "journal").write_bytes(whole)
    assert made.id in reader.Repository(folder).commits
    with Repository.open(tmp_path) as repo:
        assert repo.find("HEAD") == made.id


@pytest.mark.parametrize("name", ["format", "journal", "packs/00000001.pack"])
def test_a_flipped_bit_is_repaired_or_found(tmp_path: Path, name: str):
    folder = _small(tmp_path)
    whole = (folder / name).read_bytes()
    commits = list(reader.Repository(folder).commits)
    sound = [reader.Repository(folder).checkout(c) for c in commits]
    found = 0
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            oracle = reader.Repository(folder)
            assert [oracle.checkout(c) for c in commits] == sound
        except Bad:
            found += 1
    assert (found == 0) == (name == "journal")


# -- the document --------------------------------------------------------------------------


def example(name: str) -> bytes:
    (block,) = re.findall(rf"^```hex {name}\n(.*?)^```", DOCUMENT.read_text(), re.S | re.M)
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in block.splitlines())


def test_examples_of_the_document():
    numbers = np.arange(1, 9, dtype="<u2").tobytes()
    assert (
        values.blob_id("uint16", (8,), numbers) == values.blake3(example("blob-preimage")).digest()
    )
    (entry,) = values.read_journal(example("frame") * 2)
    assert (entry.operation, entry.refs) == ("init", [("HEAD", None, "main")])
    record = reader.read_record(example("record"), 0)
    assert codings.apply(record, record.members[0], None) == numbers
    old = np.array([10, 20, 30, 40, 50, 60, 70, 80], "<u2").tobytes()
    new = np.array([10, 20, 31, 40, 50, 59, 70, 80], "<u2").tobytes()
    stages = ["sub", "zigzag", "elide", "planes", "zstd:huff"]
    width, delta = codings.single(example("payload-elided"), 16, stages)
    assert codings.combine(old, delta, width, "sub", False) == new
    assert codings.combine(new, delta, width, "sub", True) == old
    stages = ["xor", "planes:all", "zstd:1"]
    first, second = codings.group(example("payload-group"), [16, 3], stages)
    assert codings.combine(old, first[1], first[0], "xor", False) == new
    assert codings.combine(b"\1\2\2", second[1], second[0], "xor", False) == b"\1\2\3"
    base, text = (
        b"hello brave old world, hello brave" * 2,
        b"hello brave new world, hello brave" * 2,
    )
    assert codings.patch(example("payload-patch"), base, b"", 68) == text
    (file,) = values.read_manifest(example("manifest"))
    assert (file.path, file.tensors[0].spec) == ("model.safetensors", ("uint16", (8,)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9_000_000), st.integers(0, 9_000_000), st.integers(0, 1 << 20))
def test_windows_of_large_patches(length: int, old: int, extra: int):
    text = rng(1).bytes(1 << 16) * 140
    new, base = text[77 : 77 + length], text[:old]
    encoded = encode_patch(memoryview(new), memoryview(base), text[:extra], 1)
    assert codings.patch(encoded, base, text[:extra], length) == new
