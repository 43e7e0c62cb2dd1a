"""States from Python: nested dictionaries of torch tensors and numpy arrays.

``mvc.adapters.files`` is for model files.
"""
