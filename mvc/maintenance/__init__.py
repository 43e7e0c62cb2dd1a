"""Maintenance changes how versions are stored, or checks it: gc, forget, repack, fsck, repair.

``graph`` reads what is stored, ``collect`` plans a deletion over it, ``rewrite_plan`` executes
plans. No operation here changes the content of a version.
"""
