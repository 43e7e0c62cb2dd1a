"""Commands for what is stored, and how."""
