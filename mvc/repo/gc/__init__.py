"""gc: deciding what nothing reaches, and deleting it.

Forgetting states: ``retention``.
"""
