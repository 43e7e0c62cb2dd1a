"""Ratio and speed of each pipeline beside XOR + byte planes + zstd-1, in the same run.

    python -m tests.benchmarks.bench_codecs [OLD.npz NEW.npz]

Without files: synthetic weights moved by an Adam-like step, as fp32, as bf16
copies, as fp64, and with two thirds of the elements unchanged. One thread; the
best of several interleaved passes. ``enc x`` and ``dec x`` are speeds relative
to the reference, ``size x`` is stored bytes relative to it.
"""

import sys
import time

import numpy as np
import zstandard

from mvc.limits import CHUNK
from mvc.pipelines.pipeline import Pipeline

PIPELINES = (
    "sub | zigzag | elide | planes | zstd:huff",
    "sub | zigzag | planes | zstd:huff",
    "xor | planes | zstd:huff",
    "xor | planes | zstd:1",
    "sub | raw",
)
FULL = ("planes | zstd:huff", "planes | zstd:1", "raw")
BLOCK = 1 << 16  # elements
PASSES = 5


class Reference:
    """XOR, cache-blocked byte planes, one zstd-1 frame a plane."""

    def __init__(self):
        self.level_1 = zstandard.ZstdCompressor(level=1)
        self.back = zstandard.ZstdDecompressor()
        self.words = {w: np.empty(CHUNK // w, f"<u{w}") for w in (1, 2, 4, 8)}
        self.spare = {w: np.empty(BLOCK, f"<u{w}") for w in (1, 2, 4, 8)}
        self.planes = np.empty(CHUNK, np.uint8)

    def encode(self, new, base, width):
        count = len(new) // width
        words = self.words[width][:count]
        a, b = (np.frombuffer(x, words.dtype) for x in (new, base))
        planes = self.planes[: count * width].reshape(width, count)
        for start in range(0, count, BLOCK):
            cut = slice(start, start + BLOCK)
            np.bitwise_xor(a[cut], b[cut], out=words[cut])
            spare = self.spare[width][: len(words[cut])]
            for i in range(width):
                np.right_shift(words[cut], 8 * i, out=spare)
                np.copyto(planes[i, cut], spare, casting="unsafe")
        return [self.level_1.compress(plane) for plane in planes]

    def apply(self, frames, state, width):
        planes = [np.frombuffer(self.back.decompress(f), np.uint8) for f in frames]
        target = np.frombuffer(state, self.words[width].dtype)
        for start in range(0, len(target), BLOCK):
            cut = slice(start, start + BLOCK)
            words = self.words[width][: len(target[cut])]
            spare = self.spare[width][: len(words)]
            np.copyto(words, planes[-1][cut])
            for plane in planes[-2::-1]:
                np.left_shift(words, 8, out=words)
                np.copyto(spare, plane[cut])
                np.bitwise_or(words, spare, out=words)
            np.bitwise_xor(target[cut], words, out=target[cut])


def synthetic():
    """Name, new, base, width of a few kinds of change."""
    rng = np.random.default_rng(0)
    n = 4 << 20
    base = rng.normal(0, 0.05, n).astype(np.float32)
    step = (1e-3 * np.tanh(rng.normal(0, 0.4, n))).astype(np.float32)
    new = base + step
    idle = np.where(rng.random(n) < 0.65, np.float32(0), step)
    some = base + idle
    halves = [
        ((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16) for x in (base + step / 8, base)
    ]
    yield "fp32 adam", new, base, 4
    yield "fp32 65 % idle", some, base, 4
    yield "bf16 copies", *halves, 2
    yield "fp64", new.astype(np.float64) * 1.1, base.astype(np.float64) * 1.1, 8


def from_files(old, new):
    """One pair: the arrays of two files, joined."""
    flat = [
        np.concatenate([a.ravel().view(np.uint8) for a in np.load(f).values()]) for f in (new, old)
    ]
    yield old, *flat, 4


def best(run, passes=PASSES):
    """Shortest time of several runs, in seconds."""
    times = []
    for _ in range(passes):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(encode, decode, chunks, state):
    """Stored bytes, encoding and decoding speed in raw MB/s."""
    stored = [encode(new, base) for new, base in chunks]
    parts = [state[s : s + CHUNK] for s in range(0, len(state), CHUNK)]

    def decode_all():
        for data, part in zip(stored, parts, strict=True):
            decode(data, part)

    encoding = best(lambda: [encode(new, base) for new, base in chunks])
    decoding = best(decode_all)
    size = sum(len(s) if isinstance(s, bytes) else sum(map(len, s)) for s in stored)
    return size, len(state) / encoding / 1e6, len(state) / decoding / 1e6


def rows(new, base, width):
    """(pipeline, size, encode MB/s, decode MB/s), the reference first."""
    new, base = (memoryview(x).cast("B") for x in (new, base))
    chunks = [(new[s : s + CHUNK], base[s : s + CHUNK]) for s in range(0, len(new), CHUNK)]
    state = memoryview(bytearray(base))
    reference = Reference()
    yield (
        "reference: xor, planes, zstd-1",
        *measure(
            lambda n, b: reference.encode(n, b, width),
            lambda d, s: reference.apply(d, s, width),
            chunks,
            state,
        ),
    )
    for text in PIPELINES:
        pipeline = Pipeline.parse(text)
        yield (
            text,
            *measure(
                lambda n, b, p=pipeline: p.encode_chunk(n, b, width),
                lambda d, s, p=pipeline: p.apply_chunk(memoryview(d), s, width, reverse=False),
                chunks,
                state,
            ),
        )
    for text in FULL:
        pipeline = Pipeline.parse(text)
        yield (
            "full: " + text,
            *measure(
                lambda n, _, p=pipeline: p.encode_chunk(n, None, width),
                lambda d, s, p=pipeline: p.decode_chunk(memoryview(d), s, width),
                chunks,
                state,
            ),
        )


def main(arguments):
    """Print a table per pair."""
    for name, new, base, width in from_files(*arguments) if arguments else synthetic():
        print(f"{name}, {memoryview(new).nbytes / 1e6:.1f} MB")
        print(
            f"  {'':44}{'ratio':>7} {'size x':>7} {'enc MB/s':>9} {'x':>5} {'dec MB/s':>9} {'x':>5}"
        )
        first = None
        for text, size, encoding, decoding in rows(new, base, width):
            first = first or (size, encoding, decoding)
            print(
                f"  {text:44}{memoryview(new).nbytes / size:7.3f} {size / first[0]:7.3f}"
                f" {encoding:9.0f} {encoding / first[1]:5.2f}"
                f" {decoding:9.0f} {decoding / first[2]:5.2f}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
