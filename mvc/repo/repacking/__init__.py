"""Repacking: choosing which versions are stored in full and which deltas are kept, and doing it."""
