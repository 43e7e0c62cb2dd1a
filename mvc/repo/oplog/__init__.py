"""The operation log, and undo. Journal entries: ``mvc.store.journal``."""
