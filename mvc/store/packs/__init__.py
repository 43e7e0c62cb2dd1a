"""Packs, which are files of records, the encoded objects: their headers, and reading them.

``mvc.store.writing`` appends to packs.
"""
