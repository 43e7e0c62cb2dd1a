"""Commands that maintain the storage."""
