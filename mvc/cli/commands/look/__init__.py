"""Commands that show, check and compare."""
