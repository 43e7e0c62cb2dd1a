"""Slices from elsewhere: proven, then published."""
