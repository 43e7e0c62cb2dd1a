"""The journal, a file with one entry for each operation, and the high-water mark of this file.

``mvc.store.publishing`` appends to the journal and replaces it. ``mvc.store.snapshot`` reads it.
"""
