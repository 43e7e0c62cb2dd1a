"""Remotes in buckets: ``s3://``, ``gs://``, ``az://``, and ``bucket:PATH`` in a network folder.

A bucket holds a repository in pieces: a head, parts of the journal, packs (docs/format.md). The
client keeps a mirror of it, so that fetch, push and maintenance are those of any repository.
"""
