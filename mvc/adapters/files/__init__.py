"""Parsers of model files, such as safetensors, torch zip files and numpy files.

A file of any other format is opaque: it has no tensors. ``mvc.adapters.python`` is for states from
Python.
"""
