"""Steps on a grid, read by docs/format.md alone."""

import numpy as np


def halves(f):  # bfloat16 of float32 that need no more
    return (f.astype("<f4").view("<u4") >> 16).astype("<u2")


FORMATS = (
    ("<u4", lambda u: u.view("<f4"), lambda f: f.astype("<f4").view("<u4")),
    ("<u8", lambda u: u.view("<f8"), lambda f: f.view("<u8")),
    ("<u2", lambda u: u.view("<f2"), lambda f: f.astype("<f2").view("<u2")),
    ("<u2", lambda u: (u.astype("<u4") << 16).view("<f4"), halves),
)


def plain(c, k, by):
    return c.stream(k, by) if by else c.take(k)


def bits(data):
    return np.unpackbits(np.frombuffer(data, "u1"))


def numbers(c, n, by):
    k, total = c.take(1)[0], c.get("uint")
    low = bits(plain(c, -(-n * k // 8), by))[: n * k].reshape(n, k)
    ends = np.flatnonzero(bits(plain(c, -(-(n + total) // 8), by)))
    quotients = np.diff(ends, prepend=-1) - 1
    return [
        (int(q) << k) + sum(int(b) << i for i, b in enumerate(row))
        for q, row in zip(quotients, low, strict=True)
    ]


def positions(c, n, by):
    return np.cumsum([gap + 1 for gap in numbers(c, n, by)], dtype="i8") - 1


def words(c, k, by, base, reverse):  # of a full record, or the patterns from base on
    code, exponent = c.take(1)[0], c.get("sint")
    dtype, value, word = FORMATS[code]
    if base is None:
        width = c.take(1)[0]
        planes = [np.frombuffer(plain(c, k, by), "u1").astype("i8") for _ in range(width)]
        folded = sum(plane << 8 * i for i, plane in enumerate(planes))
        return word(np.ldexp((folded >> 1 ^ -(folded & 1)).astype("f8"), exponent)).tobytes()
    n = c.get("uint")
    at = positions(c, n, by)
    signs = bits(plain(c, -(-n // 8), by))[:n].astype("i8")
    moves = np.ones(n, "i8")
    if far := c.get("uint"):
        moves[positions(c, far, by)] += np.array(numbers(c, far, by)) + 1
    old = np.frombuffer(base, dtype)
    there = np.ldexp(value(old[at]).astype("f8"), -exponent) + moves * (1 - 2 * (signs ^ reverse))
    out = np.zeros(k, dtype)
    out[at] = old[at] ^ word(np.ldexp(there, exponent))
    return out.tobytes()
