"""How a row of symbols below a known bound is stored. Every coder has the same two functions.

``encode(symbols, alphabet)`` gives parts to be joined; ``decode(cursor, count, alphabet)``
gives back ``count`` symbols, each below ``alphabet``, or raises DamagedData. A coder's part of
the data ends where its symbols end, so that another can follow.
"""

from __future__ import annotations

from types import ModuleType

from mvc.codecs.lc.coders import ans, huffman, packed

__all__ = ["CODERS"]

CODERS: dict[str, ModuleType] = {"huffman": huffman, "packed": packed, "ans": ans}
"""By the name that the stage has."""
