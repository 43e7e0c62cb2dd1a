"""commit: from states and files to a published version.

Lossy commits: ``mvc.repo.lossy``. Encoding and records: ``mvc.store.writing``.
"""
