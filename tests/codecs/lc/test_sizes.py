"""The paper's formulas, on the specification's known answers."""

import numpy as np
import pytest

from mvc.codecs.lc.quantise import quantise
from mvc.codecs.lc.sizes import bits_of_e, bits_of_ep, bits_of_eph, breakdown, entropy
from mvc.codecs.pipeline import Pipeline
from tests.codecs.lc.test_quantise import KNOWN


def test_known_answers():
    assert bits_of_e(10, 5) == 190
    assert 320 / bits_of_e(10, 5) == pytest.approx(1.684, abs=5e-4)
    assert bits_of_e(10, 1) == 32
    assert bits_of_ep(10, 2) == 20 + 3 * 32
    assert bits_of_eph([6, 1, 1, 2]) == 16 + 4 * 4 + 3 * 32
    assert bits_of_eph([3, 2, 3, 2]) == 20 + 4 * 4 + 3 * 32
    # the share that promotion saves of a large tensor: 3/32 and 2/32 of its bits
    assert bits_of_e(10**6, 32) - bits_of_ep(10**6, 2) == 3 * 10**6 + 29 * 32
    assert entropy([1, 1, 2, 0]) == 6.0


def test_breakdown():
    before, after = (bytes(40), "float32"), (KNOWN.tobytes(), "float32")
    (step,) = quantise(Pipeline.parse("expq | huffman"), [before], [after])
    sizes = breakdown(step, 2)
    assert (sizes.raw, sizes.e, sizes.ep) == (320, 190, 116)
    (step,) = quantise(Pipeline.parse("lc:x=2"), [before], [after])
    assert sizes.eph == bits_of_eph(np.bincount(step.symbols))
