"""Encoding objects and appending records to packs.

``publishing`` makes them part of the repository.
"""
