"""States from Python: nested dictionaries of torch tensors and numpy arrays.

For model files see ``files``.
"""
