"""bench: every pipeline measured on the user's own models.

Benchmarks of mvc itself: ``tests/benchmarks``.
"""
