"""Commits by mvc, read back by the oracle and compared."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from mvc.repo.commit.request import CommitOptions
from tests.oracle import reader

Files = Mapping[str, bytes]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def held_against(root: Path, *, edges: bool = True) -> reader.Repository:
    """Opens with the oracle, and compares every file and tensor of every version with mvc's."""
    oracle = reader.Repository(root / ".mvc")
    with Repository.open(root) as repo:
        assert {b.name: b.commit for b in repo.refs()} == {
            n.removeprefix("heads/"): c
            for n, c in oracle.refs.items()
            if n.startswith("heads/") and c
        }
        for id_ in oracle.commits.keys() - oracle.forgotten():
            out = root / "out" / id_.hex()
            repo.checkout(id_.hex(), to=out / "x")
            files = oracle.checkout(id_)
            one = (out / "x").is_file()
            written = {"": out / "x"} if one else {p: out / "x" / p for p in files}
            assert [p.read_bytes() for p in written.values()] == list(files.values())
            for entry in repo.manifest(id_.hex()).entries:
                found = oracle.tensors(id_)[entry.path]
                assert [(t.key, t.spec.dtype, t.spec.shape) for t in entry.tensors] == [
                    (k, *v[:2]) for k, v in found.items()
                ]
                assert all(reader.blob_id(*found[t.key]) == t.id for t in entry.tensors)
    if edges:
        assert check_steps(oracle) > 0
    return oracle


def frame_length(journal: bytes, at: int) -> int:
    """Of the frame that stands there, with its 32 bytes before the payload and its check."""
    return 48 + int.from_bytes(journal[at + 4 : at + 8], "little")


def into(oracle: reader.Repository) -> dict[tuple[bytes, int], list[tuple[Any, Any]]]:
    """The records and members that hold each piece."""
    found: dict[tuple[bytes, int], list[tuple[Any, Any]]] = {}
    for piece, record, member, reverse in chain.from_iterable(oracle.edges.values()):
        if not reverse:
            found.setdefault(piece, []).append((record, member))
    return found


def check_steps(oracle: reader.Repository) -> int:
    """Takes every coding of every piece, either way, and compares; how many there were."""
    count = 0
    for origin, found in oracle.edges.items():
        for piece, record, member, reverse in found:
            told = [oracle.pieces[need] for need in member.needs]
            data = reader.apply(record, member, oracle.pieces.get(origin), reverse, told)
            assert data == oracle.pieces[piece], f"two codings of {piece[0].hex()[:10]} differ"
            count += 1
    return count


def commit_files(root: Path, *versions: Files, **options: object) -> list[bytes]:
    """Commits exactly these files, one version after the other; checks them by the oracle."""
    ids = []
    with Repository.init(root) as repo:
        for files in versions:
            gone = [e.path for e in repo.manifest().entries if e.path not in files] if ids else []
            for path in gone:
                (root / path).unlink()
            for path, data in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
            named = [root / path for path in (*files, *gone)]
            empty = CommitOptions(allow_empty=True)
            made = repo.commit(named, options=empty, **options)  # type: ignore[arg-type]
            ids.append(bytes(made.id))
    oracle = held_against(root)
    for id_, files in zip(ids, versions, strict=True):
        assert oracle.checkout(id_) == dict(files)
    return ids


def commit_states(root: Path, *states: dict[str, object], **options: object) -> reader.Repository:
    with Repository.init(root) as repo:
        for state in states:
            empty = CommitOptions(allow_empty=True)
            repo.commit(state, options=empty, **options)  # type: ignore[arg-type]
    oracle = held_against(root)
    for id_, state in zip(oracle.commits, states, strict=True):
        (tensors,) = oracle.tensors(id_).values()
        for key, value in state.items():
            if isinstance(value, np.ndarray):
                assert tensors[key][2] == value.tobytes()
    return oracle


def codings_of(oracle: reader.Repository) -> set[str]:
    return {m.coding for found in into(oracle).values() for _, m in found}


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
