"""Maintenance changes how versions are stored, or checks it: gc, forget, repack, fsck, repair.

``graph`` reads the records and entries, ``collect`` plans a deletion, ``rewrite_plan`` executes
plans. No operation here changes the content of a version.
"""
