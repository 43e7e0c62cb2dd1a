"""States to take deltas between: raw bytes of any floating-point dtype."""

from __future__ import annotations

import numpy as np

DTYPES = ("float64", "float32", "float16", "bfloat16")


def raw(values: np.ndarray, dtype: str) -> bytes:
    """Numbers as the bytes of a tensor; bfloat16 by cutting off a float32."""
    if dtype == "bfloat16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    with np.errstate(over="ignore"):
        return values.astype(f"<f{np.dtype(dtype).itemsize}").tobytes()


def numbers(data: bytes, dtype: str) -> np.ndarray:
    """The numbers of a tensor as float64."""
    if dtype == "bfloat16":
        bits = np.frombuffer(data, "<u2").astype("<u4") << 16
        return bits.view("<f4").astype(np.float64)
    return np.frombuffer(data, np.dtype(dtype)).astype(np.float64)


def random_pair(seed: int, dtype: str) -> tuple[bytes, bytes]:
    """Two states with zeros of both signs, subnormals, and entries that do not change."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 300))
    spread = float(rng.uniform(0, 4))
    before = rng.normal(size=n) * 10.0 ** rng.uniform(-3, 1)
    after = before + rng.normal(size=n) * np.exp(rng.normal(size=n) * spread) * 1e-2
    tiny = {"float64": 5e-324, "float16": 6e-8}.get(dtype, 1e-40)
    for state in (before, after):
        some = rng.integers(0, 8, n)
        state[some == 0] = 0.0
        state[some == 1] = -0.0
        state[some == 2] = tiny * rng.integers(-3, 4)
    same = rng.random(n) < 0.2
    after[same] = before[same]
    return raw(before, dtype), raw(after, dtype)


def entropy(counts: np.ndarray) -> float:
    """Bits of all symbols together if each takes its order-0 entropy."""
    known = np.asarray(counts, np.float64)
    known = known[known > 0]
    return float((known * np.log2(known.sum() / known)).sum())
