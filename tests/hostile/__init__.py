"""Malicious input, one file an attack (docs/reliability.md). Scripts build it; nothing runs it.

The attacks of a hostile remote have no test: nothing speaks to other repositories yet.
"""
