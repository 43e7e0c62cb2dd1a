"""Entries of the journal: their bytes, their frames, the high-water mark.

``publishing`` appends to the journal and replaces it. ``snapshot`` reads it.
"""
