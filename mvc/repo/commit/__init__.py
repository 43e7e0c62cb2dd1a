"""commit: from states and files to a published version.

What a lossy pipeline makes of weights: ``mvc.lossy``. Encoding and records: ``mvc.store.writing``.
"""
