"""Log: a version and its ancestors, and orphans, which are versions that no ref reaches.

``mvc.repo.revisions`` resolves revisions such as ``HEAD~3``.
"""
