"""log: versions and how they follow one another.

Revisions such as ``HEAD~3``: ``lookup``.
"""
