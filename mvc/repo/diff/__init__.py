"""diff: compares two versions, or a version and files, tensor by tensor.

Comparing hashes only: ``mvc.repo.content.compare``.
"""
