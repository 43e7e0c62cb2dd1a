"""Data sets and networks that the experiments share.

The experiments: ``drift``.
"""
