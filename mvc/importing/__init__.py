"""Commits existing checkpoints as a history of versions (``mvc import``)."""
