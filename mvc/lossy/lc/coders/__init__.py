"""Coders of a row of symbols: small integers below a known bound, the *alphabet*.

Every coder has the same two functions. ``encode(symbols, alphabet)`` returns parts to join.
``decode(cursor, count, alphabet)`` returns ``count`` symbols, each below ``alphabet``, or raises
DamagedData. ``decode`` reads no byte after the encoded symbols, so that other data can follow.
"""
