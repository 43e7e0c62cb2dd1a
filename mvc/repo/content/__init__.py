"""The stored data of files: opens, decodes and compares files, and finds delta bases.

``mvc.repo.worktree`` manages the files of the working folder.
"""
