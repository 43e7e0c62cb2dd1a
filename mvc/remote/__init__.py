"""Versions between repositories: a remote is a repository that is reached through a transport.

Transports, the data that they carry, and its verification. The server is `mvc.server`.
"""
