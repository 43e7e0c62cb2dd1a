"""An encoder that writes something else than it was given: the commit refuses, whichever it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from functools import cached_property
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import mvc
from mvc.errors import EncodingFailed, SourceChanged
from mvc.limits import CHUNK, PIECE
from mvc.lossy.decisions import DriftStage, Dsed, Every
from mvc.lossy.guard import GuardStage
from mvc.lossy.weights import LossyStage
from mvc.maintenance.repack.super_steps import join
from mvc.model.commit import Commit
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import STAGES
from mvc.store.journal.entries import Entry
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import Coding, Member
from mvc.store.recovery import decode, recover, walk
from mvc.store.writing.proof import ALWAYS
from mvc.testing import fresh_process, open_quietly
from tests.values.stories import stored_bytes

Spoil = Callable[[Any], Any]
State = dict[str, np.ndarray]
_DELTA = "sub | zigzag | elide | planes | zstd:huff"


def states(count: int) -> list[State]:
    """Of a model whose weights all move a little, or not at all (one in five of a tensor)."""
    rng = np.random.default_rng(0)
    made: list[State] = [{name: rng.normal(size=3000).astype("f4") for name in ("a", "b")}]
    for _ in range(count - 1):
        step = {name: (rng.normal(size=3000) * 1e-3).astype("f4") for name in ("a", "b")}
        step["a"][rng.random(3000) < 0.8] = 0
        made.append({name: value + step[name] for name, value in made[-1].items()})
    return made


def on_grid(state: State) -> State:
    return {name: np.round(value * 64).astype("f4") / 64 + 0 for name, value in state.items()}


def flipped(array: Any) -> Any:
    """The same array or bytes but for one bit."""
    if isinstance(array, (bytes, bytearray, memoryview)):
        data = bytearray(array)
        data[-1] ^= 1
        return bytes(data)
    other = np.array(array)
    other.reshape(-1).view(np.uint8)[-1] ^= 1
    return other


def last_part(parts: Any) -> Any:
    """Of parts to be joined, the last one that is not empty, flipped."""
    parts = [bytes(part) for part in parts]
    at = max(i for i, part in enumerate(parts) if part)
    return [*parts[:at], flipped(parts[at]), *parts[at + 1 :]]


def first_argument(encode: Callable[..., Any]) -> Callable[..., Any]:
    return lambda data, *args, **named: encode(flipped(data), *args, **named)


def of_data(compress: Callable[..., Any]) -> Callable[..., Any]:
    return lambda stage, data: compress(stage, flipped(data))


def result(change: Spoil) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An encoder whose result is changed."""
    return lambda encode: lambda *args, **named: change(encode(*args, **named))


def in_place(encode: Callable[..., Any]) -> Callable[..., Any]:
    """``words.difference`` and ``changes``, which fill their last argument."""

    def spoiled(operator: str, new: Any, base: Any, out: Any) -> Any:
        found = encode(operator, new, base, out)
        if len(out):
            out[-1] ^= 1
        return found

    return spoiled


def infinite(quantise: Callable[..., Any]) -> Callable[..., Any]:
    """A quantiser with an infinite number in its table."""

    def spoiled(*args: Any, **named: Any) -> Any:
        steps = quantise(*args, **named)
        for step in steps:
            step.table.flags.writeable = True
            step.table[-1] = np.inf
        return steps

    return spoiled


def property_of(kind: type, name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The bytes of a value: those of another one."""

    def spoil(original: Any) -> Any:
        made = cached_property(lambda value: original.func(change(value)))
        made.__set_name__(kind, name)
        return made

    return spoil


def misnamed(member: Member) -> Member:
    """A member whose coding is a line that no record names: one with a decision."""
    return member._replace(coding=Coding.of(f"every:1/9 | {member.coding.text}"))


PIPELINE = "mvc.pipelines.pipeline"
STEPS = "mvc.codecs.steps"
GROUP = "mvc.pipelines.group"
STAGE = "mvc.codecs.stages"
COMPRESS = "mvc.codecs.compressors"
STEP = "mvc.lossy.lc.payload"
PROOF = "mvc.store.writing.proof"
WRITER = "mvc.store.writing.records_in_flight"
_CODED = "expq | promote:2 | packed"
_split = result(lambda planes: [flipped(planes[0]), *planes[1:]])

STAGES_SPOILED = {
    "sub": ("sub | zstd:1", PIPELINE, "changes", in_place),
    "xor": ("xor | planes:all | zstd:1", GROUP, "difference", in_place),
    "steps": ("steps | gaps", STEPS, "_moves", result(lambda m: m and (*m[:2], -m[2]))),
    "zigzag": ("sub | zigzag | zstd:1", STAGE, "zigzag", lambda _: lambda words: None),
    "elide": (_DELTA, PIPELINE, "encode_stream", first_argument),
    "planes": (_DELTA, STAGE, "split", _split),
    "blocks": ("sub | blocks:18 | zstd:1", STAGE, "encode_stream", result(last_part)),
    "sparse": ("xor | sparse:values", STAGE, "encode_sparse", result(last_part)),
    "gaps": ("steps | gaps", STEPS, "encode", result(lambda p: p and last_part(p))),
    "lattice": ("lattice", STEPS, "_encode_full", result(lambda p: p and last_part(p))),
    **{
        name: (f"xor | planes | {name}:1", f"{COMPRESS}.{name.capitalize()}", "compress", of_data)
        for name in ("zstd", "zlib", "bz2", "lzma", "brotli")
    },
    "raw": ("raw", PIPELINE + ".Pipeline", "encode_parts", result(last_part)),
    "expq": ("expq | ans", "mvc.lossy.reducer", "quantise", infinite),
    "promote": (_CODED, "mvc.lossy.reducer", "quantise", infinite),
    "uniform": ("lc:uniform,budget=0.1", "mvc.lossy.reducer", "quantise", infinite),
    **{
        name: (f"lc:x=2,{name}", f"mvc.lossy.lc.coders.{name}", "encode", first_argument)
        for name in ("huffman", "packed", "ans")
    },
}  # fmt: skip
"""A line with each stage, and what codes it: module or class, name, what it becomes."""

RECORDS_SPOILED = {
    "patch": ("lossless", "mvc.store.writing.pieces", "encode_patch", result(flipped)),
    "group": ("vsol", WRITER, "encode_group", result(last_part)),
    "sparse group": ("xor | sparse", STAGE, "encode_sparse", result(last_part)),
    "planes of a group": ("vsol", STAGE, "split", _split),
    "steps": (_CODED, PROOF, "encode_steps", result(last_part)),
    "table": (_CODED, STEP, "encode_table", result(flipped)),
    "runs": (_CODED, STEP, "encode_runs", result(flipped)),
    "full": ("lossless", PIPELINE + ".Pipeline", "encode_parts", result(last_part)),
    "container": ("lossless", "mvc.store.writing.pieces", "pack_chunks", result(
        lambda parts: [flipped(parts[0]), *parts[1:]])),
    "checksum": ("lossless", WRITER, "payload_check", result(flipped)),
    "checksum of a group": ("vsol", WRITER, "payload_check", result(flipped)),
    "header": ("lossless", PROOF, "encode_header", result(flipped)),
    "coding": ("lossless", WRITER, "placed", result(misnamed)),
    "coding of a group": ("vsol", WRITER, "placed", result(misnamed)),
    "coding of steps": (_CODED, WRITER, "placed", result(misnamed)),
    "manifest": ("lossless", "mvc.model.manifest", "_spec_bytes", result(flipped)),
    "commit": ("lossless", "mvc.model.commit.Commit", "encoded", property_of(
        Commit, "encoded", lambda commit: replace(commit, zone_minutes=commit.zone_minutes + 1))),
    "entry": ("lossless", "mvc.store.journal.entries.Entry", "encoded", property_of(
        Entry, "encoded", lambda entry: replace(entry, time_ns=entry.time_ns + 1))),
    "frame": ("lossless", "mvc.store.publishing.publish", "encode_entry", result(
        lambda made: (flipped(made[0]), made[1]))),
}  # fmt: skip
"""The same of each kind of record, and of what makes a version out of them."""


def test_every_stage_is_among_them() -> None:
    """Of the others some decide and some choose weights: nothing is stored in their way."""
    free = {
        n
        for n, s in STAGES.items()
        if s in (Every, DriftStage, Dsed, GuardStage) or issubclass(s, LossyStage)
    }
    assert STAGES_SPOILED.keys() | free == STAGES.keys()
    assert not STAGES_SPOILED.keys() & free


@pytest.mark.parametrize("case", [*STAGES_SPOILED, *(f"record: {r}" for r in RECORDS_SPOILED)])
def test_the_commit_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    name = case.removeprefix("record: ")
    line, owner, attribute, spoil = (RECORDS_SPOILED if name != case else STAGES_SPOILED)[name]
    made = states(4)
    if line.startswith(("steps", "lattice")):
        made = [on_grid(state) for state in made]
    kept = {}
    with mvc.Repository.init(tmp_path) as repo:
        for state in made[:2]:
            done = repo.commit(state, pipeline=line)
            kept[done.id] = done.state if done.state is not None else state
        before = stored_bytes(tmp_path)
        with monkeypatch.context() as patch:
            calls = spoil_in(patch, owner, attribute, spoil)
            with pytest.raises(EncodingFailed, match="nothing was published") as caught:
                repo.commit(made[2], pipeline=line)
        assert calls, "the encoder was not called"
        assert "\n" not in caught.value.message
        after = stored_bytes(tmp_path)
        assert after.keys() == before.keys() and after["journal"] == before["journal"]
        assert all(data.startswith(before[file]) for file, data in after.items())
        done = repo.commit(made[3], pipeline=line)
        kept[done.id] = done.state if done.state is not None else made[3]
    fresh_process()
    with open_quietly(tmp_path) as repo:
        assert [version.id for version in repo.log()][::-1] == list(kept)
        assert repo.storage.fsck(full=True).sound
        for id_, state in kept.items():
            found = repo.checkout(id_)
            assert all(found[key].tobytes() == state[key].tobytes() for key in state)


ALWAYS_PROVEN = {
    "raw": ("raw", PIPELINE + ".Pipeline", "encode_parts", result(last_part)),
    **{case: RECORDS_SPOILED[case] for case in (
        "patch", "group", "sparse group", "steps", "container", "checksum", "checksum of a group",
        "header")},
}  # fmt: skip
"""What is proven however much a commit stores."""

PROVEN_IN_SMALL = {
    "full or delta": RECORDS_SPOILED["full"],
    **{case: STAGES_SPOILED[case] for case in ("elide", "planes", "zstd", "sparse", "gaps")},
}  # fmt: skip
"""What is proven up to ``ALWAYS`` bytes."""


@pytest.mark.parametrize(
    ("case", "always"),
    [
        *((case, ALWAYS) for case in PROVEN_IN_SMALL),
        *((case, 0) for case in ALWAYS_PROVEN),  # as beyond the first bytes of a large commit
    ],
)
def test_one_wrong_call_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, always: int
) -> None:
    monkeypatch.setattr(PROOF + ".ALWAYS", always)
    line, owner, attribute, spoil = (ALWAYS_PROVEN | PROVEN_IN_SMALL)[case]
    first, refused, kept = many_tensors(), 0, {}
    first = on_grid(first) if "steps" in line else first
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(first, pipeline=line)
        for wrong in (0, 1, 4, 11, 37, 41):
            state = moved(first, wrong)
            state = on_grid(state) if "steps" in line else state
            with monkeypatch.context() as patch:
                calls = spoil_in(patch, owner, attribute, spoil, only={wrong})
                try:
                    done = repo.commit(state, pipeline=line)
                except EncodingFailed:
                    refused += 1
                else:  # it was called less often, or to estimate a size
                    kept[done.id] = done.state or state
            if len(calls) <= wrong:
                break
    assert refused, "the encoder was not called"
    with open_quietly(tmp_path) as repo:
        for id_, state in kept.items():
            found = repo.checkout(id_)
            assert all(found[key].tobytes() == state[key].tobytes() for key in state)


def test_the_first_chunks_of_a_large_commit_are_all_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others by a sample: one that is wrong from some chunk on is seen."""
    line, owner, attribute, spoil = RECORDS_SPOILED["full"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})  # one thread proves in order
    chunks = ALWAYS // CHUNK
    state = {"w": np.random.default_rng(0).standard_normal(3 * ALWAYS // 4, np.float32)}
    last = {chunks - 3, chunks - 2}
    with mvc.Repository.init(tmp_path) as repo:
        # The first call estimates the size of a piece, another one that of the second, at any time:
        # one of two calls in a row encodes a chunk.
        for wrong in ({1, 2}, {6, 7}, last, range(chunks + 1, 3 * chunks + 1)):
            with monkeypatch.context() as patch:
                spoil_in(patch, owner, attribute, spoil, only=wrong)
                with pytest.raises(EncodingFailed):
                    repo.commit(state, pipeline=line)
        assert repo.commit(state, pipeline=line).id


def many_tensors() -> State:
    """A model of small tensors and one of many chunks."""
    rng = np.random.default_rng(0)
    made = {f"t{i}": rng.standard_normal(4000, np.float32) for i in range(40)}
    return made | {"big": rng.standard_normal(1 << 20, np.float32)}


def moved(state: State, seed: int) -> State:
    """One in 20 of the weights moves."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, value in state.items():
        step = rng.standard_normal(len(value), np.float32) * np.float32(1e-2)
        made[name] = value + step * (rng.random(len(value), np.float32) < 0.05)
    return made


def spoil_in(
    patch: pytest.MonkeyPatch,
    owner: str,
    attribute: str,
    spoil: Spoil,
    only: Container[int] | None = None,
) -> list[tuple[Any, ...]]:
    """Spoils an encoder, or ``only`` some of its calls; the list gets an item for each call."""
    calls: list[tuple[Any, ...]] = []
    try:
        holder: Any = import_module(owner)
    except ModuleNotFoundError:
        module, _, last = owner.rpartition(".")
        holder = getattr(import_module(module), last)
    original = vars(holder)[attribute]
    spoiled = spoil(original)
    if isinstance(spoiled, cached_property):
        calls.append(())
        patch.setattr(holder, attribute, spoiled)
        return calls

    numbers = count()  # of calls, which threads make, too

    def counted(*args: Any, **named: Any) -> Any:
        wrong = only is None or next(numbers) in only
        calls.append(args)
        return (spoiled if wrong else original)(*args, **named)

    patch.setattr(holder, attribute, counted)
    return calls


def test_a_super_step_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        kept = {}
        for state in states(9):
            done = repo.commit(state, pipeline="lc:x=2")
            kept[done.id] = done.state
        before = stored_bytes(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(
                "mvc.maintenance.repack.super_steps.encode_joint",
                result(last_part)(import_module("mvc.lossy.lc.payload").encode_joint),
            )
            with pytest.raises(EncodingFailed, match="super-step"):
                repo.storage.join_steps(4)
        assert stored_bytes(tmp_path) == before
        assert join(repo.handle.store, repo.handle.config, 4)
        for id_, state in kept.items():
            found = repo.checkout(id_)
            assert all(found[key].tobytes() == state[key].tobytes() for key in state)


@pytest.mark.parametrize(
    "line",
    ["topk:0.1 | xor | raw", "topk-all:0.1 | sub", "grid:1 | steps | gaps", "xor | lsb:8 | raw"],
)
def test_what_a_lossy_stage_chooses_is_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """There is nothing to prove it by: the version is whatever weights it made."""
    (stage,) = Pipeline.parse(line).lossy
    reduce = type(stage).reduce

    def other(self: Any, weights: Any, loss: float | None) -> None:
        reduce(self, weights, loss)
        for tensor in weights:
            tensor.after[0] ^= 1

    monkeypatch.setattr(type(stage), "reduce", other)
    with mvc.Repository.init(tmp_path) as repo:
        kept = [repo.commit(state, pipeline=line) for state in states(4)]
    with open_quietly(tmp_path) as repo:
        for done in kept:
            found = repo.checkout(done.id)
            assert all(found[key].tobytes() == done.state[key].tobytes() for key in found)


def test_a_tensor_that_changes_meanwhile_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decoded is compared with the caller's memory; the caller, not mvc, was wrong."""
    state = {"w": np.random.default_rng(0).normal(size=1 << 18).astype("f4")}
    pipeline = import_module(PIPELINE).Pipeline
    encode = pipeline.encode_parts

    def meanwhile(*args: Any) -> bytes:
        encoded: bytes = encode(*args)
        state["w"][5] += 1
        return encoded

    with mvc.Repository.init(tmp_path) as repo:
        monkeypatch.setattr(pipeline, "encode_parts", meanwhile)
        with pytest.raises(SourceChanged, match="changed while it was being committed"):
            repo.commit(state)


@pytest.mark.parametrize("wrong", ["always", "once"])
@pytest.mark.parametrize("nbytes", [4 << 10, PIECE + (1 << 20)])
def test_a_base_that_is_recovered_wrongly_is_not_built_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, wrong: str
) -> None:
    """The version before, or the older one that the layout names: in full, or not at all."""
    apply_steps, rng = decode.apply_steps, np.random.default_rng(0)
    state = {"w": rng.integers(1 << 30, size=nbytes // 4, dtype=np.int32)}
    calls: list[int] = []

    def other(packs: PackReader, steps: Any, out: memoryview, *given: Any, **named: Any) -> None:
        apply_steps(packs, steps, out, *given, **named)
        if wrong == "always" or not calls:
            out[0] ^= 1
        calls.append(len(out))

    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(state)
    for i in range(1, 5):
        state["w"][i::1000] += i
        calls.clear()
        with open_quietly(tmp_path) as repo, monkeypatch.context() as patch:
            patch.setattr(recover, "apply_steps", other)
            patch.setattr(walk, "apply_steps", other)
            try:
                id_ = repo.commit(state).id
            except EncodingFailed:
                assert nbytes > PIECE
                patch.undo()
                id_ = repo.commit(state).id
        assert calls, "no base was recovered"
        with open_quietly(tmp_path) as repo:
            assert repo.checkout(id_)["w"].tobytes() == state["w"].tobytes()
