"""Merges two versions: first plans the merge, then makes one commit and one checkout."""
