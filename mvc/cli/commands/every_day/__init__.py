"""Daily commands."""
