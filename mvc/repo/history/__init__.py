"""log: versions and their ancestors; orphaned versions.

Revisions such as ``HEAD~3``: ``mvc.repo.revisions``.
"""
