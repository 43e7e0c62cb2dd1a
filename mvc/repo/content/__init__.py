"""The content of files: hashing, opening, comparing, finding bases.

Which files the working folder has: ``mvc.repo.worktree``.
"""
