"""Decoding: from a path of records to the verified bytes of an object.

``graph`` chooses the path.
"""
