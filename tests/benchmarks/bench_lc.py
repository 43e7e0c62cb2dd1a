"""Size and speed of LC-Checkpoint's steps: one core, processor time.

    python -m tests.benchmarks.bench_lc [MEGABYTES] [OLD.npy NEW.npy]

Encoding includes quantising, the payload, and the addition to the encoder's state; decoding
includes the addition. Without files: synthetic float32 weights whose changes have a heavy tail
(``tail``), or are all of a like size (``even``, as Adam's are), in one tensor of 3/4 and several
smaller ones. ``entropy x`` is the payload over the order-0 entropy of its symbols; ``error`` the
relative error of the delta. The best of three passes.
"""

import sys
import time

import numpy as np

from mvc.lossy.lc.payload import decode_steps, encode_steps
from mvc.lossy.lc.quantise import quantise
from mvc.pipelines.pipeline import Pipeline
from tests.lossy.lc.states import entropy

PIPELINES = (
    "lc:x=2",
    "lc:x=3",
    "lc:x=2,huffman",
    "lc:x=3,huffman",
    "lc:x=2,ans",
    "lc:x=3,ans",
    "lc:x=4,ans",
    "lc:mean,budget=0.05",
    "lc:mean,budget=0.05,packed",
    "lc:uniform,budget=0.02",
)
PASSES = 3
DTYPE = "float32"


def series(megabytes, files):
    """Names, and the states before and after."""
    if files:
        old, new = (np.load(name, allow_pickle=False).astype(np.float32).ravel() for name in files)
        yield files[1], old, new
        return
    rng = np.random.default_rng(0)
    n = megabytes * 1_000_000 // 4
    old = (rng.standard_normal(n, np.float32) * np.float32(0.05)).astype(np.float32)
    tail = np.exp(rng.standard_normal(n, np.float32) * 1.5) * 1e-4
    yield "tail", old, old + (tail * rng.standard_normal(n, np.float32)).astype(np.float32)
    even = 1e-3 + 2e-4 * rng.standard_normal(n, np.float32)
    yield "even", old, old + (even * rng.choice([-1, 1], n)).astype(np.float32)


def tensors(state):
    cut = 3 * len(state) // 4
    rest = np.array_split(state[cut:], 30)
    return [(part.tobytes(), DTYPE) for part in (state[:cut], *rest)]


def seconds(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def measure(text, old, new):
    pipeline = Pipeline.parse(text)
    before, after = tensors(old), tensors(new)
    sizes = [len(data) for data, _ in before]
    encoding, decoding = [], []
    for _ in range(PASSES):
        ours, theirs = ([bytearray(data) for data, _ in before] for _ in range(2))

        def encode(ours=ours):
            steps = quantise(pipeline, [(state, DTYPE) for state in ours], after)
            for step, state in zip(steps, ours, strict=True):
                step.apply(memoryview(state))
            return steps, b"".join(encode_steps(pipeline, steps))

        def decode(theirs=theirs, encoded=encode):
            steps = decode_steps(pipeline, encoded.data, sizes)
            for step, state in zip(steps, theirs, strict=True):
                step.apply(memoryview(state))

        spent, (steps, blob) = seconds(encode)
        encoding.append(spent)
        encode.data = memoryview(blob)
        decoding.append(seconds(decode)[0])
        assert ours == theirs
    left = np.frombuffer(b"".join(ours), np.float32).astype(np.float64) - new
    error = np.linalg.norm(left) / np.linalg.norm(new.astype(np.float64) - old)
    symbols = np.concatenate([step.symbols for step in steps])
    least = entropy(np.bincount(symbols)) / 8
    return old.nbytes, len(blob), least, error, min(encoding), min(decoding)


def main(megabytes="64", *files):
    columns = ["data", "pipeline", "ratio", "entropy-x", "error", "enc-MB/s", "dec-MB/s"]
    print("{:6} {:28} {:>9} {:>9} {:>6} {:>8} {:>8}".format(*columns))
    for name, old, new in series(int(megabytes), files):
        for text in PIPELINES:
            raw, stored, least, error, encoding, decoding = measure(text, old, new)
            beside = stored / least if least else float("nan")
            speeds = (raw / spent / 1e6 for spent in (encoding, decoding))
            cells = (name[-6:], text, raw / stored, beside, error, *speeds)
            print("{:6} {:28} {:9.1f} {:9.3f} {:6.3f} {:8.0f} {:8.0f}".format(*cells), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
