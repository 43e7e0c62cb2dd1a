"""Production weights handed to the process that serves them: a sink and a reader of one file.

Deciding what the production weights are: ``mvc.lossy``.
"""
