"""diff: two versions, or a version and files, compared tensor by tensor.

Comparing by hashes alone: ``mvc.repo.content.compare``.
"""
