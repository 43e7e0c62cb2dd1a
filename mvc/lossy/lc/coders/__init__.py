"""Coders of a row of symbols below a known bound. Every coder has the same two functions.

``encode(symbols, alphabet)`` returns parts to join. ``decode(cursor, count, alphabet)`` returns
``count`` symbols, each below ``alphabet``, or raises DamagedData. The encoded data ends with its
symbols, so that other data can follow.
"""
