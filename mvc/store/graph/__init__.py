"""The storage graph: which records lead to an object, and at what cost.

``recovery`` decodes the records of a path.
"""
