"""Data sets and networks, progress, results and tables that the experiments share.

The experiments: ``drift``, ``provenance`` and ``distributed``.
"""
