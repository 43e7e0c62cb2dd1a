"""One pipeline over a recorded stream, committed to a repository on disk.

Every online batch is offered, processed, committed and durable before the next one, as in
section 4.2.3 of the thesis; afterwards every version is read back and compared with what was
deployed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from numpy.typing import NDArray

from mvc.api import Repository
from mvc.codecs.pipeline import Pipeline
from mvc.errors import DamagedData
from mvc.evaluation.common.folders import bytes_in
from mvc.evaluation.drift.names import Configuration
from mvc.evaluation.drift.scoring import Accuracies, Scorer
from mvc.evaluation.drift.stream import Stream, Tell
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.repo.config import load_config
from mvc.training.lossy.production import Production

__all__ = ["Replayed", "replay"]

State = Mapping[str, NDArray[Any]]

_LONGEST_CHAIN = "1000"  # times the full size: only the interval ends a chain


@dataclass(frozen=True)
class Replayed:
    """What came of it. Seconds and accuracies are one for each trained batch, in order.

    ``saved`` counts versions, the offline one included. ``folder`` is the size of ``.mvc``;
    ``bytes`` parts it: ``full`` records, ``delta`` records, ``metadata``, ``journal``,
    ``index``. ``load`` is the version that was live after the batch, read from disk.
    """

    saved: int
    reset_points: int
    folder: int
    bytes: Mapping[str, int]
    save: tuple[float, ...]
    load: tuple[float, ...]
    accuracies: Accuracies | None


@dataclass(frozen=True)
class _Saved:
    commit: CommitId
    digest: bytes


def replay(
    stream: Stream,
    configuration: Configuration,
    folder: Path,
    fs: FileSystem,
    tell: Tell | None = None,
) -> Replayed:
    """Stores the stream in a new repository in ``folder`` and reads all of it back.

    Raises DamagedData if a single bit of a version is not as it was deployed. Accuracies are
    None for a lossless pipeline: they are those of the training weights.
    """
    pipeline = Pipeline.parse(configuration.pipeline)
    tell = tell or (lambda *_: None)
    scorer = Scorer(stream) if pipeline.lossy or pipeline.decisions else None
    with _open(folder, fs, configuration.interval) as repo:
        saved, live, seconds = _save(stream, pipeline, repo, scorer, tell)
        stats = repo.stats()
    size = bytes_in(fs, folder / ".mvc")
    with _open(folder, fs, configuration.interval) as repo:
        loads = _load(repo, saved, tell)
    return Replayed(
        len(saved),
        stats.reset_points,
        size,
        dict(stats.bytes),
        tuple(seconds),
        tuple(loads[version] for version in live),
        None if scorer is None else scorer.result(),
    )


def _save(
    stream: Stream, pipeline: Pipeline, repo: Repository, scorer: Scorer | None, tell: Tell
) -> tuple[list[_Saved], list[int], list[float]]:
    """The versions; which of them was live after each batch; seconds of each batch."""
    engine = Production(pipeline, evaluate=None if scorer is None else scorer.accuracy)
    coding = pipeline.coding().text
    saved: list[_Saved] = []
    live, seconds = [], []
    for version in stream.versions:
        state = stream.state(version)  # nothing is read ahead beside what is timed
        data = stream.data(version)
        begun = time.perf_counter()
        decision = engine.offer(state, loss=version.loss, data=data)
        if decision.saved:
            made = repo.commit(decision.production, pipeline=coding)
        spent = time.perf_counter() - begun
        if decision.saved:
            saved.append(_Saved(made.id, _digest(decision.production)))
        if version.number:
            seconds.append(spent)
            live.append(len(saved) - 1)
            if scorer is not None:
                scorer.add(decision.production)
        tell("saving", version.number + 1, len(stream.versions))
    return saved, live, seconds


def _load(repo: Repository, saved: list[_Saved], tell: Tell) -> list[float]:
    """Seconds to read each version, one by one, each compared with what was deployed."""
    seconds = []
    for number, version in enumerate(saved):
        begun = time.perf_counter()
        state = repo.checkout(version.commit)
        seconds.append(time.perf_counter() - begun)
        if _digest(state) != version.digest:
            raise DamagedData(f"version {number} ({version.commit.short}) is not what was deployed")
        tell("reading", number + 1, len(saved))
    return seconds


def _digest(state: State) -> bytes:
    hasher = blake3()
    for name, array in sorted(state.items()):
        hasher.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        hasher.update(array.tobytes())
    return hasher.digest()


def _open(folder: Path, fs: FileSystem, interval: int) -> Repository:
    flags = {
        "store.layout": f"chain:{interval}",
        "store.max_chain": _LONGEST_CHAIN,
        "python.keep_base": "true",
    }
    if fs.stat(folder / ".mvc") is None:
        Repository.init(folder).close()
    return Repository.open(
        folder, discover=False, config=lambda file: load_config(fs, file, None, {}, flags)
    )
