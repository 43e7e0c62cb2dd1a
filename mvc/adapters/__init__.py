"""Splits model files and Python states into tensors and other bytes, and reassembles them.

mvc runs no code of a file, and imports no module that a file names. If no parser understands a
file, the file is stored as bytes, without tensors. So every file can be versioned.
"""
