"""States given from Python: nested dictionaries of torch tensors and numpy arrays.

Files: ``files``.
"""
