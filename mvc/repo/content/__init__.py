"""The content of files: opening, recovering, comparing, finding bases.

The files of the working folder: ``mvc.repo.worktree``.
"""
