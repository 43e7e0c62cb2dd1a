"""Lossy commits: production weights are stored in place of training weights.

Lossy stages: ``mvc.codecs.lossy``.
"""
