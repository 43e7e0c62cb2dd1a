"""Sends versions that another repository lacks, with the records that it needs, as slices."""
