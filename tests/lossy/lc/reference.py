"""Reads a payload of steps as docs/format.md describes it, element by element.

Nothing of the package is used, so that the page and the package check each other.
"""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
import zstandard

WIDTHS = (4, 8, 2, 2)


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        self.at += count
        assert self.at <= len(self.data)
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def uint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def steps(self, coder: str, sizes: list[int]) -> list[tuple[int, list[int], list[bytes]]]:
        """For each member: kind of its class, symbols, and the numbers as bytes."""
        classes = [self.table() for _ in range(self.uint())]
        members, counts = self.members(sizes, [kind for kind, _ in classes])
        rows = []
        for i, (_, table) in enumerate(classes):
            own = sum(n for n, which in zip(counts, members, strict=True) if which == i)
            rows.append(getattr(self, coder)(own, len(table)) if own else [])
        assert self.at == len(self.data)
        out = []
        for count, which in zip(counts, members, strict=True):
            row, rows[which] = rows[which][:count], rows[which][count:]
            out.append((classes[which][0], row, classes[which][1]))
        return out

    def joint(self, coder: str, sizes: list[int]) -> list[list[tuple[int, list[int], list[bytes]]]]:
        """The same, for each of the consecutive times."""
        times = self.uint()
        classes = [[self.table() for _ in range(times)] for _ in range(self.uint())]
        members, counts = self.members(sizes, [tables[0][0] for tables in classes])
        rows = []
        for i, tables in enumerate(classes):
            own = sum(n for n, which in zip(counts, members, strict=True) if which == i)
            limit = (0, 256, 4096)[self.byte()]
            rows.append(self.letters(coder, own, limit, [len(table) for _, table in tables]))
        assert self.at == len(self.data)
        out: list[list[tuple[int, list[int], list[bytes]]]] = [[] for _ in range(times)]
        for count, which in zip(counts, members, strict=True):
            for t, (kind, table) in enumerate(classes[which]):
                row, rows[which][t] = rows[which][t][:count], rows[which][t][count:]
                out[t].append((kind, row, table))
        return out

    def letters(self, coder: str, own: int, limit: int, alphabets: list[int]) -> list[list[int]]:
        """The symbols of a class, time after time."""
        rows: list[list[int]] = []
        while len(rows) < len(alphabets):
            run = alphabets[len(rows) :][:1]
            for k in alphabets[len(rows) + 1 :]:
                if math.prod(run) * k > limit:
                    break
                run.append(k)
            found = getattr(self, coder)(own, math.prod(run)) if own else []
            for k in run:
                rows.append([letter % k for letter in found])
                found = [letter // k for letter in found]
        return rows

    def members(self, sizes: list[int], kinds: list[int]) -> tuple[list[int], list[int]]:
        """The class of each member, and how many elements it has."""
        members: list[int] = []
        while len(members) < len(sizes):
            length, which = self.uint(), self.uint()
            members += [which] * length
        return members, [
            size // WIDTHS[kinds[which] & 3] for size, which in zip(sizes, members, strict=True)
        ]

    def table(self) -> tuple[int, list[bytes]]:
        kind, count = self.byte(), self.uint()
        width = WIDTHS[kind & 3]
        kept = self.byte() if count else 0
        numbers = [bytes(width - kept) + self.take(kept) for _ in range(count)]
        return kind, [bytes(width), *numbers]

    def packed(self, count: int, alphabet: int) -> list[int]:
        if alphabet > 256:
            low, high = self.packed_bytes(count), self.packed_bytes(count)
            return [a | b << 8 for a, b in zip(low, high, strict=True)]
        each = next(n for n in (8, 4, 2, 1) if alphabet <= 2 ** (8 // n))
        return self.unpacked(self.packed_bytes(math.ceil(count / each)), each, count)

    @staticmethod
    def unpacked(data: bytes, each: int, count: int) -> list[int]:
        bits = 8 // each
        row = [b >> bits * i & 2**bits - 1 for b in data for i in range(each)]
        return row[:count]

    def packed_bytes(self, count: int) -> bytes:
        form = self.byte()
        if form == 0:
            return self.take(1) * count
        if form == 1:
            return self.take(count)
        frame = self.take(self.uint())
        if form == 2:
            return zlib.decompress(frame)
        return zstandard.ZstdDecompressor().decompress(frame)

    def huffman(self, count: int, alphabet: int) -> list[int]:
        if self.byte() == 0:
            return [self.uint()] * count
        known = self.uint()
        halves = self.take(math.ceil(known / 2))
        lengths = [b >> s & 15 for b in halves for s in (0, 4)][:known]
        words, code, before = {}, -1, 0
        for length, symbol in sorted((n, s) for s, n in enumerate(lengths) if n):
            code = (code + 1) << length - before
            before = length
            words[length, code] = symbol
        bits = self.uint()
        data = self.take(math.ceil(bits / 8))
        row, word, length = [], 0, 0
        for i in range(bits):
            word, length = word << 1 | data[i // 8] >> 7 - i % 8 & 1, length + 1
            if (length, word) in words:
                row.append(words[length, word])
                word = length = 0
        assert len(row) == count
        return row

    def ans(self, count: int, alphabet: int) -> list[int]:
        form = self.byte()
        if form == 0:
            return [self.uint()] * count
        if form == 1:
            width = 1 if alphabet <= 256 else 2
            return np.frombuffer(self.take(width * count), f"<u{width}").tolist()
        if form == 3:
            return self.packed(count, alphabet)
        each, precision, lanes = self.byte(), self.byte(), self.uint()
        frequencies = [self.uint() for _ in range(self.uint())]
        assert sum(frequencies) == 2**precision
        width = math.ceil((precision + 20) / 8)
        states = [int.from_bytes(self.take(width), "little") for _ in range(lanes)]
        words = [struct.unpack("<H", self.take(2))[0] for _ in range(self.uint())][::-1]
        letters: list[int] = []
        total = math.ceil(count / each)
        owner = [a for a, f in enumerate(frequencies) for _ in range(f)]
        below = np.cumsum([0, *frequencies]).tolist()
        while len(letters) < total:
            active = min(lanes, total - len(letters))
            for lane in range(active):
                x = states[lane]
                slot = x % 2**precision
                letter = owner[slot]
                letters.append(letter)
                states[lane] = frequencies[letter] * (x >> precision) + slot - below[letter]
            for lane in range(active):
                if states[lane] < 2 ** (precision + 4):
                    states[lane] = states[lane] << 16 | words.pop()
        assert not words
        assert set(states) == {2 ** (precision + 4)}
        return letters if each == 1 else self.unpacked(bytes(letters), each, count)
