"""The loops in C do what numpy does, byte for byte, and refuse what does not fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.codecs import words
from mvc.codecs.words import by_key, changes, join, move_marked, split, tally, word_type
from mvc.pipelines.pipeline import Pipeline
from tests.codecs.samples import TENSOR_PIPELINES, WIDTHS, pair, widths

COUNTS = (0, 1, 7, 8, 9, 16, 17, 1023, 1024, 1025, 1040, 1041, 5000, 70_001)


@pytest.fixture(scope="module")
def either(kernels):
    """Calls a function with numpy, then with the kernels; both results, which are copies."""

    def call(work):
        found, before = [], words.kernels
        for module in (None, kernels):
            words.kernels = module
            try:
                found.append(work())
            finally:
                words.kernels = before
        return found

    return call


def sample(seed, width, count, share):
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, count * width, np.uint8).view(word_type(width))
    flags = random.random(count) < share
    return data, flags, np.packbits(flags)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("share", [0, 0.01, 0.16, 0.6, 1])
@pytest.mark.parametrize("operator, reverse", [("sub", False), ("sub", True), ("xor", False)])
def test_words_that_a_bitmap_marks_are_moved(either, width, share, operator, reverse):
    for count in COUNTS:
        state, flags, marks = sample(count, width, count, share)
        delta = sample(count + 1, width, int(flags.sum()), 0)[0]

        def moved(state=state, marks=marks, delta=delta):
            out = state.copy()
            move_marked(operator, out, marks, delta, reverse=reverse)
            return out

        one, other = either(moved)
        assert (one == other).all()
        assert (one[~flags] == state[~flags]).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("share", [0, 0.01, 0.16, 0.6, 1])
@pytest.mark.parametrize("operator", ["sub", "xor"])
def test_words_that_differ_are_marked(either, width, share, operator):
    for count in COUNTS:
        base, flags, _ = sample(count, width, count, share)
        new = np.where(flags, sample(count + 1, width, count, 0)[0], base)

        def differing(new=new, base=base):
            out = np.empty_like(new)
            marks, found = changes(operator, new, base, out)
            return marks.tobytes(), found, out.tobytes()

        one, other = either(differing)
        assert one == other
        assert one[:2] == (np.packbits(new != base).tobytes(), np.count_nonzero(new != base))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("share", [None, 0, 0.01, 0.16, 0.6, 1])
@pytest.mark.parametrize("folded", [False, True])
def test_planes_are_taken_apart_and_joined(either, width, share, folded):
    for count in COUNTS:
        data, flags, marks = sample(count, width, count, 1 if share is None else share)

        def taken(data=data, marks=None if share is None else marks):
            return [p.copy() for p in split(data.copy(), marks=marks, folded=folded)]

        one, other = either(taken)
        assert len(one) == len(other) == width
        assert all((a == b).all() and len(a) == len(b) for a, b in zip(one, other, strict=True))

        def joined(planes=one):
            out = np.empty(len(planes[0]), word_type(width))
            join(list(planes), out, folded=folded)
            return out

        assert all((made == data[flags]).all() for made in either(joined))


@pytest.mark.parametrize("width", WIDTHS)
def test_planes_of_one_value_are_joined(either, width):
    plane = np.arange(3000, dtype=np.uint32).astype(np.uint8)
    for constant in range(1 << width):
        planes = [17 + i if constant >> i & 1 else plane for i in range(width)]

        def joined(planes=planes):
            out = np.empty(len(plane), word_type(width))
            join(planes, out, folded=True)
            return out

        one, other = either(joined)
        assert (one == other).all()


@pytest.mark.parametrize("size", [1, 7, 64, 4095, 4096, 4097, 5000, 70_001])
def test_bytes_of_blocks_are_counted(either, size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    one, other = either(lambda: tally(data, 8, 512))
    assert one.tolist() == other.tolist()
    assert one.sum() == min(size, 4096)


@pytest.mark.parametrize("kinds", [1, 3, 10, 256])
def test_positions_are_sorted_by_their_keys(either, kinds):
    for count in COUNTS:
        random = np.random.default_rng(count)
        keys = random.integers(0, kinds, count, np.uint8)
        at = np.flatnonzero(random.random(count) < 0.4)
        one, other = either(lambda at=at, keys=keys: [a.tolist() for a in by_key(at, keys, kinds)])
        assert one == other == [sorted(at, key=lambda i, k=keys: k[i]), np.bincount(
            keys[at], minlength=kinds).tolist()]  # fmt: skip


@settings(max_examples=100)
@given(st.sampled_from(TENSOR_PIPELINES), widths, st.integers(0, 5000), st.floats(0, 1))
def test_chunks_are_the_same_bytes(either, text, width, size, share):
    new, base = pair(size, width, share, size)
    pipeline = Pipeline.parse(text)
    one, other = either(lambda: pipeline.encode_chunk(memoryview(new), memoryview(base), width))
    assert one == other


@pytest.mark.parametrize("width", [0, 3, 16, -1, -64, *WIDTHS])
def test_what_does_not_fit_is_refused(kernels, width):
    state, marks = bytearray(range(64)), np.packbits(np.ones(64 // max(width, 1), np.bool_))
    before = bytes(state)
    for wrong in (bytes(63), bytes(65), b""):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.move(state, wrong, marks, width, 0)
        with pytest.raises(ValueError, match="do not fit"):
            kernels.split(bytes(64), None, bytearray(wrong), width, False)
        with pytest.raises(ValueError, match="do not fit"):
            kernels.differ(bytes(64), wrong, state, bytearray(len(marks)), width, 1)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.move(state, bytes(64), marks, width, 3)
    for bits in (b"", bytes(marks) + b"\0", bytes(100)):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.move(state, bytes(64), bits, width, 0)
        with pytest.raises(ValueError, match="do not fit"):
            kernels.split(bytes(64), bits, bytearray(64), width, False)
        with pytest.raises(ValueError, match="do not fit"):
            kernels.differ(bytes(64), bytes(64), state, bytearray(bits), width, 1)
    for operation in (0, 3, -1):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.differ(bytes(64), bytes(64), state, bytearray(marks), width, operation)
    for planes in ((), (bytes(63),), (bytes(64), 1, 2), (256,), (-1,), (1 << 70,), ("x",)):
        with pytest.raises((ValueError, OverflowError, TypeError)):
            kernels.join(state, planes, False)
    assert state == before
    with pytest.raises((ValueError, TypeError, BufferError)):
        kernels.move(before, bytes(64), marks, width, 0)  # cannot be written


@pytest.mark.parametrize("step, length", [(0, 0), (-1, 0), (4, 5), (4, -1), (1 << 62, 1 << 63)])
def test_blocks_that_do_not_fit_are_refused(kernels, step, length):
    with pytest.raises((ValueError, OverflowError)):
        kernels.tally(bytes(100), bytearray(2048), step, length)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.tally(bytes(100), bytearray(2047), 4, 4)
    counts = np.full(256, 9)
    kernels.tally(bytes(100), counts, 1 << 62, 101)
    assert not counts.any()


@pytest.mark.parametrize("at, counts", [
    ((8,), 3), ((-1,), 3), ((1 << 62,), 3), ((0, 1, 7), 2), ((0,), 0), ((0,), 257)])  # fmt: skip
def test_positions_and_keys_that_do_not_fit_are_refused(kernels, at, counts):
    places, keys, out = np.array(at), bytes((0, 1, 1, 0, 1, 0, 0, 2)), bytearray(8 * len(at))
    found = bytearray(8 * counts)
    for wrong in (at, ()):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.sort(places, keys, out if wrong else out[:-1], found)
    assert not any(out) and not any(found)


def test_a_bitmap_that_marks_past_its_end_is_refused(kernels):
    with pytest.raises(ValueError, match="do not fit"):
        kernels.move(bytearray(3), bytes(4), bytes((0b11110000,)), 1, 0)
