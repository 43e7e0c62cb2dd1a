"""Commit: stores states and files as a new version.

``mvc.lossy`` computes production weights. ``mvc.store.writing`` encodes tensors.
"""
