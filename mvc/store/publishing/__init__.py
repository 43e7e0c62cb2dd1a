"""Making an operation happen: one journal entry, or a new journal in the place of the old.

The bytes of an entry: ``journal``.
"""
