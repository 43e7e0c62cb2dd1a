"""Repositories of one history: operations, codings, files, and damage of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from safetensors.numpy import save_file

import mvc.store.writing.full_or_delta
import mvc.store.writing.pack_writer
from mvc.api.repository import Repository
from mvc.io.clock import Clock
from mvc.repo.commit.request import CommitOptions
from tests.oracle import reader

START, SECOND = 1_750_000_000_000_000_000, 1_000_000_000
AUTHOR = "Ada <ada@example.org>"


class Ticking(Clock):
    """A second further each time."""

    now = START

    def now_ns(self) -> int:
        self.now += SECOND
        return self.now


def every_dtype(seed: int) -> dict[str, torch.Tensor]:
    """Three tensors' worth of any bits of each dtype, -0.0 and NaNs with payloads among them."""
    names = [n for n in reader.SIZES if hasattr(torch, n) and not n.startswith(("q", "float4"))]
    random = np.random.default_rng(seed)
    made = {}
    for name in names:
        bits = random.integers(0, 2 if name == "bool" else 256, 24 * reader.SIZES[name], np.uint8)
        made[name] = torch.from_numpy(bits).view(getattr(torch, name))
    return made


def moved(state: dict[str, Any], seed: int) -> dict[str, Any]:
    """A step of training: about half of the numbers move a little."""
    random = np.random.default_rng(seed)

    def step(array: np.ndarray) -> np.ndarray:
        some = random.random(array.shape) < 0.5
        return array + (1e-4 * some * random.standard_normal(array.shape)).astype(array.dtype)

    return {key: step(value) for key, value in state.items()}


def model(seed: int = 0, shape: tuple[int, int] = (16, 24)) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "w": random.standard_normal(shape).astype(np.float32),
        "b": random.standard_normal(shape[0]).astype(np.float32),
    }


def history(root: Path) -> None:
    """Every kind of operation: refs, deployments dated and retracted, removals, checkouts."""
    with Repository.init(root, clock=Ticking()) as repo:
        state = model()
        for i in range(5):
            state = moved(state, i)
            repo.commit(
                state,
                message=("first", "", "two\nlines", "ü \udcff \x1b[31m", "reset")[i],
                metrics={"acc": 0.5 + i, "tiny": 1e-300, "nan": float("nan")} if i == 1 else {},
                deploy="prod" if i in (0, 2) else None,
                options=CommitOptions(
                    author=AUTHOR if i % 2 else "ü",
                    time=-SECOND if i == 3 else None,
                    at=START - 9 * SECOND if i == 2 else None,
                    reset_point=i == 4,
                ),
            )
        repo.tag("v1", "HEAD~1")
        repo.tag("v1", "HEAD~2", force=True)
        repo.branch("side/line", "HEAD~3")
        repo.deploy("v1", "edge/eu")
        repo.retract(None, "edge/eu")
        repo.deploy("HEAD", "prod", at=START + 10**6 * SECOND)
        repo.deploy("HEAD~1", "prod")
        repo.retract(None, "prod", at=START - 9 * SECOND)
        repo.switch("side/line", force=True)
        (root / "notes.txt").write_text("beside the model")
        repo.commit(root / "notes.txt", message="on a branch", options=CommitOptions(author=AUTHOR))
        repo.checkout("v1", force=True, to=repo.root)
        repo.switch("main", force=True)
        (root / "gone.bin").write_bytes(b"removed" * 30)
        repo.commit(root / "gone.bin", options=CommitOptions(author=AUTHOR))
        (root / "gone.bin").unlink()
        repo.commit(root / "gone.bin", options=CommitOptions(author=AUTHOR))
        repo.commit(moved(state, 9), options=CommitOptions(author=AUTHOR))


def codings(root: Path) -> None:
    """Every stage, bridge, shape and kind of record, and every dtype."""
    mvc.store.writing.full_or_delta.WORTH = 2.0  # a delta even where it saves nothing
    pipelines = (
        "lossless",
        "vsol",
        "none",
        "xor | elide | planes | zstd:3",
        "sub | planes",
        "sub | zigzag | zstd:1",
        "xor | raw",
        "sub | elide",
        "sub | zigzag | planes:all | zstd:1",
        "sub | planes:all",
    )
    with Repository.init(root, clock=Ticking()) as repo:
        state = model(1)
        for i, pipeline in enumerate(pipelines):
            name = f"p{i}.safetensors"
            for step in range(2):
                state = moved(state, 10 * i + step)
                options = CommitOptions(author=AUTHOR, reset_point=not step)
                repo.commit(state, path=name, pipeline=pipeline, options=options)
        repo.commit(every_dtype(1), path="dtypes.safetensors", options=CommitOptions(author=AUTHOR))
        repo.commit(every_dtype(2), path="dtypes.safetensors", options=CommitOptions(author=AUTHOR))
        masters = {"w": torch.from_numpy(model(2)["w"]), "d": torch.rand(9, 9).double()}
        masters["w"][0, :4] = torch.tensor([float("nan"), float("inf"), 1e-40, -0.0])
        copies = {
            "bf16": masters["w"].bfloat16(), "f16": masters["w"].half(), "f32": masters["d"].float()
        }  # fmt: skip
        repo.commit(
            masters | copies, path="casts.safetensors", options=CommitOptions(author=AUTHOR)
        )
        table = model(3)["w"]
        for rows in (table, np.concatenate([table, table[:5] * 2]), table[:7], table[:0]):
            repo.commit({"e": rows}, path="table.safetensors", options=CommitOptions(author=AUTHOR))
        sparse = np.zeros(4000, np.float32)
        sparse[::400] = 1.5
        odd = {"sparse": sparse, "ones": np.ones(700), "odd": np.arange(33, dtype=np.uint8)}
        repo.commit(odd, path="shapes.safetensors", options=CommitOptions(author=AUTHOR))
        sparse = sparse.copy()
        sparse[7] = 2
        repo.commit(
            odd | {"sparse": sparse},
            path="shapes.safetensors",
            options=CommitOptions(author=AUTHOR),
        )


def files(root: Path) -> None:
    """Model files of every format, views and CRCs, files that no parser knows; patches."""
    with Repository.init(root, clock=Ticking()) as repo:
        random = np.random.default_rng(4)
        text = b"".join(b"%d: a line of a log\n" % i for i in range(300))
        for step in range(3):
            storage = torch.from_numpy(model(5, (20, 20))["w"]).flatten() * (1 + step * 1e-4)
            state = {
                "w": storage[:300].reshape(15, 20).clone(),
                "view": storage[40:240].reshape(10, 20).t(),
                "tied": (tied := storage[:32].clone()),
                "tied too": tied,
                "nested": {"step": step, "lr": 1e-3, "empty": torch.zeros(0, 5)},
            }
            torch.save(state, root / "ckpt.pt")
            np.savez(root / "m.npz", w=storage.numpy()[:60], n=np.arange(step + 1))
            np.save(root / "a.npy", storage.numpy()[:50].reshape(5, 10))
            (root / "deep").mkdir(exist_ok=True)
            arrays = {"w": storage.numpy()[:64].reshape(8, 8), "s": np.array(step)}
            save_file(arrays, root / "deep/model.safetensors", {"format": "pt"})
            (root / "log").write_bytes(text[: 2000 + 700 * step])
            (root / "ä b.bin").write_bytes(random.bytes(40 * step + 40))
            repo.commit(
                root, message=f"step {step}", options=CommitOptions(author=AUTHOR), deploy="prod"
            )


def _series(root: Path, *, packs: int = 0) -> None:
    """Five versions of a chain; a reset point in the third closes it from the other side."""
    if packs:
        mvc.store.writing.pack_writer.PACK_TARGET = packs
    with Repository.init(root, clock=Ticking()) as repo:
        state = model(6)
        for step in range(5):
            state = moved(state, step)
            repo.commit(
                state, deploy="prod", options=CommitOptions(author=AUTHOR, reset_point=step == 2)
            )


def indexed(root: Path) -> None:
    """With the index of the time, and operations that are not in it yet."""
    _series(root)
    with Repository.open(root, clock=Ticking()) as repo:
        repo.handle.store.snapshot.index_tail(force=True)
        repo.tag("behind", "HEAD~1")


def _journal(root: Path) -> tuple[bytearray, list[tuple[int, int]]]:
    """The journal and where each entry's first copy begins and ends."""
    data = bytearray((root / ".mvc/journal").read_bytes())
    spans, at = [], 0
    while at < len(data):
        length = 48 + int.from_bytes(data[at + 4 : at + 8], "little")
        spans.append((at, at + length))
        at += 2 * length
    return data, spans


def _cut(root: Path, at: int) -> None:
    journal = root / ".mvc/journal"
    journal.write_bytes(journal.read_bytes()[:at])
    (root / ".mvc/witness").unlink()  # nobody was told that the operation happened


def torn_first_copy(root: Path) -> None:
    """The last entry was cut off in its first copy: it has not happened."""
    _series(root)
    start, end = _journal(root)[1][-1]
    _cut(root, (start + end) // 2)


def torn_second_copy(root: Path) -> None:
    """The last entry was cut off in its second copy: it counts."""
    _series(root)
    start, end = _journal(root)[1][-1]
    _cut(root, end + (end - start) // 2)


def _flip_journal(root: Path, *copies: int) -> None:
    data, spans = _journal(root)
    for number, copy in zip((1, 3), copies, strict=False):
        start, end = spans[number]
        data[start + copy * (end - start) + 60] ^= 4
    (root / ".mvc/journal").write_bytes(data)


def one_copy(root: Path) -> None:
    """Of two entries one copy each is damaged, once the first and once the second."""
    _series(root)
    _flip_journal(root, 0, 1)


def both_copies(root: Path) -> None:
    """An entry in the middle is damaged in both copies: nothing may be answered."""
    _series(root)
    data, spans = _journal(root)
    start, end = spans[2]
    data[start + 60] ^= 4
    data[end + 61] ^= 4
    (root / ".mvc/journal").write_bytes(data)


def _flip_payload(root: Path, rev: str, *, base: bool) -> None:
    """A bit of the payload of ``w`` in a version: its delta, or its full record."""
    with Repository.open(root) as repo:
        content = max(repo.manifest(rev).entries[0].contents, key=lambda c: c.spec.nbytes)
        steps = repo.handle.store.graph.codings(content.id)
        step = next(s for s in steps if bool(s.member.base) == base)
    path = root / f".mvc/packs/{step.pack:08d}.pack"
    data = bytearray(path.read_bytes())
    data[step.offset + step.header.body_at + step.member.at + step.member.stored // 2] ^= 16
    path.write_bytes(data)


def payload_second_path(root: Path) -> None:
    """The first full record is damaged; the chain is walked from the reset point."""
    _series(root)
    _flip_payload(root, "HEAD~4", base=False)


def payload_lost(root: Path) -> None:
    """A delta behind the reset point is damaged: the two newest versions hang on it."""
    _series(root)
    _flip_payload(root, "HEAD~1", base=True)


def record_header(root: Path) -> None:
    """The header of a record in the middle is damaged."""
    _series(root)
    with Repository.open(root) as repo:
        regions = [
            r.entry.regions[0] for r in repo.handle.store.snapshot.entries() if r.entry.regions
        ]
    path = root / ".mvc/packs/00000001.pack"
    data = bytearray(path.read_bytes())
    data[regions[1].start + 30] ^= 1
    path.write_bytes(data)


def missing_pack(root: Path) -> None:
    """One of several packs is gone."""
    _series(root, packs=600)
    packs = sorted((root / ".mvc/packs").iterdir())
    assert len(packs) >= 4
    packs[-2].unlink()


def damaged_format(root: Path) -> None:
    _series(root)
    data = bytearray((root / ".mvc/format").read_bytes())
    data[3] ^= 1
    (root / ".mvc/format").write_bytes(data)


def newer_format(root: Path) -> None:
    """A feature that nobody knows yet."""
    _series(root)
    text = "mvc 1 features=holograms"
    line = f"{text} check={blake3(text.encode()).hexdigest(8)}\n"
    (root / ".mvc/format").write_text(line)


def cut_journal(root: Path) -> None:
    """The last two operations are missing, but the witness knows of them."""
    _series(root)
    journal = root / ".mvc/journal"
    journal.write_bytes(journal.read_bytes()[: _journal(root)[1][-2][0]])
