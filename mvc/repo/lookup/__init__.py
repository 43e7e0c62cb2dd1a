"""Questions to the store: commits, manifests, refs, revisions, ancestors.

Whatever changes the repository lies in the other folders.
"""
