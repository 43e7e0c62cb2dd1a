"""Publishing an operation: one journal entry, or a new journal that replaces the old one.

``journal`` defines the bytes of an entry.
"""
