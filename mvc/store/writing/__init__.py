"""Encodes objects and appends them to packs, as records.

``mvc.store.publishing`` makes the records part of the repository.
"""
