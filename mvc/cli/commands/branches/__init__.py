"""Commands for branches and tags."""
