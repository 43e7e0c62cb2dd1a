"""The LMDB index: keys, sorted runs, and the folder of environments.

It is derived and may be deleted. What a key leads to: ``snapshot``.
"""
