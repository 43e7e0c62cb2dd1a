import numpy as np
import pytest

from mvc.codecs.cast import cast, supported
from mvc.errors import WrongUsage

torch = pytest.importorskip("torch")

CASES = [("float32", "bfloat16"), ("float32", "float16"), ("float64", "float32")]


def patterns(source):
    """Random bit patterns and values, ties, overflow and every kind of NaN and subnormal."""
    rng = np.random.default_rng(0)
    width = 8 if source == "float64" else 4
    unsigned = f"<u{width}"
    top = np.arange(0, 1 << 16, dtype=unsigned) << np.array(8 * width - 16, unsigned)
    edges = [top + np.array(low, unsigned) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    random = rng.integers(0, 2**63, 20_001, dtype=np.uint64).astype(unsigned)
    values = rng.normal(0, 10.0 ** rng.integers(-9, 9, 20_000)).astype(source)
    return np.concatenate([*edges, random, values.view(unsigned)])


@pytest.mark.parametrize(("source", "to"), CASES)
def test_equals_torch_bit_for_bit(source, to):
    bits = patterns(source)
    theirs = torch.from_numpy(bits.view(source)).to(getattr(torch, to))
    unsigned = "<u4" if to == "float32" else "<u2"
    theirs = theirs.view(torch.int32 if to == "float32" else torch.int16).numpy().view(unsigned)
    ours = np.frombuffer(cast(memoryview(bits).cast("B"), source, to), unsigned)
    different = np.flatnonzero(ours != theirs)
    if to == "bfloat16" and torch.tensor(np.nan).to(torch.bfloat16).view(torch.int16) != -1:
        # Builds without x86 vector kernels write another NaN.
        different = different[~np.isnan(bits.view(source)[different])]
    assert [tuple(map(hex, (bits[i], ours[i], theirs[i]))) for i in different[:9]] == []


def test_rounds_to_nearest_even():
    base = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32)
    out = np.frombuffer(cast(memoryview(base).cast("B"), "float32", "bfloat16"), np.uint16)
    assert [hex(v) for v in out] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80"]


def test_flush_to_zero_changes_nothing():
    base = memoryview(np.array([1e-40, -3e-45, 1e-46, 7e-46, 1e-310])).cast("B")
    before = cast(base, "float64", "float32")
    torch.set_flush_denormal(True)
    try:
        assert cast(base, "float64", "float32") == before
    finally:
        torch.set_flush_denormal(False)
    assert np.frombuffer(before, "<u4").tolist() == [71362, 0x80000002, 0, 0, 0]


def test_what_is_not_supported():
    assert not supported("float16", "bfloat16")
    with pytest.raises(WrongUsage):
        cast(memoryview(bytes(4)), "float16", "bfloat16")
    with pytest.raises(WrongUsage):
        cast(memoryview(bytes(5)), "float32", "bfloat16")
