"""Parsers of model files: safetensors, torch zip files, numpy files and more; any other file is
opaque.

For states from Python see ``python``.
"""
