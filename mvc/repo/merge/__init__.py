"""Merges two versions: a plan as values, then one commit and one checkout."""
