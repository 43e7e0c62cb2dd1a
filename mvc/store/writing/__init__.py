"""Encoding objects and appending records to packs.

The moment they become part of the repository: ``publishing``.
"""
