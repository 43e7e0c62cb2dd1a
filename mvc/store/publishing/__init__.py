"""Publishes operations: appends an entry to the journal, or replaces the journal by a new one.

``mvc.store.journal`` defines the bytes of an entry.
"""
