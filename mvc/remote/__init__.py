"""Copies versions between repositories: a remote is a repository that a transport connects to.

The package has the transports, the data that they carry, and the verification of received data. The
server is `mvc.server`.
"""
