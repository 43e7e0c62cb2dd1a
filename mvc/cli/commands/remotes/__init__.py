"""Commands that connect to other repositories."""
