"""Model files and Python states, taken apart into tensors and other bytes and put together again.

Nothing in here runs what a file says: no class is looked up by name and no
object is built for one. A file that a parser does not understand to the last
byte is kept as an opaque run of bytes, so every file can be versioned.
"""
