"""commit: from states and files to a published version.

Lossy commits: ``lossy``. Encoding and records: ``mvc.store.writing``.
"""
