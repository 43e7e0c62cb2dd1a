"""Commands that reach other repositories."""
