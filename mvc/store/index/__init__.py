"""The LMDB index: keys, sorted runs, and the folder of environments.

The index is derived from the journal and the packs, and may be deleted. ``snapshot`` queries it.
"""
