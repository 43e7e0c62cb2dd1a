"""checkout and switch: writing a version's files, or handing out its state.

Decoding: ``mvc.store.recovery``.
"""
