"""Runs of versions in which an optimizer's step predicts what comes next, put together by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mvc import limits
from mvc.codecs.compressors import FAST
from mvc.codecs.optim import Prediction
from mvc.codecs.payload import pack_chunks
from mvc.codecs.streams import encode_stream
from mvc.pipelines.pipeline import Pipeline
from mvc.store.format import format_line
from tests.hostile.forged import DELTA, Forger, Piece, full, raw_id

FIRST = "optim:decay.1:float32:0.9"
SECOND = "optim:square.1:float32:0.999,0.001,0.1"
STEP = "optim:adam.1:float32:1.0,0.001,0.5,1e-08"


def predicted(text: str, new: bytes, base: bytes, inputs: Sequence[bytes] = ()) -> bytes:
    """The payload of a piece that an optimizer's step predicts."""
    prediction, pipeline = Prediction.parse(text), Pipeline.parse(DELTA)
    expected, views = bytearray(base), [memoryview(each) for each in inputs]
    signs = prediction.fill(memoryview(base), views, memoryview(expected), new=memoryview(new))
    chunks = []
    for start in range(0, len(new), limits.CHUNK):
        end, bitmap = min(start + limits.CHUNK, len(new)), b""
        if prediction.signed:
            marks = np.packbits(signs[start // prediction.width : end // prediction.width])
            bitmap = b"".join(encode_stream(marks, FAST))
        part = memoryview(new)[start:end]
        chunks.append(bitmap + pipeline.encode_chunk(part, memoryview(expected)[start:end], 4))
    return b"".join(map(bytes, pack_chunks(chunks, 4, limits.CHUNK)))


@dataclass
class Run:
    """A parameter of ``count`` numbers with both moments: plain, and ``steps`` steps after it."""

    root: Path
    count: int = 5000
    steps: int = 6
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    versions: list[dict[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.forger = Forger(self.root)
        w, m = (self.rng.standard_normal(self.count).astype(np.float32) for _ in range(2))
        v = np.square(m)
        self.versions.append({"w": w.tobytes(), "m": m.tobytes(), "v": v.tobytes()})
        for _ in range(self.steps):
            g = self.rng.standard_normal(self.count).astype(np.float32)
            m = np.float32(0.9) * m + np.float32(0.1) * g
            v = np.float32(0.999) * v + np.float32(0.001) * g * g
            w = w - np.float32(0.001) * m / (np.sqrt(v) / np.float32(0.5) + np.float32(1e-8))
            self.versions.append({"w": w.tobytes(), "m": m.tobytes(), "v": v.tobytes()})

    def id(self, version: int, member: str) -> bytes:
        return raw_id(self.versions[version][member])

    def full(self, version: int) -> list[Piece]:
        return [
            Piece(raw_id(data), len(data[start : start + limits.PIECE]), payload, start=start)
            for data in self.versions[version].values()
            for start in range(0, len(data), limits.PIECE)
            for payload in [_full(data[start : start + limits.PIECE])]
        ]

    def step(self, version: int) -> list[Piece]:
        """Every member of a version from the version before."""
        old, new = self.versions[version - 1], self.versions[version]
        made = (
            ("m", FIRST, []),
            ("v", SECOND, [new["m"], old["m"]]),
            ("w", STEP, [new["m"], new["v"]]),
        )
        return [
            self.piece(text, new[member], old[member], inputs, start=start)
            for member, text, inputs in made
            for start in range(0, len(new[member]), limits.PIECE)
        ]

    @staticmethod
    def piece(
        text: str, new: bytes, base: bytes, inputs: Sequence[bytes], *, start: int = 0
    ) -> Piece:
        parts = [data[start : start + limits.PIECE] for data in (new, base, *inputs)]
        payload = predicted(text, parts[0], parts[1], parts[2:])
        ids = [raw_id(data) for data in inputs]
        return Piece(
            raw_id(new),
            len(parts[0]),
            payload,
            f"{text} | {DELTA}",
            raw_id(base),
            start,
            inputs=ids,
        )

    @staticmethod
    def delta(new: bytes, base: bytes) -> Piece:
        """A piece as a plain delta."""
        pipeline, views = Pipeline.parse(DELTA), (memoryview(new), memoryview(base))
        starts = range(0, len(new), limits.CHUNK)
        parts = [[view[at : at + limits.CHUNK] for view in views] for at in starts]
        chunks = [pipeline.encode_chunk(*part, 4) for part in parts]
        payload = b"".join(map(bytes, pack_chunks(chunks, 4, limits.CHUNK)))
        return Piece(raw_id(new), len(new), payload, DELTA, raw_id(base))

    def write(self) -> Path:
        """One entry a version."""
        self.forger.publish(self.forger.record(self.full(0)))
        for version in range(1, len(self.versions)):
            self.forger.publish(self.forger.record(self.step(version)))
        return self.finish()

    def finish(self) -> Path:
        root = self.forger.write()
        (root / ".mvc/format").write_bytes(format_line(frozenset({"optim"})))
        return root


def _full(data: bytes) -> bytes:
    if len(data) <= limits.CHUNK:
        return full(data)
    starts = range(0, len(data), limits.CHUNK)
    pipeline = Pipeline.parse(DELTA).full()
    view = memoryview(data)
    chunks = [pipeline.encode_chunk(view[at : at + limits.CHUNK], None, 4) for at in starts]
    return b"".join(map(bytes, pack_chunks(chunks, 4, limits.CHUNK)))
