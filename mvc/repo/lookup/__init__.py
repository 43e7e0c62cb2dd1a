"""Look-ups: commits, manifests, refs, revisions, ancestors.

Nothing here changes the repository. Changing refs: ``mvc.repo.refs``.
"""
