"""The content of files: opening, recovering, comparing, finding bases.

Which files the working folder has: ``mvc.repo.worktree``.
"""
