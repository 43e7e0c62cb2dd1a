"""Keeps a file or a folder equal to the live version of a target at a remote."""
