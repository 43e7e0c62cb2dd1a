"""checkout and switch: writing a version's files, or returning its state.

Decoding: ``mvc.store.recovery``.
"""
