"""Recovers objects: decodes the records of a path and verifies the bytes of the object.

A path is a full record, then deltas. ``mvc.store.graph`` chooses the path.
"""
