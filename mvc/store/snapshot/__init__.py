"""What the repository holds at one moment: journal, index and the tail that is not indexed yet.

Searching ways between objects: ``graph``.
"""
