"""How a row of symbols below a known bound is stored. Every coder has the same two functions.

``encode(symbols, alphabet)`` gives parts to be joined; ``decode(cursor, count, alphabet)``
gives back ``count`` symbols, each below ``alphabet``, or raises DamagedData. A coder's part of
the data ends where its symbols end, so that another can follow.
"""
