"""Splits model files and Python states into tensors and other bytes, and reassembles them.

No code in a file is run: no class that a file names is looked up, and no instance of a class is
made. A file that a parser does not fully understand is stored as opaque bytes, so every file can be
versioned.
"""
