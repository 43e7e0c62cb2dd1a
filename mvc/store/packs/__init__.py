"""Records in packs: their headers, and reading them.

Appending to packs: ``writing``.
"""
