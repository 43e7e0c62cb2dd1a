"""Making an operation happen: one journal entry, or a new journal that replaces the old one.

The bytes of an entry: ``journal``.
"""
