"""Frozen repositories of format 1, sound and damaged: they stay readable for ever."""
