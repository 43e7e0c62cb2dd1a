"""Tensors as unsigned little-endian words: deltas, byte planes, and scratch memory.

A word has the bits of an element. A delta is computed from words, not from floats, because a float
comparison misses a change from 0.0 to -0.0, and a float register may change a NaN. All operations
on words wrap around, so they are exact and can be undone. Byte plane i of a tensor has byte i of
every word.

``kernels`` is the module with the innermost loops in C (``kernels.c``). It is None if mvc was
installed without a compiler. In this case numpy computes the same bytes more slowly.
"""

from __future__ import annotations

import threading
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mvc.errors import WrongUsage

try:
    from mvc.codecs import _kernels as kernels
except ImportError:
    kernels = None  # type: ignore[assignment]

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[Any]  # unsigned, little-endian, of 1, 2, 4 or 8 bytes
_UNSIGNED = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_SMALLEST = 1 << 16
_FEW = 0.2  # up to this share of changed words, it is faster to process only the changed words
_DENSE = 0.57  # up to this share of nonzero bytes in a bitmap, it is faster to unpack only these
_ADD, _SUBTRACT, _XOR = range(3)  # as in kernels.c
_slots = threading.local()


def word_type(width: int) -> np.dtype[Any]:
    """The unsigned little-endian dtype of ``width`` bytes. Raises WrongUsage if there is none."""
    try:
        return _UNSIGNED[width]
    except KeyError:
        raise WrongUsage(f"an element has 1, 2, 4 or 8 bytes, not {width}") from None


def words_of(data: memoryview | bytes, width: int) -> Words:
    """The complete words of ``data``, without a copy. Trailing bytes are left out."""
    return np.frombuffer(data, word_type(width), len(data) // width)


def scratch_bytes(slot: str, count: int) -> Bytes:
    """``count`` uninitialised bytes of this thread's buffer named ``slot``.

    Every call with the same slot returns the same memory, so use a slot for only one purpose at a
    time. Reused memory needs no page faults, which take longer than the arithmetic on the bytes.
    """
    buffers = vars(_slots)
    buffer: Bytes | None = buffers.get(slot)
    if buffer is None or len(buffer) < count:
        size = max(_SMALLEST, 1 << max(count - 1, 0).bit_length())
        buffer = buffers[slot] = np.empty(size, np.uint8)
    return buffer[:count]


def scratch_words(slot: str, count: int, width: int) -> Words:
    """``count`` words of ``width`` bytes of this thread's buffer ``slot``."""
    return scratch_bytes(slot, count * width).view(word_type(width))


def tally(data: Bytes, blocks: int, length: int) -> Words:
    """Counts how often each byte value occurs in samples of ``data``.

    The samples are ``blocks`` blocks of ``length`` bytes, spread evenly over ``data``. If ``data``
    is not longer than all blocks together, counts all bytes.
    """
    few = len(data) <= blocks * length
    step = max(1, len(data) if few else len(data) // blocks)
    length = len(data) if few else length
    if kernels is not None:
        counts = np.empty(256, np.int64)
        kernels.tally(data[: step * blocks], counts, step, length)
        return counts
    if few:
        return np.bincount(data, minlength=256)
    spread = data[: step * blocks].reshape(blocks, step)
    return np.bincount(spread[:, :length].ravel(), minlength=256)


def difference(operator: str, new: Words, base: Words, out: Words) -> None:
    """Sets ``out`` to the delta from ``base`` to ``new``. The operator is ``sub`` or ``xor``."""
    (np.bitwise_xor if operator == "xor" else np.subtract)(new, base, out=out)


def changes(operator: str, new: Words, base: Words, out: Words) -> tuple[Bytes, int]:
    """Sets ``out`` to the delta, as ``difference`` does.

    Returns a bitmap of the changed words, which may be in scratch memory, and their number.
    """
    if kernels is not None:
        marks = scratch_bytes("marks", -(-len(new) // 8))
        code, buffers = _XOR if operator == "xor" else _SUBTRACT, (new, base, out, marks)
        return marks, kernels.differ(*buffers, new.itemsize, code)
    difference(operator, new, base, out)
    changed = np.not_equal(out, 0, out=scratch_words("changed", len(out), 1).view(np.bool_))
    return np.packbits(changed), int(np.count_nonzero(changed))


def move(operator: str, state: Words, delta: Words, *, reverse: bool) -> None:
    """Applies ``delta`` to ``state`` in place. With ``reverse``, undoes the delta."""
    undo = np.subtract if reverse else np.add
    (np.bitwise_xor if operator == "xor" else undo)(state, delta, out=state)


def combine(
    operator: str, state: memoryview, delta: memoryview, width: int, *, reverse: bool = False
) -> None:
    """Applies ``delta`` to the bytes ``state`` in place. With ``reverse``, undoes the delta.

    State and delta have the same length. The bytes after the last complete word are combined one by
    one, by the same operator. Several deltas with the same operator may be applied in any order.
    """
    if len(state) != len(delta):
        raise WrongUsage(f"a delta of {len(delta)} bytes does not fit a state of {len(state)}")
    words = words_of(state, width)
    move(operator, words, words_of(delta, width), reverse=reverse)
    end = words.nbytes
    if end < len(state):
        move(operator, words_of(state[end:], 1), words_of(delta[end:], 1), reverse=reverse)


def move_at(operator: str, state: Words, at: Words, delta: Words, *, reverse: bool) -> None:
    """As ``move``, but only for the words at the ascending positions ``at``."""
    if len(at) > _FEW * len(state):
        spread = scratch_words("delta", len(state), state.itemsize)
        spread.fill(0)
        spread[at] = delta
        move(operator, state, spread, reverse=reverse)
    else:
        moved = state.take(at)
        move(operator, moved, delta, reverse=reverse)
        state[at] = moved


def move_marked(operator: str, state: Words, marks: Bytes, delta: Words, *, reverse: bool) -> None:
    """As ``move``, but only for the words that are marked in the bitmap ``marks``."""
    if kernels is None:
        move_at(operator, state, positions(marks, len(state)), delta, reverse=reverse)
        return
    undo = _SUBTRACT if reverse else _ADD
    code = _XOR if operator == "xor" else undo
    kernels.move(state, delta, marks, state.itemsize, code)


def positions(marks: Bytes, count: int) -> NDArray[np.intp]:
    """The positions of the bits that are set in a bitmap over ``count`` elements."""
    filled = marks != 0
    if np.count_nonzero(filled) > _DENSE * len(marks):
        return np.flatnonzero(np.unpackbits(marks, count=count).view(np.bool_))
    # Unpack only the nonzero bytes.
    at = np.flatnonzero(filled)
    ones = np.flatnonzero(np.unpackbits(marks.take(at)).view(np.bool_))
    places = at.take(ones >> 3)
    places <<= 3
    ones &= 7
    places |= ones
    return places


def by_key(
    at: NDArray[np.int64], keys: Bytes, kinds: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorts the positions ``at`` by their keys. Position p has the key ``keys[p]``.

    The sorting is stable. Returns the sorted positions, which may be in scratch memory, and how
    often each key from 0 to ``kinds - 1`` occurs. No key is larger.
    """
    if kernels is not None:
        places = scratch_bytes("places", at.nbytes).view(np.int64)
        counts = np.empty(kinds, np.int64)
        kernels.sort(at, keys, places, counts)
        return places, counts
    selected_keys = keys.take(at)
    return at[np.argsort(selected_keys, kind="stable")], np.bincount(selected_keys, minlength=kinds)


def zigzag(words: Words) -> None:
    """Maps the words 0, -1, 1, -2, ... to 0, 1, 2, 3, ..., in place."""
    width = words.itemsize
    signed, signs = f"<i{width}", scratch_words("zigzag", len(words), width)
    np.right_shift(words.view(signed), 8 * width - 1, out=signs.view(signed))
    np.left_shift(words, 1, out=words)
    np.bitwise_xor(words, signs, out=words)


def unzigzag(words: Words) -> None:
    """Undoes :func:`zigzag`, in place."""
    signs = scratch_words("zigzag", len(words), words.itemsize)
    np.bitwise_and(words, 1, out=signs)
    np.negative(signs, out=signs)
    np.right_shift(words, 1, out=words)
    np.bitwise_xor(words, signs, out=words)


def split(
    data: Words, slot: str = "half", *, marks: Bytes | None = None, folded: bool = False
) -> list[Bytes]:
    """The byte planes of ``data``. Plane 0 has the lowest byte of every word.

    The planes may be in scratch memory. ``marks``: a bitmap of the words to include. ``folded``:
    whether to apply ``zigzag`` first, which may change ``data``.
    """
    width, count = data.itemsize, len(data)
    if kernels is not None:
        planes = scratch_bytes(slot, data.nbytes)
        word_count = kernels.split(data, marks, planes, width, folded)
        return [planes[at * count : at * count + word_count] for at in range(width)]
    if marks is not None:
        flags = np.unpackbits(marks, count=count).view(np.bool_)
        included = scratch_words(slot, int(np.count_nonzero(flags)), width)
        data = np.compress(flags, data, out=included)
    if folded:
        zigzag(data)
    return _halved(data, slot)


def _halved(data: Words, slot: str) -> list[Bytes]:
    """Splits each word into two halves, then each half, until the parts are bytes.

    This is fast, because CPUs process more narrow words at a time.
    """
    half = data.itemsize // 2
    if not half:
        return [data.view(np.uint8)]
    spare = scratch_words("shifted", len(data), data.itemsize)
    np.right_shift(data, 8 * half, out=spare)
    low = scratch_words(slot + "0", len(data), half)
    high = scratch_words(slot + "1", len(data), half)
    np.copyto(low, data, casting="unsafe")
    np.copyto(high, spare, casting="unsafe")
    return _halved(low, slot + "0") + _halved(high, slot + "1")


def join(planes: list[Bytes | int], out: Words, *, folded: bool = False) -> None:
    """Fills ``out`` with the words whose bytes are ``planes``.

    A plane is an array, or one value if all its bytes are equal. ``folded``: whether to undo
    ``zigzag`` afterwards.
    """
    if kernels is not None:
        kernels.join(out, tuple(planes), folded)
        return
    words = _joined(planes, out, "half")
    if words is not out:
        out[:] = words
    if folded:
        unzigzag(out)


def _joined(planes: list[Bytes | int], out: Words, slot: str) -> Words | int:
    """The words of these planes; one value if all words are equal.

    The array of words is in ``out``. If there is only one plane, the result is this plane.
    """
    if all(isinstance(plane, int) for plane in planes):
        return sum(int(plane) << 8 * i for i, plane in enumerate(planes))
    half = len(planes) // 2
    if not half:
        return planes[0]
    low, high = (
        _joined(part, scratch_words(slot + side, len(out), half), slot + side)
        for part, side in ((planes[:half], "0"), (planes[half:], "1"))
    )
    if isinstance(high, int):
        np.copyto(out, low)
        if high:
            np.bitwise_or(out, out.dtype.type(high << 8 * half), out=out)
    else:
        np.copyto(out, high)
        np.left_shift(out, 8 * half, out=out)
        np.bitwise_or(out, low, out=out)
    return out
