"""One history of every kind of version, coding and truth that a transfer may meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

import mvc.recipes as recipes
from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.maintenance.repack.super_steps import join
from mvc.repo.commit.request import CommitOptions
from mvc.repo.config import set_value
from mvc.testing import FixedClock, fresh_process, open_quietly
from tests.recipes import by_hand

__all__ = ["START", "made", "mixed", "model", "moved"]

START = 1_750_000_000_000_000_000
SECOND = 1_000_000_000
AUTHOR = CommitOptions(author="Ada <ada@example.org>")
PIPELINES = ("none", "vsol", "lossless", "xor | elide | planes | zstd:3", "sub | zigzag | zstd:1")
Arrays = Mapping[str, np.ndarray]


def model(seed: int = 0, shape: tuple[int, int] = (40, 30)) -> dict[str, np.ndarray]:
    """A matrix, a vector and several small tensors, which are grouped."""
    random = np.random.default_rng(seed)
    small = {f"small{i}": random.standard_normal(9).astype(np.float32) for i in range(4)}
    return {
        "w": random.standard_normal(shape).astype(np.float32),
        "b": random.standard_normal(shape[0]).astype(np.float32),
        "frozen": np.arange(600, dtype=np.float32),
        **small,
    }


def moved(state: Arrays, seed: int) -> dict[str, np.ndarray]:
    """A step of training: half of the numbers move a little, ``frozen`` stays."""
    random = np.random.default_rng(seed)
    after = dict(state)
    for name in state.keys() - {"frozen"}:
        some = random.random(state[name].shape) < 0.5
        change = 1e-4 * some * random.standard_normal(state[name].shape)
        after[name] = state[name] + change.astype(state[name].dtype)
    return after


def made(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What the recipes of this history make."""
    return moved(model(3), arguments["seed"])


@contextmanager
def _going_on(root: Path, clock: FixedClock) -> Iterator[Repository]:
    fresh_process()
    with open_quietly(root, clock=clock) as repo:
        yield repo


def mixed(root: Path, *, layout: str = "skip:2") -> Path:
    """Builds it in a new repository, which it returns closed."""
    clock = FixedClock(START, SECOND)
    Repository.init(root, clock=clock).close()
    set_value(FileSystem(), root / ".mvc/config.yaml", "store.layout", layout)
    with _going_on(root, clock) as repo:
        _around(repo)
        ids = _line(repo)
        _files(repo, root)
        _lossy(repo)
        _recipes(repo, root)
    with _going_on(root, clock) as repo:
        _collected(repo, ids)
        _truths(repo, ids)
    return root


def _flipped(weights: np.ndarray, bit: int, seed: int) -> np.ndarray:
    """One bit of some numbers is another one: deltas are small, those past two steps are not."""
    bits = weights.view(np.uint32).copy()
    random = np.random.default_rng(seed)
    some = random.choice(bits.size, bits.size // 50, replace=False)
    bits.flat[some] ^= np.uint32(1 << bit)
    return bits.view(np.float32)


def _around(repo: Repository) -> None:
    """Three versions; that in the middle is kept by gc as a step to the last one, a phantom."""
    first = np.random.default_rng(8).standard_normal((100, 150)).astype(np.float32)
    middle = _flipped(first, 9, 1)
    for weights, live in ((first, "prod"), (middle, None), (_flipped(middle, 17, 2), "prod")):
        repo.commit({"w": weights}, path="model.safetensors", deploy=live, options=AUTHOR)


def _line(repo: Repository) -> list[CommitId]:
    """Skip deltas, reset points, a tensor that others have in lower precision, every pipeline."""
    state, ids = model(), []
    for i in range(12):
        state = moved(state, i)
        done = repo.commit(
            state,
            message=f"step {i}",
            metrics={"acc": 0.5 + i / 30},
            params={"lr": "1e-3"} if i % 4 == 0 else {},
            deploy="prod" if i % 3 == 0 else None,
            options=replace(AUTHOR, reset_point=i == 7),
        )
        ids.append(done.id)
    for i, pipeline in enumerate(PIPELINES):
        for step in range(2):
            state = moved(state, 40 * i + step)
            half = {name: array.astype(np.float16) for name, array in state.items()}
            repo.commit(
                states={"model.safetensors": state, "half.safetensors": half},
                pipeline=pipeline,
                options=AUTHOR,
            )
    return ids


def _files(repo: Repository, root: Path) -> None:
    """Files that no parser knows, which are patched, and arrays of changing shapes."""
    text = b"".join(b"%d: a line of a log\n" % i for i in range(300))
    table = model(5)["w"]
    for step in range(3):
        (root / "log.txt").write_bytes(text[: 2000 + 700 * step])
        (root / "deep").mkdir(exist_ok=True)
        np.save(root / "deep/ä b.npy", table[: 20 + 10 * step])
        repo.commit([root / "log.txt", root / "deep/ä b.npy"], message="files", options=AUTHOR)


def _lossy(repo: Repository) -> None:
    """Approximations on a branch, joined to super-steps."""
    repo.switch("lossy", create=True, force=True)
    state = model(7, (60, 50))
    for i in range(7):
        state = moved(state, 900 + i)
        repo.commit(state, path="lc.safetensors", pipeline="lc:x=2,huffman", options=AUTHOR)
    join(repo.handle.store, repo.handle.config, 3)
    repo.switch("main", force=True)


def _recipes(repo: Repository, root: Path) -> None:
    """Data sets by value and by reference; two versions with a recipe, one gave its weights up."""
    data = root.parent / f"{root.name}-data"
    data.mkdir()
    (data / "numbers.txt").write_text("1.5\n2.5\n")
    recipes.add_data(repo, data, name="digits")
    (data / "more.txt").write_text("3.5\n")
    stored = recipes.add_data(repo, data, name="digits")
    recipes.add_data(repo, data, name="outside", reference=True)
    repo.switch("trained", create=True, force=True)
    base = repo.commit(model(3), options=AUTHOR).id
    first = by_hand.trained(repo, made, {"seed": 11}, base, stored.version)
    second = by_hand.trained(repo, made, {"seed": 12}, first)
    repo.storage.repack(interval=1)
    by_hand.drop(repo, second)
    repo.switch("main", force=True)


def _collected(repo: Repository, ids: list[CommitId]) -> None:
    """Repacked with an interval; states forgotten by name and by rule; garbage collected."""
    repo.switch("gone", create=True, start=str(ids[5]), force=True)
    for i in range(2):
        repo.commit(moved(model(), 60 + i), options=AUTHOR, message="nothing leads here")
    repo.switch("main", force=True)
    repo.delete_ref("branch", "gone", force=True)
    repo.storage.repack(interval=4)
    repo.storage.forget([ids[4]], reason="asked for by a person")
    repo.storage.forget(unused="prod", keep_last=35)
    assert repo.storage.gc(grace="0").phantoms
    state = moved(model(), 70)
    for i in range(4):
        state = moved(state, 71 + i)
        repo.commit(state, options=AUTHOR, message=f"after gc {i}", deploy="prod")


def _truths(repo: Repository, ids: list[CommitId]) -> None:
    """Tags, a branch, dated and retracted deployments, a rollback, annotations, an undo."""
    repo.tag("v1", ids[7])
    repo.tag("v2", "HEAD")
    repo.branch("side/line", ids[8])
    repo.deploy(ids[9], "edge/eu", reason="two\nlines")
    repo.deploy("HEAD~1", "prod", at=START - 9 * SECOND)
    repo.deploy("HEAD", "prod", at=START + 10**6 * SECOND)
    repo.deploy(ids[9], "edge/us")
    repo.retract(None, "edge/us", reason="a typo")
    repo.rollback("prod", reason="the error rate doubled")
    repo.annotate("HEAD", metrics={"auc": 0.5}, note="nightly")
    repo.annotate(ids[4], note="forgotten, and still evidence")
    repo.tag("v3", "HEAD~2")
    repo.undo(reason="not yet")
