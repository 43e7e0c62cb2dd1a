"""Entries of the journal: their bytes, their frames, how far they reach.

Appending and replacing the journal: ``publishing``. Looking things up: ``snapshot``.
"""
