"""Commands that create repositories, configure and explain."""
