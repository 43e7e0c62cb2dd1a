"""Production weights on their way to whoever serves them.

Making them: ``mvc.training.lossy``.
"""
