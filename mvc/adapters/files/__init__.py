"""Model files to and from tensors: safetensors, torch zip files, numpy files, any other file.

States given from Python: ``python``.
"""
