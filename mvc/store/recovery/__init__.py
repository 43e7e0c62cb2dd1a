"""Decoding: from a path of records to the bytes of an object, verified.

Choosing the path: ``graph``.
"""
