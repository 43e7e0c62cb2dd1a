"""Splits model files and Python states into tensors and other bytes, and reassembles them.

No code in a file is run. Names of classes in a file are never looked up, so no class is
instantiated. If no parser understands a whole file, it is stored as opaque bytes. So every file can
be versioned.
"""
