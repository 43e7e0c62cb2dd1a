"""Diff: compares two versions, or a version and files, tensor by tensor.

``mvc.repo.content.compare`` compares only hashes.
"""
