"""Looks up commits, ancestors, manifests (file lists) and refs, and whether states are stored.

Nothing here changes the repository. ``mvc.repo.refs`` changes refs.
"""
