"""Checkout and switch: write a version's files, or return the version's state.

``mvc.store.recovery`` decodes the stored data of files.
"""
