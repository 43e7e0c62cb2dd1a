"""import: commits an existing folder of checkpoints as history."""
