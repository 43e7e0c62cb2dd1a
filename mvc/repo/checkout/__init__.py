"""checkout and switch: writes a version's files, or returns its state.

Decoding: ``mvc.store.recovery``.
"""
