"""The index: keys, sorted runs, and the files that hold them.

It is derived from journal and packs and may be deleted. Questions to it: ``snapshot``.
"""
