"""Encodes objects and appends records to packs.

``publishing`` makes the records part of the repository.
"""
