"""The operation log, and undo.

The entries themselves: ``mvc.store.journal``.
"""
