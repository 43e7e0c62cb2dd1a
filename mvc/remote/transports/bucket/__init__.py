"""Remotes in buckets: ``s3://``, ``gs://``, ``az://``, and ``bucket:PATH`` in a network folder.

A bucket stores a repository as a head, parts of the journal, and packs (docs/format.md). The client
has a *mirror*: a local repository with the same journal. Fetch, push and maintenance work on the
mirror, as on any repository. Then the changes are written to the bucket.
"""
