"""diff: two versions, or a version and files, compared tensor by tensor.

Comparing hashes alone: ``content``.
"""
