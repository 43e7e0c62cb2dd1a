"""Coders, which compress an array of symbols. A symbol is an integer from 0 to ``alphabet`` - 1.

Every coder is a module with two functions. ``encode(symbols, alphabet)`` returns byte strings, to
be joined. ``decode(cursor, count, alphabet)`` returns ``count`` symbols, each below ``alphabet``,
or raises DamagedData. ``decode`` reads no byte after the encoded symbols, so that other data can
follow.
"""
