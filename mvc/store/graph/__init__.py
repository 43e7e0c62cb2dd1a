"""The storage graph: which records lead to an object, and at what cost.

Decoding what a path names: ``recovery``.
"""
