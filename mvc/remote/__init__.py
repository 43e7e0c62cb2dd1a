"""Versions between repositories: a remote is a repository that is reached through a transport.

What travels, and how it is proven before it counts, belongs here; what runs as a server does not.
"""
