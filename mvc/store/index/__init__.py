"""The LMDB index: keys, sorted runs, and the folder of environments.

It is derived from journal and packs and may be deleted. ``snapshot`` queries it.
"""
