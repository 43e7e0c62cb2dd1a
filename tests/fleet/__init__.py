"""Followers of a target, nodes and what they report."""
