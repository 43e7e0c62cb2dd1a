"""Records in packs: their headers, and reading them.

``writing`` appends to packs.
"""
