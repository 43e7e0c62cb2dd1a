"""Commands that begin something, and explain."""
