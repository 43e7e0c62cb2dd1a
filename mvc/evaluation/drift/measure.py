"""A pipeline's figures on one recorded training, measured once and cached as JSON."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from mvc.codecs.pipeline import PRESETS, Pipeline
from mvc.errors import BadModelFile, DamagedData
from mvc.evaluation.common.folders import remove
from mvc.evaluation.drift.names import Configuration
from mvc.evaluation.drift.replay import replay
from mvc.evaluation.drift.scoring import Accuracies, Scorer
from mvc.evaluation.drift.stream import Stream, Tell
from mvc.io.files import FileSystem
from mvc.limits import MIB

__all__ = ["Measured", "PlainChain", "Results"]

Words = NDArray[np.uint32]


class PlainChain:
    """A first version and the deltas to those after it, as ``xor | planes | zstd:1`` codes them."""

    def __init__(self, states: Iterable[Mapping[str, NDArray[Any]]]) -> None:
        """``states`` are float32 tensors by name, in order."""
        packer = zstandard.ZstdCompressor(level=1)
        last: Words | None = None
        self._coded: list[bytes] = []
        for state in states:
            words = np.concatenate([a.reshape(-1).view(np.uint32) for a in state.values()])
            delta = words if last is None else words ^ last
            planes = delta.view(np.uint8).reshape(-1, 4).T
            self._coded.append(packer.compress(np.ascontiguousarray(planes).tobytes()))
            last = words
        assert last is not None
        self._newest = last

    @property
    def deltas(self) -> int:
        """How many deltas lie between the first version and the newest."""
        return len(self._coded) - 1

    def seconds(self) -> float:
        """Seconds to decode the newest version from the first; DamagedData if its bits differ."""
        begun = time.perf_counter()
        unpacker = zstandard.ZstdDecompressor()
        words = np.zeros(len(self._newest), np.uint32)
        for coded in self._coded:
            planes = np.frombuffer(unpacker.decompress(coded), np.uint8).reshape(4, -1)
            words ^= np.ascontiguousarray(planes.T).view(np.uint32).reshape(-1)
        seconds = time.perf_counter() - begun
        if not np.array_equal(words, self._newest):
            raise DamagedData("the plain chain does not give back what went in")
        return seconds


_MAX_RESULT = 16 * MIB


@dataclass(frozen=True)
class Measured:
    """Figures of one pipeline on one stream. Sizes in bytes, times in seconds.

    ``raw`` are the weights of all saved versions as they are in memory. ``accuracy`` is the
    mean prequential accuracy of the production weights, ``target`` that on the last batch;
    ``lossless`` and ``lossless_target`` are those of the training weights, on the same
    batches: differences are paired. ``next`` and ``last`` are the curves.
    """

    pipeline: str
    interval: int
    versions: int
    saved: int
    reset_points: int
    folder: int
    bytes: Mapping[str, int]
    save: float
    save_max: float
    load: float
    load_max: float
    learn: float
    learn_max: float
    accuracy: float
    target: float
    lossless: float
    lossless_target: float
    next: tuple[float, ...]
    last: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Accuracy against the lossless run, in percentage points."""
        return 100 * (self.accuracy - self.lossless)

    @property
    def other_bytes(self) -> int:
        """What is stored beside weights: manifests, headers of records, journal, index."""
        return self.folder - self.bytes["delta"] - self.bytes["full"]


class Results:
    """What has been measured on one stream, in a folder of JSON files."""

    def __init__(self, stream: Stream, folder: Path, fs: FileSystem) -> None:
        self.stream = stream
        self._fs = fs
        self._folder = folder / stream.experiment.name
        fs.make_dirs(self._folder)

    def measured(self, configuration: Configuration, tell: Tell | None = None) -> Measured:
        """The figures of a pipeline; measured if they are not known yet."""
        text, interval = _expanded(configuration.pipeline), configuration.interval
        digest = hashlib.sha256(f"{text}\0{interval}".encode()).hexdigest()[:12]
        file = self._folder / f"{digest}.json"
        with self._fs.lock(self._folder / f"{digest}.lock"):  # nobody measures it beside this
            return self._measured(text, interval, file, tell)

    def _measured(self, text: str, interval: int, file: Path, tell: Tell | None) -> Measured:
        known = self._read(file)
        if known is not None:
            return Measured(**known | {key: tuple(known[key]) for key in ("next", "last")})
        lossless = self.lossless(tell)
        folder = file.with_suffix(".repository")
        remove(self._fs, folder)
        self._fs.make_dir(folder)
        try:
            made = replay(self.stream, Configuration(text, interval), folder, self._fs, tell)
        finally:
            remove(self._fs, folder)
        accuracies = made.accuracies or lossless
        learning = [v.seconds for v in self.stream.versions if v.number]
        measured = Measured(
            pipeline=text,
            interval=interval,
            versions=len(self.stream.versions),
            saved=made.saved,
            reset_points=made.reset_points,
            folder=made.folder,
            bytes=made.bytes,
            save=statistics.fmean(made.save),
            save_max=max(made.save),
            load=statistics.fmean(made.load),
            load_max=max(made.load),
            learn=statistics.fmean(learning),
            learn_max=max(learning),
            accuracy=accuracies.prequential,
            target=accuracies.target,
            lossless=lossless.prequential,
            lossless_target=lossless.target,
            next=accuracies.next,
            last=accuracies.last,
        )
        self._write(file, asdict(measured))
        return measured

    def lossless(self, tell: Tell | None = None) -> Accuracies:
        """Accuracies of the training weights, which every lossless pipeline gives back."""
        file = self._folder / "lossless.json"
        known = self._read(file)
        if known is None:
            scorer = Scorer(self.stream)
            for version, state in self.stream.states():
                if version.number:
                    scorer.add(state)
                if tell is not None:
                    tell("accuracy", version.number + 1, len(self.stream.versions))
            known = asdict(scorer.result())
            self._write(file, known)
        return Accuracies(tuple(known["next"]), tuple(known["last"]))

    def plain_seconds(self, deltas: int) -> float:
        """Seconds to decode so many deltas one after the other in plain numpy; best of three."""
        file = self._folder / f"plain-{deltas}.json"
        known = self._read(file)
        if known is None:
            versions = self.stream.versions[: deltas + 1]
            chain = PlainChain(self.stream.state(version) for version in versions)
            known = {"seconds": min(chain.seconds() for _ in range(3))}
            self._write(file, known)
        return float(known["seconds"])

    def _read(self, file: Path) -> dict[str, Any] | None:
        if self._fs.stat(file) is None:
            return None
        try:
            known: dict[str, Any] = json.loads(self._fs.read_bytes(file, _MAX_RESULT))
        except ValueError:
            raise BadModelFile(f"{file} is no result", hint="delete it: it is made again") from None
        return known

    def _write(self, file: Path, values: Mapping[str, Any]) -> None:
        self._fs.write_atomic(file, json.dumps(values, indent=1).encode())


def _expanded(text: str) -> str:
    """A preset's pipeline, so that the same pipeline is measured once under all its names."""
    return PRESETS.get(text) or Pipeline.parse(text).text
