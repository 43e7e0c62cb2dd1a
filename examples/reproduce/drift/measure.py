"""A pipeline's figures on one recorded training, measured once and kept as JSON.

A pipeline is replayed over the stream as in section 4.2.3 of the thesis: every online batch is
offered, processed, committed and durable before the next one; afterwards every version is read
back and compared with what was deployed.

Weights after training batch t are scored (section 4.3.1) on batch t + 1, which they have not
seen (prequential accuracy), and on the last batch, where the drift has gone furthest (drift
target accuracy).
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from blake3 import blake3
from numpy.typing import NDArray

from mvc import Repository
from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.lossy.production import Production
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS

from ..workspace import Progress, Workspace, bytes_in
from .stream import Sample, Stream
from .thesis import Configuration

__all__ = [
    *("Accuracies", "Figures", "Replayed", "Scorer", "curve_difference", "decode_chain"),
    *("digest_of", "encode_chain", "learning", "lossless", "measured", "normalised"),
    *("plain_seconds", "replay"),
]

State = Mapping[str, NDArray[Any]]
_Saved = tuple[CommitId, bytes]

Figures = Mapping[str, Any]
"""One pipeline on one stream. Sizes in bytes, times in seconds.

``versions`` of the stream, of which ``saved`` were stored, ``reset_points`` among them. ``folder``
is the size of ``.mvc``, and ``bytes`` parts it. ``accuracy`` is the mean prequential accuracy of
the production weights, ``target`` that on the last batch; ``lossless`` and ``lossless_target`` are
those of the training weights, on the same batches: differences are paired. ``next`` and ``last``
are the curves.
"""

_CONFIG = """\
store:
  layout: chain:{}
  max_chain: 1000  # times the full size: only the interval ends a chain
python:
  keep_base: 64GB
"""


def measured(stream: Stream, configuration: Configuration, place: Workspace) -> Figures:
    """The figures of a pipeline; measured if they are not known yet."""
    text = expanded(configuration.pipeline)
    key = hashlib.sha256(f"{text}\0{configuration.interval}".encode()).hexdigest()[:12]
    name = f"{stream.experiment.name}/{key}"

    def measure() -> Figures:
        with place.empty(name) as folder:
            replayed = replay(
                stream, Configuration(text, configuration.interval), folder, place.progress
            )
        own = lossless(stream, place)
        accuracies = replayed.accuracies or own
        return {
            "pipeline": text,
            "interval": configuration.interval,
            "versions": len(stream.versions),
            **{each: getattr(replayed, each) for each in ("saved", "reset_points")},
            **{each: getattr(replayed, each) for each in ("folder", "bytes")},
            **_seconds("save", replayed.save),
            **_seconds("load", replayed.load),
            **_seconds("learn", learning(stream)),
            "accuracy": accuracies.prequential,
            "target": accuracies.target,
            "lossless": own.prequential,
            "lossless_target": own.target,
            **asdict(accuracies),
        }

    return place.once(name, measure)


def _seconds(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: statistics.fmean(values), f"{name}_max": max(values)}


def learning(stream: Stream) -> list[float]:
    """How long each online step took."""
    return [version.seconds for version in stream.versions if version.number]


def lossless(stream: Stream, place: Workspace) -> Accuracies:
    """Accuracies of the training weights, which every lossless pipeline gives back."""

    def score() -> Mapping[str, Any]:
        scorer = Scorer(stream)
        for version, state in stream.states():
            if version.number:
                scorer.add(state)
            place.progress("accuracy", version.number + 1, len(stream.versions))
        return asdict(scorer.result())

    known = place.once(f"{stream.experiment.name}/lossless", score)
    return Accuracies(tuple(known["next"]), tuple(known["last"]))


def plain_seconds(stream: Stream, deltas: int, place: Workspace) -> float:
    """Seconds to decode so many deltas one after the other in plain numpy; best of three."""

    def measure() -> Mapping[str, float]:
        versions = stream.versions[: deltas + 1]
        coded, newest = encode_chain(stream.state(version) for version in versions)
        return {"seconds": min(_seconds_to_decode(coded, newest) for _ in range(3))}

    return float(place.once(f"{stream.experiment.name}/plain-{deltas}", measure)["seconds"])


def _seconds_to_decode(coded: Sequence[bytes], newest: NDArray[np.uint32]) -> float:
    begun = time.perf_counter()
    words = decode_chain(coded, len(newest))
    seconds = time.perf_counter() - begun
    if not np.array_equal(words, newest):
        raise DamagedData("the plain chain does not give back what went in")
    return seconds


def expanded(text: str) -> str:
    """A preset's pipeline, so that the same pipeline is measured once under all its names."""
    return PRESETS.get(text) or Pipeline.parse(text).text


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


def replay(
    stream: Stream,
    configuration: Configuration,
    folder: Path,
    progress: Progress = lambda *_: None,
    *,
    digest: Callable[[State], bytes] | None = None,
    judge: type[Scorer] | None = None,
) -> Replayed:
    """Stores the stream in a new repository in ``folder`` and reads all of it back.

    Raises DamagedData if a single bit of a version is not as it was deployed, by ``digest`` (by
    default ``digest_of``). Accuracies are None for a lossless pipeline: they are those of the
    training weights. ``judge`` scores and answers decisions in place of ``Scorer``.
    """
    pipeline, digest = Pipeline.parse(configuration.pipeline), digest or digest_of
    scorer = (judge or Scorer)(stream) if pipeline.lossy or pipeline.decisions else None
    Repository.init(folder).close()
    (folder / ".mvc/config.yaml").write_text(_CONFIG.format(configuration.interval))
    with Repository.open(folder, discover=False) as repo:
        saved, live, seconds = _save(stream, pipeline, repo, scorer, (progress, digest))
        stats = repo.storage.stats()
    size = bytes_in(folder / ".mvc")
    with Repository.open(folder, discover=False) as repo:
        loads = _load(repo, saved, progress, digest)
    return Replayed(
        len(saved),
        stats.reset_points,
        size,
        dict(stats.bytes),
        save=tuple(seconds),
        load=tuple(loads[version] for version in live),
        accuracies=None if scorer is None else scorer.result(),
    )


def _save(
    stream: Stream,
    pipeline: Pipeline,
    repo: Repository,
    scorer: Scorer | None,
    watch: tuple[Progress, Callable[[State], bytes]],
) -> tuple[list[_Saved], list[int], list[float]]:
    """Versions; which of them was live after each batch; seconds of each batch."""
    progress, digest = watch
    engine = Production(pipeline, evaluate=None if scorer is None else scorer.accuracy)
    coding = pipeline.coding().text
    saved: list[_Saved] = []
    live, seconds = [], []
    for version in stream.versions:
        state = stream.state(version)  # nothing is read ahead beside what is timed
        data = stream.data(version)
        begun = time.perf_counter()
        decision = engine.offer(state, loss=version.loss, data=data)
        commit = repo.commit(decision.production, pipeline=coding) if decision.saved else None
        spent = time.perf_counter() - begun
        if commit is not None:
            saved.append((commit.id, digest(decision.production)))
        if version.number:
            seconds.append(spent)
            live.append(len(saved) - 1)
            if scorer is not None:
                scorer.add(decision.production)
        progress("saving", version.number + 1, len(stream.versions))
    return saved, live, seconds


def _load(
    repo: Repository, saved: list[_Saved], progress: Progress, digest: Callable[[State], bytes]
) -> list[float]:
    """Seconds to read each version, one by one, each compared with what was deployed."""
    seconds = []
    for number, (commit, expected) in enumerate(saved):
        begun = time.perf_counter()
        state = repo.checkout(commit)
        seconds.append(time.perf_counter() - begun)
        if digest(state) != expected:
            raise DamagedData(f"version {number} ({commit.short}) is not what was deployed")
        progress("reading", number + 1, len(saved))
    return seconds


def digest_of(state: State) -> bytes:
    """Depends on names, types, shapes and bits."""
    hasher = blake3()
    for name, array in sorted(state.items()):
        hasher.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        hasher.update(array.tobytes())
    return hasher.digest()


@dataclass(frozen=True)
class Accuracies:
    """Shares of right answers after each trained batch: on the next batch, on the last one."""

    next: tuple[float, ...]
    last: tuple[float, ...]

    @property
    def prequential(self) -> float:
        """The mean over batches of the accuracy on the next one."""
        return statistics.fmean(self.next)

    @property
    def target(self) -> float:
        """The mean over batches of the accuracy on the last one."""
        return statistics.fmean(self.last)


class Scorer:
    """Asks weights about the batches of one stream. Keeps one network for it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._model = stream.experiment.recipe.build(stream.experiment.data)
        self._next: list[float] = []
        self._last: list[float] = []
        self._added: State | None = None
        self._final = stream.batch(stream.experiment.plan.batches - 1)

    def accuracy(self, state: State, sample: Sample) -> float:
        """The share of a batch that the weights have right."""
        return float(self.right(state, sample).mean())

    def right(self, state: State, sample: Sample) -> NDArray[np.bool_]:
        """Which samples of a batch the weights have right."""
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        self._model.load_state_dict(tensors, assign=True)  # no copy: nothing trains here
        return self._right(sample)

    def add(self, state: State) -> None:
        """The weights that are live after the next training batch."""
        following = self._stream.batch(len(self._next) + 1)
        self._next.append(self.accuracy(state, following))
        if state is self._added:  # a skipped save: the same weights are still live
            self._last.append(self._last[-1])
        else:
            self._last.append(float(self._right(self._final).mean()))
        self._added = state

    @torch.no_grad()
    def _right(self, sample: Sample) -> NDArray[np.bool_]:
        inputs, labels = sample
        self._model.eval()  # dropout off
        return np.asarray(self._model(inputs).argmax(1) == labels)

    def result(self) -> Accuracies:
        """For everything added so far."""
        return Accuracies(tuple(self._next), tuple(self._last))


def normalised(curve: Sequence[float]) -> NDArray[np.float64]:
    """A curve between 0 at its lowest and 1 at its highest point; a flat one is all 0."""
    values = np.asarray(curve, np.float64)
    low, high = values.min(), values.max()
    return np.zeros_like(values) if high == low else (values - low) / (high - low)


def curve_difference(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """How far curves of two networks are apart: NLAccDiff of section 4.1.3.

    The mean absolute difference of the normalised curves, batch by batch, over every pair of
    one of ``ones`` and one of ``others``. All have equally many points.
    """
    pairs = [np.abs(normalised(one) - normalised(other)).mean() for one in ones for other in others]
    return float(np.mean(pairs))


def encode_chain(states: Iterable[State]) -> tuple[list[bytes], NDArray[np.uint32]]:
    """A first version and the deltas after it as ``xor | planes | zstd:1``; the newest's words.

    ``states`` are float32 tensors by name, in order.
    """
    packer = zstandard.ZstdCompressor(level=1)
    coded: list[bytes] = []
    newest = np.zeros(1, np.uint32)
    for state in states:
        words = np.concatenate([a.reshape(-1).view(np.uint32) for a in state.values()])
        planes = (words ^ newest).view(np.uint8).reshape(-1, 4).T
        coded.append(packer.compress(np.ascontiguousarray(planes).tobytes()))
        newest = words
    return coded, newest


def decode_chain(coded: Sequence[bytes], count: int) -> NDArray[np.uint32]:
    """The newest version's words, ``count`` of them, decoded from the first in plain numpy."""
    unpacker = zstandard.ZstdDecompressor()
    words = np.zeros(count, np.uint32)
    for delta in coded:
        planes = np.frombuffer(unpacker.decompress(delta), np.uint8).reshape(4, -1)
        words ^= np.ascontiguousarray(planes.T).view(np.uint32).reshape(-1)
    return words
