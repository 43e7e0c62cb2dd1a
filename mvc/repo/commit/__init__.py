"""commit: from states and files to a published version.

Lossy reduction: ``mvc.lossy``. Encoding and records: ``mvc.store.writing``.
"""
