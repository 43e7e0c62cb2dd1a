"""Lossy commits: production weights in the place of training weights.

The stages that lose: ``mvc.codecs.lossy``.
"""
