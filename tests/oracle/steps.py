"""Approximate steps and joint payloads, read by docs/format.md alone."""

import zlib

import numpy as np
import zstandard

WIDTHS = 4, 8, 2, 2


def adds(coding):  # whether it holds steps
    return coding.startswith(("expq", "uniform", "joint:"))


def floats(data, code):  # of bytes; bfloat16 as float32
    if code == 3:
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, ("<f4", "<f8", "<f2")[code])


def rounded(sums, code):  # bytes; bfloat16 to nearest, ties to even
    if code == 3:
        bits = sums.astype("<f4").view("<u4")
        return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2").tobytes()
    return sums.astype(("<f4", "<f8", "<f2")[code]).tobytes()


def add(base, step):  # the base's piece to the next one
    kind, numbers, symbols = step
    code = kind & 3
    wide = "f8" if code == 1 else "f4"
    v, by = floats(base, code).astype(wide), floats(numbers, code).astype(wide)[symbols]
    if not kind & 4:
        return rounded(v + by, code)
    r = np.sqrt(v) + by
    return rounded(np.where(r < 0, 0, r * r).astype(wide), code)


def table(c):  # kind, and the numbers of symbols 0 to n as bytes
    kind, n = c.take(1)[0], c.get("uint")
    width = WIDTHS[kind & 3]
    kept = c.take(1)[0] if n else 0
    numbers = [bytes(width - kept) + c.take(kept) for _ in range(n)]
    return kind, b"".join([bytes(width), *numbers]), n + 1


def runs(c, count):  # the class of every member
    found = []
    while len(found) < count:
        length = c.get("uint")
        found += [c.get("uint")] * length
    return np.array(found)


def split(row, which, i, counts):  # the symbols of a class, by its members
    mine = [m for m in range(len(counts)) if which[m] == i]
    ends = np.cumsum([counts[m] for m in mine])
    return zip(mine, np.split(row, ends[:-1]), strict=True)


def read(c, sizes, coding):  # a step for every member
    joint, coder = coding.startswith("joint:"), CODERS[coding.split(" | ")[-1]]
    times = c.get("uint") if joint else 1
    members = len(sizes) // times
    classes = [[table(c) for _ in range(times)] for _ in range(c.get("uint"))]
    which = runs(c, members)
    counts = [n // WIDTHS[classes[k][0][0] & 3] for n, k in zip(sizes, which, strict=False)]
    found = {}
    for i, tables in enumerate(classes):
        total = sum(n for n, k in zip(counts, which, strict=True) if k == i)
        limit = (0, 256, 4096)[c.take(1)[0]] if joint else 0
        at = 0
        while at < times:
            end, k = at + 1, tables[at][2]
            while end < times and k * tables[end][2] <= limit:
                k *= tables[end][2]
                end += 1
            letters = coder(c, total, k) if total else np.zeros(0, "i8")
            for time in range(at, end):
                kind, numbers, k = tables[time]
                row, letters = (letters % k, letters // k) if end - at > 1 else (letters, letters)
                for member, part in split(row, which, i, counts):
                    found[time * members + member] = kind, numbers, part
            at = end
    return [found[i] for i in range(len(sizes))]


def several(k):  # symbols to a byte
    return 8 if k <= 2 else 4 if k <= 4 else 2 if k <= 16 else 1


def parts(data, each, n):  # the symbols in bytes
    rows = np.frombuffer(data, "u1").astype("i8")[:, None]
    bits = 8 // each
    return (rows >> np.arange(0, 8, bits) & (1 << bits) - 1).ravel()[:n]


def sequence(c, m):
    form = c.take(1)[0]
    if form < 2:
        return c.take(m) if form else c.take(1) * m
    frame = c.get("bytes")
    return zlib.decompress(frame) if form == 2 else zstandard.ZstdDecompressor().decompress(frame)


def packed(c, n, k):
    if k > 256:
        low, high = sequence(c, n), sequence(c, n)
        return parts(low, 1, n) + 256 * parts(high, 1, n)
    return parts(sequence(c, -(-n // several(k))), several(k), n)


def huffman(c, n, k):
    if not c.take(1)[0]:
        return np.full(n, c.get("uint"))
    known = c.get("uint")
    halves = np.frombuffer(c.take(-(-known // 2)), "u1")
    lengths = np.stack([halves & 15, halves >> 4], 1).ravel()[:known].tolist()
    words, word, before = {}, -1, 0
    for length, symbol in sorted((n, s) for s, n in enumerate(lengths) if n):
        word, before = word + 1 << length - before, length
        words[length, word] = symbol
    bits = c.get("uint")
    found, length, word = [], 0, 0
    for bit in np.unpackbits(np.frombuffer(c.take(-(-bits // 8)), "u1"))[:bits].tolist():
        length, word = length + 1, word << 1 | bit
        if (length, word) in words:
            found.append(words[length, word])
            length = word = 0
    assert len(found) == n
    return np.array(found)


def ans(c, n, k):
    form = c.take(1)[0]
    if form == 0:
        return np.full(n, c.get("uint"))
    if form == 1:
        return np.frombuffer(c.take(n if k <= 256 else 2 * n), "u1" if k <= 256 else "<u2")
    if form == 3:
        return packed(c, n, k)
    each, p, lanes = c.take(1)[0], c.take(1)[0], c.get("uint")
    frequencies = c.get("*uint")
    states = [int.from_bytes(c.take((p + 27) // 8), "little") for _ in range(lanes)]
    words = iter(np.frombuffer(c.take(2 * c.get("uint")), "<u2").tolist())
    owner = [letter for letter, f in enumerate(frequencies) for _ in range(f)]
    below = np.cumsum([0, *frequencies]).tolist()
    letters, total = [], -(-n // each)
    while len(letters) < total:
        active = range(min(lanes, total - len(letters)))
        for lane in active:
            slot = states[lane] % (1 << p)
            letters.append(a := owner[slot])
            states[lane] = frequencies[a] * (states[lane] >> p) + slot - below[a]
        for lane in active:
            if states[lane] < 1 << p + 4:
                states[lane] = states[lane] << 16 | next(words)
    assert not list(words)
    assert {*states} == {1 << p + 4}
    return np.array(letters) if each == 1 else parts(bytes(letters), each, n)


CODERS = {"huffman": huffman, "packed": packed, "ans": ans}
