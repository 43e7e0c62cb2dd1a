"""Verifies received slices, then publishes them."""
