"""The codings of docs/format.md ("Codings"), written from that page alone; see reader.py."""

from __future__ import annotations

import numpy as np
import zstandard

MIB = 1 << 20


class Bad(Exception):
    """The bytes are not what docs/format.md allows."""


def need(condition, why):
    if not condition:
        raise Bad(why)


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        need(self.at + n <= len(self.data), "the bytes end too early")
        self.at += n
        return bytes(self.data[self.at - n : self.at])

    def uint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                need(value < 1 << 64 and (byte or not shift), "a number is not canonical")
                return value
            shift += 7
            need(shift < 70, "a number is too long")

    def sint(self):
        value = self.uint()
        return value >> 1 ^ -(value & 1)

    def bytes(self):
        return self.take(self.uint())

    def text(self):
        return self.bytes().decode("utf-8", "surrogateescape")

    def list(self, one):
        count = self.uint()
        need(count <= len(self.data) - self.at, "more items than bytes")
        return [one() for _ in range(count)]

    def uints(self):
        return tuple(self.list(self.uint))

    def id(self):
        return self.take(32)

    def end(self):
        need(self.at == len(self.data), "bytes follow the end")


def unzstd(frame, size, dictionary=b""):
    p = zstandard.get_frame_parameters(frame)
    plain = p.content_size == size and not p.has_checksum and not p.dict_id
    need(plain and p.window_size <= 8 * MIB, "a frame's header")
    held = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    d = zstandard.ZstdDecompressor(dict_data=held if dictionary else None)
    return d.decompress(frame, allow_extra_data=False)


def stream(c, k, depth=0):
    if not k:
        return b""
    form = c.take(1)[0]
    need(form < 3 + (depth < 4), "a stream of unknown form")
    if form == 0:
        return c.take(k)
    if form == 1:
        return c.take(1) * k
    if form == 2:
        return unzstd(c.bytes(), k)
    marked, out = bitmap(c, k, depth + 1), np.zeros(k, np.uint8)
    out[marked] = np.frombuffer(stream(c, int(marked.sum()), depth + 1), np.uint8)
    return out.tobytes()


def bitmap(c, k, depth=0):
    bits = np.unpackbits(np.frombuffer(stream(c, -(-k // 8), depth), np.uint8))
    need(not bits[k:].any(), "a bitmap marks elements past its end")
    return bits[:k].astype(bool)


def unfold(words, stages):
    if "zigzag" not in stages:
        return words
    return words >> np.array(1, words.dtype) ^ (
        words & np.array(1, words.dtype)
    ) * words.dtype.type(-1 % (1 << 8 * words.itemsize))


def chunk(data, size, width, stages):
    """The words and tail of one chunk as bytes: of a piece, or of a delta with its sign."""
    c, dtype, count = Cursor(data), np.dtype(f"<u{width}"), size // width
    coded = "raw" not in stages and bool(set(stages) - {"sub", "xor"})
    shape = c.take(1)[0]
    need(shape < 3 or (coded and (shape == 3 or (shape == 4 and "elide" in stages))), "a shape")
    if shape == 0:
        words = c.take(count * width)
    elif shape <= 2:
        words = (c.take(width) if shape == 2 else bytes(width)) * count
    else:
        out = np.zeros(count, dtype)
        marked = bitmap(c, count) if shape == 4 else np.ones(count, bool)
        k = int(marked.sum())
        zstd = any(s.startswith("zstd:") for s in stages)
        get = (lambda n: stream(c, n)) if zstd else c.take
        if "planes" in stages:
            planes = [np.frombuffer(get(k), np.uint8) for _ in range(width)]
            words = np.stack(planes, axis=1).tobytes()
        else:
            words = get(k * width)
        out[marked] = unfold(np.frombuffer(words, dtype), stages)
        words = out.tobytes()
    tail = bytes(size % width) if shape == 1 else c.take(size % width)
    c.end()
    return words + tail


def single(payload, size, stages):
    """(width, decoded bytes) of a single member's payload."""
    c = Cursor(payload)
    head = c.take(1)[0]
    width, step = 1 << (head & 3), 1 << (head >> 2)
    need(6 <= head >> 2 <= 40, "the size of a chunk")
    count = -(-size // step)
    need(count <= len(payload), "more chunks than bytes")
    lengths = [c.uint() for _ in range(count - 1)]
    lengths += [len(payload) - c.at - sum(lengths)] if count else []
    sizes = [min(step, size - i * step) for i in range(count)]
    out = [chunk(c.take(n), s, width, stages) for n, s in zip(lengths, sizes, strict=True)]
    c.end()
    return width, b"".join(out)


def group(payload, sizes, stages):
    """(width, decoded bytes) of every member of a group."""
    c, widths, out = Cursor(payload), [], {}
    while len(widths) < len(sizes):
        run = c.uint()
        widths += [1 << (run & 3)] * (run >> 2)
    need(len(widths) == len(sizes), "widths of a group")
    zstd = any(s.startswith("zstd:") for s in stages)
    for width in sorted(set(widths)):
        mine = [i for i, w in enumerate(widths) if w == width]
        total = sum(sizes[i] // width for i in mine)
        cuts = [min(4 * MIB, total - at) for at in range(0, total, 4 * MIB)]
        planes = [b"".join(stream(c, n) if zstd else c.take(n) for n in cuts) for _ in range(width)]
        split = np.stack([np.frombuffer(p, np.uint8) for p in planes], axis=1).tobytes()
        words, at = unfold(np.frombuffer(split, f"<u{width}"), stages), 0
        for i in mine:
            out[i] = words[at : at + sizes[i] // width].tobytes()
            at += sizes[i] // width
    result = [(w, out[i] + c.take(sizes[i] % w)) for i, w in enumerate(widths)]
    c.end()
    return result


def patch(payload, base, extra, size):
    c, out = Cursor(payload), []
    for start in range(0, size, 4 * MIB):
        q = start * len(base) // size
        window = base[max(0, q - 2 * MIB) : q + 6 * MIB]
        out.append(unzstd(c.bytes(), min(4 * MIB, size - start), extra + window))
    c.end()
    return b"".join(out)


def combine(base, delta, width, operator, reverse):
    end = len(base) // width * width
    out = []
    for part, w in ((slice(0, end), width), (slice(end, None), 1)):
        a, b = np.frombuffer(base[part], f"<u{w}"), np.frombuffer(delta[part], f"<u{w}")
        out.append((a ^ b if operator == "xor" else a - b if reverse else a + b).tobytes())
    return b"".join(out)


def cast(data, names):
    to = names.partition(">")[2]
    if to == "bfloat16":
        x = np.frombuffer(data, "<u4").astype("u8")
        out = x + 0x7FFF + (x >> 16 & 1) >> 16
        return np.where((x & 0x7FFFFFFF) > 0x7F800000, 0xFFFF, out).astype("<u2").tobytes()
    need(names in ("float32>float16", "float64>float32"), f"an unknown cast {names}")
    with np.errstate(all="ignore"):
        values = np.frombuffer(data, "<f4" if to == "float16" else "<f8")
        out = values.astype("<f2" if to == "float16" else "<f4")
    if to == "float16":
        x = values.view("<u4")
        nan, out = x >> 16 & 0x8000 | 0x7E00 | x >> 13 & 0x3FF, out.view("<u2")
    else:
        x = values.view("<u8")
        nan, out = x >> 32 & 0x80000000 | 0x7FC00000 | x >> 29 & 0x7FFFFF, out.view("<u4")
    return np.where(np.isnan(values), nan, out).astype(out.dtype).tobytes()


def apply(record, member, base, reverse=False):
    """The piece that a member leads to from its base's piece, or back from its own piece."""
    size, first = member.nbytes, member.coding.partition(" | ")[0]
    if first == "patch":
        return patch(member.payload, base or b"", record.blobs * (member.kind == 2), size)
    stages = member.coding.split(" | ")
    if first == "resize":
        base = base[:size].ljust(size, b"\0")
    elif first.startswith("cast:"):
        base = cast(base, first.removeprefix("cast:"))
    if base is not None and stages[0] == first and first not in ("sub", "xor"):
        stages = stages[1:]
    need(record.group == ("planes:all" in stages), "a group pipeline outside a group record")
    if record.group and record.cache is None:
        record.cache = group(record.body, [m.nbytes for m in record.members], stages)
    at = [m is member for m in record.members].index(True)
    width, delta = record.cache[at] if record.group else single(member.payload, size, stages)
    if not member.base:
        need(stages[0] not in ("sub", "xor"), "a delta without a base")
        return delta
    need(stages[0] in ("sub", "xor") and len(base) == size, "a base that does not fit")
    return combine(base, delta, width, stages[0], reverse)
