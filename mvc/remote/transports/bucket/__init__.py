"""Remotes in buckets: ``s3://``, ``gs://``, ``az://``, and ``bucket:PATH`` in a network folder.

A bucket stores a repository as a head, parts of the journal, and packs (docs/format.md). The client
has a *mirror*, a local repository that follows the bucket. So fetch, push and maintenance work as
for any repository.
"""
