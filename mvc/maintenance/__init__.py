"""Maintenance changes how versions are stored, or checks it: gc, forget, repack, fsck, repair.

``graph`` reads what packs and journal store. ``collect`` plans which stored data to delete, and
``rewrite_plan`` executes plans. No operation here changes the content of a version.
"""
