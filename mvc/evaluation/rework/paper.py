"""What the paper states: "On Efficient Constructions of Checkpoints", Chen et al., ICML 2020.

Figures in words and tables only: its plots have no numbers. It names no hyper-parameters, so the
comparison is one of directions.
"""

from __future__ import annotations

__all__ = ["OVERHEAD", "SIZES", "SPEEDUPS"]

SPEEDUPS = {
    ("lc:x=2,huffman", "scar:0.05"): (2.88, 5.77),
    ("lc:x=2,huffman", "topn:0.05"): (2.17, 4.06),
    ("lc:x=3,huffman", "scar:0.1"): (1.9, 4.82),
    ("lc:x=3,huffman", "topn:0.1"): (1.52, 2.17),
}
"""Section 4.2: how many times less rework than the other scheme, over all models."""

SIZES = {
    1: {},
    2: {"E": 0.15, "E+P": 0.15 - 0.0926, "E+P+H": 0.05},
    3: {"E": 0.15, "E+P": 0.15 - 0.0623, "E+P+H": 0.10},
}
"""Section 4.3: shares of a full checkpoint by x. E and E+P are means; E+P+H is the upper bound.

The text states what P saves beyond E; a symbol of x bits is 6.25 % and 9.38 % of 32.
"""

OVERHEAD = 4 / 91
"""Section 4.5: below 4 of 91 seconds an iteration, matrix factorisation on MovieLens 25M."""
