"""import: an existing folder of checkpoints becomes history.

Understanding a file: ``mvc.adapters``.
"""
