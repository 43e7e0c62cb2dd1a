"""Predictions of optimizers' steps, read from the tables of docs/format.md and nothing else.

Operations in float32 are done in float64 and rounded: for one operation that is the same.
"""

import ast
import re
from functools import cache
from pathlib import Path

import numpy as np

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"
ROW = r"^\| `([a-z]+\.?\w*)` \| `([a-z ]+)` \| (?:`([a-z ]+)`)? ?\| `(.+)`(, [a-z]+)? \|$"
NANS = {"float32": 0x7FC00000, "float64": 0x7FF8000000000000}
OPERATORS = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide}


@cache
def rules():
    """By name: arrays, numbers, formula, and what else is said of it."""
    text = DOCUMENT.read_text().partition("\n### Steps of optimizers")[2].partition("\n###")[0]
    found = {}
    for name, arrays, numbers, formula, said in re.findall(ROW, text, re.M):
        found[name] = arrays.split(), numbers.split(), formula, said[2:]
    return found


@cache
def helpers():
    """The names that stand for formulas: their parameters and bodies."""
    text = DOCUMENT.read_text().partition("The table uses these functions:")[2].partition("\n|")[0]
    found = re.findall(r"(\w+)\(([\w, ]+)\) = (\S.*?)(?=   |\n)", text)
    return {name: (names.split(", "), body) for name, names, body in found}


def lookup(rule):
    """A rule's row, and its suffix: how weights decay (f, or by a factor), or g where graded."""
    if rule in rules():
        row = rules()[rule]
        return row, "by" if row[3] == "decayed" else ""
    return rules()[rule[:-1]], rule[-1]


class Machine:
    """Computes formulas in a dtype; numbers are held as float64."""

    def __init__(self, dtype):
        self.dtype = dtype

    def round(self, value):
        return np.asarray(value).astype(self.dtype).astype("f8")

    def run(self, formula, values):
        return self.at(ast.parse(formula, mode="eval").body, values)

    def at(self, node, values):
        if isinstance(node, ast.Constant):
            return np.float64(node.value)
        if isinstance(node, ast.Name):
            return values[node.id]
        if isinstance(node, ast.UnaryOp):
            return -self.at(node.operand, values)
        if isinstance(node, ast.BinOp):
            left, right = self.at(node.left, values), self.at(node.right, values)
            return self.round(OPERATORS[type(node.op)](left, right))
        arguments = [self.at(argument, values) for argument in node.args]
        if node.func.id in helpers():
            names, body = helpers()[node.func.id]
            return self.run(body, dict(zip(names, arguments, strict=True)))
        return getattr(self, node.func.id)(*arguments)

    def sqrt(self, x):
        return self.round(np.sqrt(x))

    def abs(self, x):
        return np.abs(x)

    def max(self, a, b):
        return np.where(b > a, b, a)

    def fma(self, a, b, c):
        if self.dtype == "float32":
            return self.round(a * b + c)
        p, big = a * b, 134217729.0
        high_a, high_b = a * big - (a * big - a), b * big - (b * big - b)
        x, y = a - high_a, b - high_b
        r = (((high_a * high_b - p) + high_a * y) + x * high_b) + x * y
        t = p + c
        z = t - p
        return t + (r + ((p - (t - z)) + (c - z)))


def parse(text):
    _, rule, dtype, *numbers = text.split(":")
    return rule, dtype, [float(number) for number in numbers[0].split(",")] if numbers else []


def signed(text):
    return lookup(parse(text)[0])[0][3] == "signed"


def graded(text):
    return lookup(parse(text)[0])[1] == "g"


def width(text):
    return 4 if parse(text)[1] == "float32" else 8


def predict(text, base, inputs, signs=None):
    """The bytes of a piece or chunk; ``signs``: whether each element is marked."""
    rule, dtype, numbers = parse(text)
    (arrays, names, formula, said), decay = lookup(rule)
    if (len(arrays), len(names)) != (1 + len(inputs), len(numbers)):
        raise ValueError(f"{text} has other inputs or numbers")
    count = len(base) // width(text)
    pieces = [np.frombuffer(data, dtype, count) for data in (base, *inputs)]
    machine = Machine(dtype)
    values = {}
    if said == "signed":
        values["g"] = np.where(signs, -1.0, 1.0)
    with np.errstate(all="ignore"):
        values |= zip(arrays, (piece.astype("f8") for piece in pieces), strict=True)
        values |= zip(names, map(machine.round, numbers), strict=True)
        if decay == "by":
            values["w"] = machine.run("d * w", values)
        elif decay == "f":
            values["w"] = machine.run("fma(-d, w, w)", values)
        out = machine.run(formula, values).astype(dtype)
    bits = out.view(f"u{width(text)}").copy()
    bits[np.isnan(out)] = NANS[dtype]
    return bits.tobytes() + bytes(base[count * width(text) :])


def moving(text, inputs):
    """Which elements of a graded rule have a gradient."""
    return _change(text, inputs)[1] > 0


def grades(text, base, predicted, inputs):
    """Of every element of a graded rule, 0 to 9."""
    _, dtype, _ = parse(text)
    machine, (v, change) = Machine(dtype), _change(text, inputs)
    w, p = (np.frombuffer(data, dtype, len(v)).astype("f8") for data in (base, predicted))
    with np.errstate(all="ignore"):
        r = np.abs(machine.run("((p - w) / p) * (v / c)", {"p": p, "w": w, "v": v, "c": change}))
        exponent = np.frexp(r)[1]  # r < 2 ** exponent
    found = np.clip(exponent, 0, 9)
    return np.where(np.isfinite(r), np.where(r < 1, 0, found), 9)


def _change(text, inputs):
    _, dtype, numbers = parse(text)
    machine, count = Machine(dtype), len(inputs[0]) // width(text)
    v, o = (np.frombuffer(data, dtype, count).astype("f8") for data in inputs)
    with np.errstate(all="ignore"):
        return v, machine.run("v - b * o", {"v": v, "o": o, "b": machine.round(numbers[2])})


def chunk(cursor, size, word, coding, base, told):
    """A chunk of a delta to what is predicted, which takes the place of the base."""
    text = coding.split(" | ")[0]
    if graded(text):
        return _graded(cursor, size, word, coding, base, told)
    count = size // width(text) if signed(text) else 0
    base[:] = predict(text, bytes(base), told, _marks(cursor, count))
    return cursor.chunk(size, word, coding, base, False)


def _marks(cursor, count):
    packed = np.frombuffer(cursor.stream(-(-count // 8)), "u1")
    return np.unpackbits(packed)[:count].astype(bool)


def _graded(cursor, size, word, coding, base, told):
    text = coding.split(" | ")[0]
    moves = moving(text, told)
    marks = np.zeros(len(moves), bool)
    marks[moves] = _marks(cursor, int(moves.sum()))
    old, words, parts = bytes(base), f"u{width(text)}", []
    base[:] = predict(text, old, told, marks)
    found, guess = grades(text, old, base, told), np.frombuffer(base, words, len(moves))
    for grade in range(10):
        places = np.flatnonzero(moves & (found == grade))
        if len(places):
            part = type(cursor)(cursor.take(cursor.get("uint")))
            data = bytearray(guess[places].tobytes())
            parts.append((places, part.chunk(len(data), word, coding, data, False)))
    delta = bytearray(cursor.chunk(size, word, coding, base, False))
    for places, data in parts:
        np.frombuffer(delta, words, len(moves))[places] = np.frombuffer(data, words)
    return bytes(delta)
