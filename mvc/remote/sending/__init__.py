"""Sends versions that another repository lacks, as slices with the records that they need."""
