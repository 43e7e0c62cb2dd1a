"""Stories of values: ten versions of a few tensors, and what must come back of each."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mvc
from mvc.adapters.python.arrays import has_dtype
from mvc.errors import WrongUsage
from mvc.pipelines.pipeline import Pipeline
from mvc.testing import fresh_process, open_quietly
from tests.values.extremes import NAMES, Words, first, later, near_ends, zero

__all__ = ["STEPS", "Story", "bits", "stored_bytes"]

STEPS = 10
_SIZES = (0, 1, 2, 7, 64, 300, 1000, 1000, 5000)
_LAYOUTS = ("chain", "skip:2", "skip:4", "skip:16")
_PLACES = (
    ("model", "fc.weight"), ("model", "fc.bias"), ("model", "norm.running_var"),
    ("optimizer", "exp_avg"), ("optimizer", "exp_avg_sq"), ("optimizer", "momentum_buffer"),
)  # fmt: skip
"""Weights, a statistic and moments: an approximating pipeline treats each in another way."""

State = dict[str, dict[str, Any]]
Place = tuple[str, str]
Bits = dict[Place, tuple[str, tuple[int, ...], bytes]]
"""Of a version by place: dtype, shape and bytes."""


class Story:
    """Commits of one pipeline, and what came back; ``kept`` has the bits of each version."""

    def __init__(self, root: Path, line: str, draw: random.Random) -> None:
        self.root, self.draw, self.line = root, draw, line
        self.pipeline = Pipeline.parse(line)
        self.lossy = bool(self.pipeline.lossy) or self.pipeline.forward_only
        self.kept: dict[str, Bits] = {}
        self.refused = 0
        self.library = draw.choice(("torch", "torch", "numpy"))
        names = [n for n in NAMES if self.library == "torch" or has_dtype(n)]
        if self.lossy and draw.random() < 0.8:
            names = [n for n in names if n in {"float64", "float32", "float16", "bfloat16"}]
        if draw.random() < 0.5:
            names = [draw.choice(names)]
        self.words: dict[Place, tuple[str, Words]] = {}
        for place in draw.sample(_PLACES, draw.randrange(2, 6)):
            dtype = draw.choice(names)
            self.words[place] = dtype, first(dtype, draw.choice(_SIZES), draw)

    def tell(self, steps: int = STEPS) -> None:
        """Commits ``steps`` versions, some of them after opening the repository again."""
        settings = {
            "store": {
                "layout": self.draw.choice(_LAYOUTS),
                "reset_interval": self.draw.choice((2, 4, 100)),
            },
            "python": {"keep_base": self.draw.choice(("auto", "none"))},
        }
        mvc.Repository.init(self.root).close()
        (self.root / ".mvc/config.yaml").write_text(json.dumps(settings))
        left = steps
        while left:
            with open_quietly(self.root) as repo:
                for _ in range(min(left, self.draw.choice((1, 4, 10)))):
                    self._step(repo)
                    left -= 1
                    self._change()

    def _change(self) -> None:
        together = self.draw.choice((None, None, None, zero, near_ends))
        for place, (dtype, words) in self.words.items():
            if together is not None and dtype != "bool":
                self.words[place] = dtype, together(words, dtype, self.draw)
            elif self.draw.random() < 0.05:
                self.words[place] = dtype, first(dtype, self.draw.choice(_SIZES), self.draw)
            else:
                self.words[place] = dtype, later(words, dtype, self.draw)

    def _step(self, repo: mvc.Repository) -> None:
        state: State = {}
        for (part, name), (dtype, words) in self.words.items():
            state.setdefault(part, {})[name] = _tensor(dtype, words, self.library)
        loss = self.draw.choice((0.0, 0.1, 0.7, 1e30, float("inf"), float("nan")))
        line = self.line
        if self.pipeline.decisions:
            assert not self._commit(repo, state, line, loss, "decides whether to save a version")
            gone = {stage.text for stage in self.pipeline.decisions}
            words = (word.strip() for word in self.pipeline.text.split("|"))
            line = " | ".join(word for word in words if word not in gone)
        if "loss=" in line and self.draw.random() < 0.1:
            self._commit(repo, state, line, None, "needs the loss")
        assert self._commit(repo, state, line, loss)

    def _commit(
        self, repo: mvc.Repository, state: State, line: str, loss: float | None, cause: str = ""
    ) -> bool:
        """Whether it was committed. If ``cause`` is why not, the repository is as it was."""
        before = stored_bytes(self.root) if cause else {}
        metrics = {} if loss is None else {"loss": loss}
        options = mvc.CommitOptions(allow_empty=True)
        try:
            done = repo.commit(state, pipeline=line, metrics=metrics, options=options)
        except WrongUsage as error:
            assert cause and cause in error.message, error
            assert stored_bytes(self.root) == before
            self.refused += 1
            return False
        given = bits(state)
        assert not self.lossy or _alike(given, bits(done.state))
        self.kept[str(done.id)] = bits(done.state) if self.lossy else given
        return True

    def check(self, *, whole: bool = False) -> None:
        """Reads every version in a process that knows nothing of them; ``whole``: also fsck."""
        fresh_process()
        with open_quietly(self.root) as repo:
            for id_, expected in self.kept.items():
                found = bits(repo.checkout(id_))
                assert found == expected, (self.line, id_)
            if whole:
                assert repo.storage.fsck(full=True).sound, self.line

    def end(self) -> None:
        """Deletes the repository."""
        shutil.rmtree(self.root)


def bits(state: State) -> Bits:
    """Every tensor of a state as dtype, shape and bytes."""
    found: Bits = {}
    for part, tensors in state.items():
        for name, value in tensors.items():
            if isinstance(value, np.ndarray):
                found[part, name] = str(value.dtype), value.shape, value.tobytes()
            else:
                raw = value.reshape(-1).view(torch.uint8).numpy().tobytes()
                found[part, name] = str(value.dtype), tuple(value.shape), raw
    return found


def _tensor(dtype: str, words: Words, library: str) -> Any:
    data = bytearray(words.tobytes())
    if library == "numpy":
        kind = np.dtype("?" if dtype == "bool" else dtype)
        return np.frombuffer(data, kind) if data else np.empty(0, kind)
    kind = getattr(torch, dtype)
    return (
        torch.frombuffer(data, dtype=torch.uint8).view(kind) if data else torch.empty(0, dtype=kind)
    )


def _alike(given: Bits, made: Bits) -> bool:
    """Whether production weights have the dtypes and shapes of the training's, integers as is."""
    floats = ("float64", "float32", "float16", "bfloat16")
    return given.keys() == made.keys() and all(
        made[place][:2] == given[place][:2]
        and (given[place][0].removeprefix("torch.") in floats or made[place] == given[place])
        for place in given
    )


def stored_bytes(root: Path) -> dict[str, bytes]:
    """Journal and packs, byte for byte."""
    folder = root / ".mvc"
    return {
        path.name: path.read_bytes() for path in (folder / "journal", *(folder / "packs").iterdir())
    }
