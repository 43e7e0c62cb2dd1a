"""Parsers of model files, such as safetensors, torch zip files and numpy files.

Any other file is opaque. For states from Python see ``python``.
"""
