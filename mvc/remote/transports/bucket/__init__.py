"""Remotes in buckets: ``s3://``, ``gs://``, ``az://``, and ``bucket:PATH`` in a network folder.

No mvc program runs at a bucket. So the client has a *mirror*: a local repository with the bucket's
journal (log of operations). A fetch, push or ``gc`` uses the mirror like any other repository. Then
mvc writes the changes to the bucket. docs/format.md describes the objects in a bucket.
"""
